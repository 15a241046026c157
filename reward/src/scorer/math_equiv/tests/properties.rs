use std::time::Duration;

use proptest::prelude::*;

use crate::scorer::math_equiv::{ANSWER_BYTES_MAX, equivalent};

/// Pieces of answers, so that many random texts can be parsed.
const ANSWER: &str = "(\\\\frac|\\\\sqrt|\\\\pm|\\\\left|\\\\text\\{ cm\\}|\\\\pi|\\\\cup|\\\\infty|\\\\begin\\{pmatrix\\}\
                      |\\\\end\\{pmatrix\\}|\\\\\\\\|\\\\log_|\\\\sin|[0-9]{1,4}|[a-z]{1,3}|[-+*/^_=<>(),.!%{}|&\\[\\]$ ]\
                      |\\\\[{}%$ ]|.){0,24}";

#[expect(clippy::disallowed_methods, reason = "real work is timed, and no runtime is there to pause")]
pub(super) fn stopwatch() -> impl Fn() -> Duration {
    let started = std::time::Instant::now();
    move || started.elapsed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_two_texts_get_one_verdict(a in ANSWER, b in ANSWER) {
        let first = equivalent(&a, &b);
        prop_assert_eq!(first, equivalent(&a, &b));
        prop_assert_eq!(first.is_equal, equivalent(&b, &a).is_equal);
        prop_assert!(equivalent(&a, &a).is_equal);
        let expected = if first.is_equal { "same" } else { "different" };
        let reason = first.reason.as_str();
        prop_assert!(reason.starts_with(expected) || reason.ends_with("as_text"), "{}", reason);
    }

    #[test]
    fn a_rational_is_itself_however_it_is_written(top in -9999_i64..9999, twos in 0_u32..8, fives in 0_u32..6) {
        let bottom = 2_i64.pow(twos) * 5_i64.pow(fives);
        let places = twos.max(fives) as usize;
        let scaled = i128::from(top) * 10_i128.pow(places as u32) / i128::from(bottom);
        let sign = if scaled < 0 { "-" } else { "" };
        let digits = format!("{:0>width$}", scaled.abs(), width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let decimal = format!("{sign}{whole}.{fraction}0");
        let slash = format!("{top}/{bottom}");
        let spellings = [
            decimal,
            format!("\\frac{{{top}}}{{{bottom}}}"),
            format!("{sign}\\dfrac{{{}}}{{{bottom}}}", top.abs()),
            format!("${slash}$"),
            format!("{scaled}e-{places}"),
            format!("{scaled} \\times 10^{{-{places}}}"),
            format!("\\frac{{{}}}{{{}}}", 3 * top, 3 * bottom),
            format!("x = {slash}"),
            format!("{}/{} \\%", 100 * top, bottom),
        ];
        let more = format!("{}/{bottom}", top + bottom);
        for spelling in &spellings {
            prop_assert!(equivalent(spelling, &slash).is_equal, "{} | {}", spelling, slash);
            if !spelling.ends_with('%') {
                prop_assert!(!equivalent(spelling, &more).is_equal, "{} | {}", spelling, more);
                let irrational = format!("{slash}+\\sqrt2");
                prop_assert!(!equivalent(spelling, &irrational).is_equal, "{}", spelling);
            }
        }
    }

    #[test]
    fn expanding_keeps_a_product_and_changing_it_does_not(a in -9_i64..9, b in -9_i64..9) {
        let product = format!("(x+{a})(x+{b})");
        let sum = format!("x^2+{}x+{}", a + b, a * b);
        prop_assert!(equivalent(&product, &sum).is_equal, "{} | {}", product, sum);
        let other = format!("{sum}+1");
        prop_assert!(!equivalent(&product, &other).is_equal);
    }

    #[test]
    fn the_order_of_a_set_does_not_matter(mut items in prop::collection::vec(-99_i64..99, 1..8)) {
        let written = |items: &[i64]| items.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let set = format!("\\{{{}\\}}", written(&items));
        items.reverse();
        let reversed = format!("\\{{{}\\}}", written(&items));
        prop_assert!(equivalent(&set, &reversed).is_equal);
        items.push(100);
        let larger = format!("\\{{{}\\}}", written(&items));
        prop_assert!(!equivalent(&set, &larger).is_equal);
    }
}

/// Pieces that are repeated up to the longest answer that is parsed, and up to a megabyte.
const NASTY: &[&str] = &[
    "{",
    "}",
    "(",
    "[",
    "\\{",
    "|",
    "\\frac",
    "\\frac{1}{",
    "\\sqrt",
    "\\sqrt{",
    "9^",
    "9^{",
    "99!",
    "9^{9",
    "1,",
    "1,111",
    "1{,}111",
    "x+",
    "x",
    "-",
    "\\pm",
    "\\text{",
    "\\begin{pmatrix}",
    "&",
    "\\\\",
    "=",
    "<",
    "\\cup",
    "_",
    "$",
    "answer",
    "####",
    "(1,",
    "\\binom{599}{300}+",
    "300!+",
    "300!*",
    "7^{1400}+",
    "\\sqrt[64]{7^{64}}+",
    "x^x^",
    "1/3+",
    "\\sin",
    "\\log_",
    "ab",
    " ",
    "0.1",
    "e",
    "1/97+1/89+",
    "(x+1)*",
    "\\ln(",
    "x=",
    "1;",
    "1e9",
    "\\overline{1}",
    "é",
    "%",
    "'",
    "!",
];

#[test]
fn hostile_answers_are_bounded() {
    for piece in NASTY {
        for length in [ANSWER_BYTES_MAX - 8, 1 << 20] {
            let text = piece.repeat(length / piece.len());
            let other = format!("{text}1");
            let timed = || {
                let started = stopwatch();
                (equivalent(&text, &other).is_equal, started())
            };
            // The limit is twenty times the time of a debug build on a busy machine; quadratic time takes far
            // more. Other processes may hold the processor for seconds, so it is enough if one of several
            // comparisons is quick.
            let is_quick = |took: Duration| took < Duration::from_millis(2500);
            let (verdict, took) = timed();
            assert_eq!(verdict, equivalent(&other, &text).is_equal);
            assert!(
                is_quick(took) || (0..4).any(|_| is_quick(timed().1)),
                "{took:?} on {length} bytes of {piece:?}"
            );
        }
    }
}

#[test]
fn huge_values_are_not_computed() {
    let powers =
        ["9^{9^{9^9}}", "9999999!", "\\binom{10^9}{10^8}", "10^{10^{10}}", "(1/3)^{10^9}", "2^{-10^{12}}"];
    for power in powers {
        assert!(equivalent(power, power).is_equal, "{power}");
        assert!(!equivalent(power, &format!("{power}+1")).is_equal, "{power}");
        assert!(!equivalent(power, "1").is_equal, "{power}");
    }
    let digits = "7".repeat(1 << 20);
    assert!(equivalent(&digits, &digits).is_equal);
    assert!(!equivalent(&digits, &format!("{digits}7")).is_equal);
}
