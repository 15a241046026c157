use proptest::prelude::*;
use regex::Regex;

use super::*;

/// A scanner, and the regular expression and replacement that it implements.
type Pair = (fn(&mut String), &'static str, &'static str);

const PAIRS: [Pair; 7] = [
    (keep_first_formulas, r"(.*?)(\$)(.*?)(\$)(.*)", "$$${3}$$"),
    (|text| unwrap_shortest(text, "\\text{"), r"(\\text\{)(.*?)(\})", "${2}"),
    (|text| unwrap_shortest(text, "\\textbf{"), r"(\\textbf\{)(.*?)(\})", "${2}"),
    (|text| unwrap_shortest(text, "\\overline{"), r"(\\overline\{)(.*?)(\})", "${2}"),
    (|text| unwrap_longest(text, "\\boxed{"), r"(\\boxed\{)(.*)(\})", "${2}"),
    (|text| brace_bare(text, "frac", Bare::Two), r"(frac)([^{])(.)", "frac{${2}}{${3}}"),
    (|text| brace_bare(text, "sqrt", Bare::One), r"(sqrt)([^{])", "sqrt{${2}}"),
];

#[test]
fn each_scanner_by_hand() {
    let cases = [
        (0, "so $a$ or $b$\n$c", "$a$\n$c"),
        (1, "\\text{a\\text{b}c}", "a\\text{bc}"),
        (4, "\\boxed{a}b}\\boxed{\n}", "a}b\\boxed{\n}"),
        (5, "fracfrac12 frac3\n frac{a}b frac7", "frac{f}{r}ac12 frac3\n frac{a}b frac7"),
        (6, "sqrt\nsqrt{4}sqrtésqrt", "sqrt{\n}sqrt{4}sqrt{é}sqrt"),
    ];
    for (pair, before, after) in cases {
        let mut text = before.to_owned();
        PAIRS[pair].0(&mut text);
        assert_eq!(text, after);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn each_scanner_is_its_expression(
        text in "(\\\\text\\{|\\\\textbf\\{|\\\\overline\\{|\\\\boxed\\{|frac|sqrt|\\{|\\}|\\$|\n|é|[a-c ]){0,24}"
    ) {
        for (scan, expression, replacement) in PAIRS {
            let wanted = Regex::new(expression).unwrap().replace_all(&text, replacement).into_owned();
            let mut scanned = text.clone();
            scan(&mut scanned);
            prop_assert_eq!(scanned, wanted, "{}", expression);
        }
    }
}
