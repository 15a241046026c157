use proptest::prelude::*;

use super::*;

#[test]
fn eight_bytes_are_needed() {
    assert_eq!(load(b"1234567", 0), None);
    assert_eq!(load(b"x12345678", 1), load(b"12345678", 0));
    assert_eq!(load(b"12345678", 1), None);
    assert_eq!(load(b"12345678", usize::MAX), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn digits_and_quotes_are_found_as_byte_by_byte(
        bytes in prop::array::uniform8(prop_oneof![b'0'..=b'9', prop::sample::select(b"\"\\/:.,-\0\xff\xb0\x7f".to_vec()), any::<u8>()]),
    ) {
        let lanes = load(&bytes, 0).unwrap();
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
        prop_assert_eq!(leading_digits(lanes), digits);
        let quote = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(8);
        prop_assert_eq!(quote_or_backslash(lanes), quote);
        for count in 1..=digits {
            let value: u64 = std::str::from_utf8(&bytes[..count]).unwrap().parse().unwrap();
            prop_assert_eq!(value_of_digits(lanes, count), value);
        }
    }
}
