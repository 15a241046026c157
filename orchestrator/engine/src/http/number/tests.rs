use fearless_simd::{Level, dispatch};
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

/// The text after a number. It is long enough to load a block at the beginning of the number.
const REST: &[u8] = &[b','; BLOCK_BYTES];

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

/// The ids that [`integers`] reads up to `most` of them, and the number of bytes that they take.
fn read_integers(bytes: &[u8], most: usize) -> (Vec<u32>, usize) {
    let mut found = Vec::new();
    let taken = dispatch!(Level::new(), simd => integers(simd, bytes, |ids| {
        let count = ids.len().min(most - found.len());
        found.extend_from_slice(&ids[..count]);
        count
    }));
    (found, taken)
}

#[test]
fn integers_end_before_another_form() {
    for (text, count) in
        [("1,22,333,-4,5,", 3), ("7,,8,", 1), ("0,10,012,1,", 2), ("1,12345678,", 1), ("x,", 0), ("1.5,", 0)]
    {
        let expected: Vec<u32> = text.split(',').take(count).map(|id| id.parse().unwrap()).collect();
        let length: usize = text.split_inclusive(',').take(count).map(str::len).sum();
        let bytes = [text.as_bytes(), &[b'x'; BLOCK_BYTES + LANES]].concat();
        assert_eq!(read_integers(&bytes, usize::MAX), (expected, length), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn integers_are_read_up_to_the_last_one_that_is_taken(
        ids in prop::collection::vec(prop_oneof![0_u32..10, 0_u32..9_999_999], 0..100), most in 0_usize..120,
    ) {
        let text: String = ids.iter().map(|id| format!("{id},")).collect();
        let bytes = [text.as_bytes(), &[b']'; BLOCK_BYTES + LANES]].concat();
        let (found, taken) = read_integers(&bytes, most);
        let count = ids.len().min(most);
        prop_assert_eq!(&found[..], &ids[..count]);
        let length: usize = text.split_inclusive(',').take(count).map(str::len).sum();
        prop_assert_eq!(taken, length);
    }

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
}
