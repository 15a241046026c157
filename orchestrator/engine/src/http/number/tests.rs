use proptest::prelude::*;

use super::*;

/// The standard library's value of a number that obeys JSON's grammar.
fn standard(text: &str) -> f32 {
    text.parse().unwrap()
}

#[test]
fn hard_cases_round_as_the_standard_library_rounds() {
    let cases = [
        "0",
        "-0",
        "0.0",
        "1",
        "-1.5",
        "-9999.0",
        "16777217",
        "16777217.0",
        "16777219",
        "33554433",
        // Exactly in the middle between two `f32`, slightly above it, and slightly below it.
        "1.00000005960464477539",
        "1.000000059604644775",
        "1.0000000596046448",
        "1.00000017881393432617",
        "3.4028235e38",
        "340282350000000000000000000000000000000",
        "1e39",
        "-1e400",
        "1e-46",
        "1.4e-45",
        "0.000000000000000000000000000000000000011754943",
        "0.0000000000000000000001",
        "1E+2",
        "2e-3",
        "-10.00468635559082",
        "-0.15121398866176605",
        "18446744073709551615",
        "99999999999999999999",
    ];
    for text in cases {
        let found = parse_f32(text.as_bytes()).unwrap();
        assert_eq!(found.to_bits(), standard(text).to_bits(), "{text}");
    }
}

#[test]
fn what_json_forbids_is_none() {
    let cases = [
        "", "-", "+1", "01", "-01", "1.", ".5", "1.e3", "1e", "1e+", "1-2", "1.2.3", "nan", "inf", "0x1",
        " 1", "1 ", "--1", "1_000", "1e1.5",
    ];
    for text in cases {
        assert_eq!(parse_f32(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn ids_are_plain_integers_of_32_bits() {
    assert_eq!(parse_u32(b"0"), Some(0));
    assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
    for text in ["", "4294967296", "99999999999", "-1", "1.0", "01", "00", "1e3", " 1"] {
        assert_eq!(parse_u32(text.as_bytes()), None, "{text:?}");
    }
}

/// The text after a number. It is long enough to load eight bytes at the end of the number.
const REST: &[u8] = b",0,0,0,0,0";

/// The value that [`leading_f32`] reads from `text` and a comma, if it reads all of `text`.
fn leading(text: &str) -> Option<f32> {
    let bytes = [b"[", text.as_bytes(), REST].concat();
    leading_f32(&bytes, 1).filter(|(_, end)| *end == text.len() + 1).map(|(value, _)| value)
}

#[test]
fn the_numbers_of_engines_are_read_ahead() {
    for text in [
        "0",
        "0.0",
        "-0.0",
        "-9999.0",
        "-10.00468635559082",
        "-0.15121398866176605",
        "-0.00012345678987540305",
        "-0.00010000000474974513",
        "0.0000000000000000000012345",
        "-1.1920928955078125e-07",
        "-7.152555099310121e-07",
        "-9.999999747378752e-05",
        "-3e-05",
        "1234567",
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
        "12345678",
        "1.00000005960464477539",
        "1e-99999999",
        "1e-51",
        "1.4e-45",
        " 1",
    ] {
        assert_eq!(leading(text), None, "{text:?}");
    }
    assert_eq!(leading_f32(b"-0.5", 0), None, "the chunk may end in the middle of the number");
}

#[test]
fn ids_are_read_ahead_as_they_are_parsed() {
    for text in ["0", "7", "10", "151643", "9999999"] {
        let bytes = [text.as_bytes(), REST].concat();
        assert_eq!(leading_u32(&bytes, 0), parse_u32(text.as_bytes()).map(|value| (value, text.len())));
    }
    for text in ["", "-1", "01", "00", "12345678", " 1"] {
        assert_eq!(leading_u32(&[text.as_bytes(), REST].concat(), 0), None, "{text:?}");
    }
    assert_eq!(leading_u32(b"1234567", 0), None);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn every_f32_survives_being_written_as_a_double(bits: u32) {
        let value = f32::from_bits(bits);
        prop_assume!(value.is_finite());
        // The text that Python writes: the shortest digits of the value as a double.
        let text = format!("{:?}", f64::from(value));
        prop_assert_eq!(parse_f32(text.as_bytes()).unwrap().to_bits(), value.to_bits(), "{}", text);
    }

    #[test]
    fn any_digits_round_as_the_standard_library_rounds(text in "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,28})?") {
        prop_assert_eq!(parse_f32(text.as_bytes()).unwrap().to_bits(), standard(&text).to_bits(), "{}", text);
    }

    #[test]
    fn digits_around_the_middle_of_two_f32_round_right(bits in 0x2000_0000_u32..0x5000_0000, digits in 1_usize..20) {
        let low = f64::from(f32::from_bits(bits));
        let high = f64::from(f32::from_bits(bits + 1));
        let text = format!("{:.*}", digits, f64::midpoint(low, high));
        prop_assert_eq!(parse_f32(text.as_bytes()).unwrap().to_bits(), standard(&text).to_bits(), "{}", text);
    }

    #[test]
    fn written_integers_read_back(value: u64) {
        let mut buffer = b"x".to_vec();
        push_u64(&mut buffer, value);
        prop_assert_eq!(buffer, format!("x{value}").into_bytes());
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
            prop_assert!(!(1e-20..1e7).contains(&magnitude), "{}", text);
        }
    }

    #[test]
    fn any_digits_are_read_ahead_as_the_standard_library_rounds(
        text in "-?(0|[1-9][0-9]{0,8})(\\.[0-9]{1,18})?(e-[0-9]{1,2})?",
    ) {
        if let Some(found) = leading(&text) {
            prop_assert_eq!(found.to_bits(), standard(&text).to_bits(), "{}", text);
        }
    }

    #[test]
    fn small_digits_around_the_middle_round_right(bits in 0x1a00_0000_u32..0x5000_0000, digits in 1_usize..18) {
        let low = f64::from(f32::from_bits(bits));
        let high = f64::from(f32::from_bits(bits + 1));
        let text = format!("{:.*e}", digits, f64::midpoint(low, high));
        if let Some(found) = leading(&text) {
            prop_assert_eq!(found.to_bits(), standard(&text).to_bits(), "{}", text);
        }
    }
}
