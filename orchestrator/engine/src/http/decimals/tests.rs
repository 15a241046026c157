use fearless_simd::{Level, dispatch};
use proptest::prelude::*;

use super::*;

/// The standard library's value of a number that obeys JSON's grammar.
fn standard(text: &str) -> f32 {
    text.parse().unwrap()
}

/// The text after a number. It is long enough to read a number before it.
const REST: &[u8] = &[b','; TEXT_BYTES];

/// The value that [`leading_f32`] reads from `text` and a comma, if it reads all of `text`.
fn leading(text: &str) -> Option<f32> {
    let bytes = [b"[", text.as_bytes(), REST].concat();
    let found = dispatch!(Level::new(), simd => leading_f32(simd, &bytes, 1));
    found.filter(|(_, end)| *end == text.len() + 1).map(|(value, _)| value)
}

#[test]
fn the_numbers_of_engines_are_read_ahead() {
    for text in [
        "0.0",
        "-0.0",
        "-999.5",
        "-10.00468635559082",
        "-0.15121398866176605",
        "-0.00012345678987540305",
        "-0.00010000000474974513",
        "-0.0001",
        "-1.1920928955078125e-07",
        "-7.152555099310121e-07",
        "-9.999999747378752e-05",
        "-3.0e-05",
        "1.00000005960464577539e-20",
    ] {
        assert_eq!(leading(text).map(f32::to_bits), Some(standard(text).to_bits()), "{text}");
    }
}

#[test]
fn other_numbers_are_not_read_ahead() {
    for text in [
        "",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "1.e3",
        "1e",
        "1e-",
        "1e5",
        "1e+5",
        "1E-5",
        "1-2",
        "1.2.3",
        "nan",
        "--1",
        "1e-1.5",
        "1.0e-5",
        "1.0e-30",
        "1.0e-005",
        "1.0e-0x",
        "1.0e-0:",
        "1.0e05.",
        "0",
        "-9999.0",
        "-3e-05",
        "0.00000000001234567",
        "0.0000000000000000000012345",
        "12345678",
        "1.00000005960464477539",
        "1e-99999999",
        "1e-51",
        "1.4e-45",
        " 1",
    ] {
        assert_eq!(leading(text), None, "{text:?}");
    }
    let short = dispatch!(Level::new(), simd => leading_f32(simd, b"-0.5", 0));
    assert_eq!(short, None, "the chunk may end in the middle of the number");
}

/// The text that Python writes for a double: the shortest digits, and an exponent if the number is small.
fn python(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap();
    let exponent: i32 = exponent.parse().unwrap();
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The bits of the numbers that [`decimals`] reads if at most `most` of them are accepted, and the number of bytes that
/// they take.
fn read_decimals(bytes: &[u8], most: usize) -> (Vec<u32>, usize) {
    let mut found = Vec::new();
    let taken = dispatch!(Level::new(), simd => decimals(simd, bytes, |values| {
        let count = values.len().min(most - found.len());
        found.extend(values[..count].iter().map(|value| value.to_bits()));
        count
    }));
    (found, taken)
}

/// A number as Python writes it, or another form.
fn any_number() -> impl Strategy<Value = String> {
    let usual = (0x2300_0000_u32..0x4100_0000, any::<bool>()).prop_map(|(bits, negative)| {
        let value = f64::from(f32::from_bits(bits));
        python(if negative { -value } else { value })
    });
    // In the middle between two `f32`, so that the standard library has to round them.
    let middle = (0x3800_0000_u32..0x4000_0000).prop_map(|bits| {
        let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
        format!("{middle:.24}")
    });
    let short =
        prop::sample::select(&["0.0", "-0.0", "-1.0", "-12.5", "-0.0001"][..]).prop_map(str::to_owned);
    let odd = prop::sample::select(&["1", "null", "-3e-05", "-1.5E-5", " 1.5", "1.5 ", ""][..])
        .prop_map(str::to_owned);
    prop_oneof![240 => usual, 80 => short, 1 => middle, 1 => odd]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn numbers_are_read_up_to_the_first_one_that_is_not_read_ahead_or_taken(
        texts in prop::collection::vec(any_number(), 0..160), most in 0_usize..200,
    ) {
        let text: String = texts.iter().map(|text| format!("{text},")).collect();
        let bytes = [text.as_bytes(), &[b']'; TEXT_BYTES]].concat();
        let expected: Vec<u32> =
            texts.iter().map_while(|text| leading(text)).take(most).map(f32::to_bits).collect();
        let (found, taken) = read_decimals(&bytes, most);
        prop_assert_eq!(&found, &expected);
        let length: usize = texts.iter().take(expected.len()).map(|text| text.len() + 1).sum();
        prop_assert_eq!(taken, length);
    }

    #[test]
    fn numbers_are_not_read_beyond_the_end(
        texts in prop::collection::vec(any_number(), 0..40), cut: prop::sample::Index,
    ) {
        let text: String = texts.iter().map(|text| format!("{text},")).collect();
        let whole = [text.as_bytes(), &[b']'; TEXT_BYTES]].concat();
        let cut = cut.index(whole.len());
        let (of_part, taken) = read_decimals(&whole[..cut], usize::MAX);
        let (of_whole, _) = read_decimals(&whole, usize::MAX);
        prop_assert!(of_whole.starts_with(&of_part));
        prop_assert_eq!(whole[..taken].iter().filter(|byte| **byte == b',').count(), of_part.len());
    }

    #[test]
    fn what_is_read_ahead_is_what_the_standard_library_reads(bits: u32) {
        let value = f32::from_bits(bits);
        prop_assume!(value.is_finite());
        let text = python(f64::from(value));
        if let Some(found) = leading(&text) {
            prop_assert_eq!(found.to_bits(), value.to_bits(), "{}", text);
        } else {
            // No log-probability of a sampled token has such a value.
            let magnitude = value.abs();
            let is_whole = magnitude == 0.0 || !text.contains('.');
            prop_assert!(is_whole || !(1e-18..1e3).contains(&magnitude), "{}", text);
        }
    }

    #[test]
    fn any_digits_are_read_ahead_as_the_standard_library_rounds(
        text in "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,24})?(e-[0-9]{2})?",
    ) {
        if let Some(found) = leading(&text) {
            prop_assert_eq!(found.to_bits(), standard(&text).to_bits(), "{}", text);
        }
    }

    #[test]
    fn small_digits_around_the_middle_round_right(bits in 0x1a00_0000_u32..0x5000_0000, digits in 1_usize..18) {
        let low = f64::from(f32::from_bits(bits));
        let high = f64::from(f32::from_bits(bits + 1));
        // Python writes an exponent with two digits.
        let written = format!("{:.*e}", digits, f64::midpoint(low, high));
        let parts = written.split_once("e-");
        let text = parts.map_or(written.clone(), |(digits, exponent)| format!("{digits}e-{exponent:0>2}"));
        if let Some(found) = leading(&text) {
            prop_assert_eq!(found.to_bits(), standard(&text).to_bits(), "{}", text);
        }
    }
}
