mod containers;
mod extraction;
mod properties;

use super::{Reason, equivalent};

/// Compares every pair in both orders, and lists all wrong verdicts.
fn each_pair(is_equal: bool, pairs: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (a, b) in pairs {
        for (left, right) in [(a, b), (b, a)] {
            let verdict = equivalent(left, right);
            if verdict.is_equal != is_equal {
                wrong.push(format!("{left} | {right} | {}", verdict.reason.as_str()));
            }
        }
    }
    assert!(wrong.is_empty(), "expected is_equal={is_equal}:\n{}", wrong.join("\n"));
}

fn equal(pairs: &[(&str, &str)]) {
    each_pair(true, pairs);
}

fn unequal(pairs: &[(&str, &str)]) {
    each_pair(false, pairs);
}

#[test]
fn numbers() {
    equal(&[
        ("5", "5.0"),
        ("-3", "\u{2212}3"),
        ("+7", "7"),
        ("007", "7"),
        (".5", "0.50"),
        ("\\frac12", "0.5"),
        ("\\frac 12", "\\dfrac{1}{2}"),
        ("\\frac1{2}", "1/2"),
        ("\\frac{-3}{6}", "-\\frac{1}{2}"),
        ("\\frac{1}{-2}", "-0.5"),
        ("½", "1/2"),
        ("1\\frac{1}{2}", "3/2"),
        ("-1\\frac{1}{2}", "-1.5"),
        ("137 \\frac{1}{2}", "137.5"),
        ("2 1/3", "7/3"),
        ("1½", "1.5"),
        ("22\\frac{1}{2}^\\circ", "22.5"),
        ("22 1/2^{\\circ}", "22.5°"),
        ("2\\frac12\\%", "1/40"),
        ("0.\\overline{3}", "1/3"),
        ("0.1\\overline{6}", "\\frac16"),
        ("1.2\\times 10^{5}", "120000"),
        ("1.2e5", "120,000"),
        ("2e-3", "0.002"),
        ("2e - 3", "2e-3"),
        ("3 \\cdot 10^{-2}", "0.03"),
        ("2^{10}", "1024"),
        ("2^10", "1024"),
        ("2**10", "1024"),
        ("5!", "120"),
        ("\\binom{5}{2}", "10"),
        ("{5 \\choose 2}", "10"),
        ("|-4|", "4"),
        ("\\left|3-5\\right|", "2"),
        ("\\lfloor 3.7 \\rfloor", "3"),
        ("\\lceil -1/2 \\rceil", "0"),
        ("\\sqrt{16}", "4"),
        ("\\sqrt[3]{-8}", "-2"),
        ("\\sqrt{\\frac{9}{4}}", "1.5"),
        ("8^{2/3}", "4"),
        ("123456789012345678901234567890/10", "12345678901234567890123456789"),
        ("\\frac{\\frac{1}{2}}{3}", "1/6"),
        ("2(3+4)", "14"),
        ("-(-5)", "5"),
        ("10 - 2 - 3", "5"),
        ("12/2/3", "2"),
        ("-2^2", "-4"),
        ("2^3^2", "512"),
        ("5 million", "5{,}000{,}000"),
        ("1.5\\text{ million dollars}", "1500000"),
        ("3\\text{ dozen}", "36"),
    ]);
    unequal(&[
        ("\\frac{1}{3}", "0.33"),
        ("\\frac{1}{3}", "0.3333333333333333"),
        ("1", "2"),
        ("5", "-5"),
        ("1 1/2", "11/2"),
        ("2\\frac{1}{2}", "1"),
        ("3\\frac{1}{xy}", "\\frac{3}{y}"),
        ("2\\frac{ab}{3}", "\\frac{2b}{3}"),
        ("2\\frac{1}{2}^2", "6.25"),
        ("12345678901234567890123456789", "12345678901234567890123456788"),
        ("0.1", "0.01"),
        ("1e5", "1e6"),
        ("2^{10}", "20"),
        ("5 million", "5"),
        ("5\\text{ million}", "5"),
        ("0^0", "0"),
        ("1/0", "0"),
        ("10^{400}", "10^{401}"),
        ("\\frac12", "12"),
        ("3!", "3"),
        ("4!!", "24!"),
    ]);
}

#[test]
fn thousands() {
    equal(&[
        ("1,000", "1000"),
        ("1{,}000", "1000"),
        ("1\\,000", "1000"),
        ("1 000 000", "1000000"),
        ("10,\\!080", "10080"),
        ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
        ("1,234.5", "1234.5"),
        ("12,345,678", "12345678"),
        ("100,200", "200, 100"),
    ]);
    unequal(&[
        ("1,000", "1"),
        ("1,00", "100"),
        ("3{,}14", "314"),
        ("3{,}1415", "31415"),
        ("x{,}123", "x123"),
        ("1,2,300", "12300"),
        ("(1,000)", "1000"),
        ("\\{1,234\\}", "1234"),
        ("1,234", "1234.5"),
    ]);
}

#[test]
fn percent_money_units() {
    equal(&[
        ("50\\%", "0.5"),
        ("50\\%", "50"),
        ("50%", "\\frac12"),
        ("50 percent", "50\\%"),
        ("12.5\\%", "1/8"),
        ("\\frac12\\%", "1/200"),
        ("-5\\%", "-5"),
        ("-5\\%", "-0.05"),
        ("\\$5", "5"),
        ("$5", "5 dollars"),
        ("\\$18.90", "18.9"),
        ("-\\$5", "-5"),
        ("\\$1,250", "1250"),
        ("5\\text{ cm}", "5"),
        ("5 cm", "5\\text{ centimeters}"),
        ("5\\,\\mathrm{cm}", "5 cm"),
        ("864 \\mbox{ inches}^2", "864"),
        ("864 \\text{ square inches}", "864 \\mbox{ inches}^2"),
        ("10 cm^2", "10\\text{ cm}^{2}"),
        ("60 mph", "60"),
        ("60 km/h", "60 \\text{ kilometers per hour}"),
        ("9.8\\text{ m/s}^2", "9.8"),
        ("5 hours", "5\\text{ hrs}"),
        ("25 students", "25"),
        ("25 \\text{ possible ways}", "25"),
        ("30^\\circ", "30"),
        ("30^{\\circ}", "30 degrees"),
        ("30°", "30^\\circ"),
        ("x = 5\\text{ cm}", "5"),
        ("100 cm", "1\\text{ m}"),
        ("1\\text{ m}^2", "10000 cm^2"),
        ("2\\pi\\text{ m}", "200\\pi\\text{ cm}"),
        ("x\\text{ m}", "100x\\text{ cm}"),
        ("1 gallon", "4 quarts"),
        ("1\\text{ liter}", "1000\\text{ cm}^3"),
        ("90 minutes", "1.5 hours"),
        ("2 years", "24 months"),
        ("36 km/h", "10\\text{ m/s}"),
        ("60 mph", "1\\text{ mile per minute}"),
        ("\\$0.50", "50 cents"),
        ("16 oz", "1 pound"),
    ]);
    unequal(&[
        ("50\\%", "0.5\\%"),
        ("50\\%", "5"),
        ("50\\%", "5000"),
        ("5 cm", "5 m\\text{m}"),
        ("5 cm", "5\\text{ m}"),
        ("100 cm", "1.01\\text{ m}"),
        ("100 cm", "1\\text{ m}^2"),
        ("1 year", "365 days"),
        ("1 ton", "1000 kg"),
        ("0 celsius", "273.15 kelvin"),
        ("60 mph", "60 km/h"),
        ("5 cm", "5 cm^2"),
        ("5 km", "5 km/h"),
        ("\\$5", "5 cents"),
        ("10\\text{ AM}", "10\\text{ p.m.}"),
        ("5 cm", "6 cm"),
        ("30^\\circ", "60^\\circ"),
    ]);
}

#[test]
fn constants_and_functions() {
    equal(&[
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("\\sqrt2", "\\sqrt{2}"),
        ("√2", "sqrt(2)"),
        ("\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt{3}}{3}"),
        ("2\\pi", "2π"),
        ("\\frac{\\pi}{2}", "pi/2"),
        ("\\frac{2}{3}\\pi", "\\frac{2\\pi}{3}"),
        ("e^{2}", "e^2"),
        ("\\ln e", "1"),
        ("\\ln 8", "3\\ln 2"),
        ("\\log_2 8", "3"),
        ("\\log_{10} 1000", "3"),
        ("\\lg 100", "2"),
        ("\\log 2", "\\ln 2"),
        ("\\sin 30^\\circ", "1/2"),
        ("\\sin \\frac{\\pi}{6}", "0.5"),
        ("\\sin^2 1 + \\cos^2 1", "1"),
        ("\\cos(60°)", "0.5"),
        ("\\tan^{-1} 1", "\\frac{\\pi}{4}"),
        ("\\arctan 1", "45 \\cdot \\pi/180"),
        ("\\sqrt{-4}", "2i"),
        ("i^2", "-1"),
        ("6 - 5i", "-5i+6"),
        ("(1+i)^2", "2i"),
        ("e^{i\\pi}", "-1"),
        ("\\sqrt{2}-\\sqrt{2}", "0"),
        ("\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}"),
        ("\\sqrt[4]{5}", "5^{1/4}"),
        ("\\infty", "infinity"),
        ("-\\infty", "-∞"),
        ("\\exp(1)", "e"),
        ("\\tan 15^\\circ", "2-\\sqrt3"),
        ("\\sec 0", "1"),
        ("sec(0)", "1"),
    ]);
    unequal(&[
        ("\\pi", "3.14"),
        ("\\pi", "3.14159265"),
        ("\\sqrt{2}", "1.414"),
        ("\\sqrt{2}", "\\sqrt{3}"),
        ("2\\sqrt{3}", "3\\sqrt{2}"),
        ("\\infty", "-\\infty"),
        ("\\infty", "9^{9^{9^9}}"),
        ("\\ln 2", "\\log_{10} 2"),
        ("6-5i", "6+5i"),
        ("e", "2.718281828"),
        ("\\sin 30", "1/2"),
        ("\\sqrt[3]{5}", "\\sqrt{5}"),
        ("10^{-20}\\pi", "2 \\cdot 10^{-20}\\pi"),
        ("9^{9^{9^9}}", "9^{9^{9^8}}"),
    ]);
}

#[test]
fn expressions() {
    equal(&[
        ("x+1", "1+x"),
        ("15x - 80", "-80+15x"),
        ("2x", "x\\cdot 2"),
        ("xy", "yx"),
        ("xy", "x*y"),
        ("3\\frac{1}{xy}", "\\frac{3}{xy}"),
        ("2\\frac{ab}{3}", "\\frac{2}{3}ab"),
        ("3\\frac ab", "\\frac{3a}{b}"),
        ("3xy^2", "3 y^2 x"),
        ("(x+1)^2", "x^2+2x+1"),
        ("\\frac{x}{2}", "0.5x"),
        ("\\frac{x^2-1}{x-1}", "x+1"),
        ("\\frac{a}{b}", "a/b"),
        ("\\frac ab", "\\frac{a}{b}"),
        ("x^{-1}", "\\frac1x"),
        ("\\sqrt{x^2}", "|x|"),
        ("\\sqrt[3]{x}", "x^{1/3}"),
        ("\\sin 2x", "2\\sin x\\cos x"),
        ("\\sin^2 x", "1-\\cos^2 x"),
        ("\\sec^{-2} x", "\\cos^2 x"),
        ("\\sec^{-1} x", "\\sec^{-1}x"),
        ("\\sin^{-1} 1", "\\frac{\\pi}{2}"),
        ("\\sin(\\frac{\\pi}{2}-x)", "\\cos x"),
        ("\\ln(ab)", "\\ln a+\\ln b"),
        ("\\ln(x^2)", "2\\ln|x|"),
        ("e^{x+y}", "e^x e^y"),
        ("x_1+x_2", "x_{2}+x_{1}"),
        ("\\alpha\\beta", "\\beta \\alpha"),
        ("\\frac{n(n-1)}{2}", "\\binom{n}{2}"),
        ("2^{n+1}", "2\\cdot 2^n"),
        ("x^3+3x-6", "x(x^2+3)-6"),
        ("5r^5", "5 r^{5}"),
        ("-(x-1)", "1-x"),
        ("1/2x", "\\frac{x}{2}"),
        ("x-x+5", "5"),
        ("n!", "n !"),
    ]);
    unequal(&[
        ("x+1", "x-1"),
        ("x", "X"),
        ("x", "y"),
        ("2x", "x^2"),
        ("x_1", "x_2"),
        ("x^2", "x^3"),
        ("\\frac{x}{2}", "\\frac{2}{x}"),
        ("\\sqrt{x^2}", "x"),
        ("\\sqrt{ab}", "\\sqrt a \\sqrt b"),
        ("\\sin x", "\\cos x"),
        ("2x", "2"),
        ("x", "1"),
        ("(x+1)^2", "x^2+1"),
        ("a+b", "a-b"),
        ("\\ln x", "\\ln(x+1)"),
        ("x^2+10^{-6}", "x^2"),
        ("\\sec^{-1} x", "\\cos x"),
        ("\\sec^{-1}(2)", "\\frac{1}{\\sec 2}"),
        ("\\cot^{-1} x", "\\tan x"),
        ("\\sinh^{-1} x", "\\frac{1}{\\sinh x}"),
    ]);
}

#[test]
fn bases_and_words() {
    equal(&[
        ("101_2", "101_{2}"),
        ("0101_2", "101_2"),
        ("4210_{5}", "4210_5"),
        ("52_8", "52_{\\text{eight}}"),
        ("1A_{16}", "1a_{16}"),
        ("\\text{east}", "East"),
        ("\\text{no solution}", "No  Solution"),
        ("\\text{Navin}", "Navin"),
        ("yes", "Yes"),
        ("(A)", "A"),
        ("\\text{(A)}", "A"),
        ("\\textbf{(B)}", "B"),
        ("\\text{Alice, Bob}", "Bob and Alice"),
        ("\\text{5 cm}", "5"),
        ("x-axis", "X-axis"),
    ]);
    unequal(&[
        ("101_2", "101_3"),
        ("101_2", "5"),
        ("52_8", "52"),
        ("\\text{east}", "seat"),
        ("east", "west"),
        ("yes", "no"),
        ("no", "on"),
        ("A", "B"),
        ("\\text{even}", "\\text{odd}"),
        ("Monday", "1"),
        ("AB", "CD"),
        ("", "5"),
    ]);
}

#[test]
fn fences_do_not_count() {
    equal(&[
        ("$5$", "5"),
        ("$$\\frac12$$", "0.5"),
        ("\\(x+1\\)", "1+x"),
        ("\\[ 5 \\]", "5."),
        ("\\boxed{5}", "5"),
        ("**42**", "42"),
        ("$\\boxed{\\text{east}}$.", "east"),
    ]);
}

#[test]
fn verdicts_say_why() {
    for (a, b, reason) in [
        ("\\dfrac{1}{2}", "\\frac{1}{2}", Reason::SameText),
        ("\\frac12", "0.5", Reason::SameExactValue),
        ("\\sqrt8", "2\\sqrt2", Reason::SameNumericValue),
        ("1,2", "2,1", Reason::SameSet),
        ("(1,2)", "(1,2.0)", Reason::SameTuple),
        ("x+y=1", "1-x=y", Reason::SameRelation),
        ("1", "2", Reason::DifferentValue),
        ("(1,2)", "[1,2]", Reason::DifferentBrackets),
        ("(1,2)", "3", Reason::DifferentKind),
        ("5 cm", "5 km", Reason::DifferentUnit),
        ("1,2", "1,2,3", Reason::DifferentSize),
        ("east", "west", Reason::DifferentText),
        ("9^{9^{9^9}}", "9^{9^{9^8}}", Reason::UndecidedComparedAsText),
        ("\\foo{1}", "1", Reason::UnparsedComparedAsText),
        ("\\foo{x}", "\\foo{X}", Reason::UnparsedComparedAsText),
    ] {
        assert_eq!(equivalent(a, b).reason, reason, "{a} | {b}");
    }
}

#[test]
fn unparsed_text_is_compared_by_variables_and_case_insensitive_words() {
    equal(&[("\\foo{Area of x}", "\\foo{area  of x}")]);
    unequal(&[("\\foo{x}", "\\foo{X}"), ("\\foo \\Delta", "\\foo \\delta"), ("\\foo{AB}", "\\foo{ab}")]);
}

#[test]
fn a_reason_is_one_word_wherever_it_is_written() {
    for reason in [Reason::SameExactValue, Reason::UndecidedComparedAsText, Reason::NoAnswer] {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
}
