use fearless_simd::{Level, dispatch};
use proptest::prelude::*;

use super::*;

/// The places in all blocks of `text`, whose length has to be a multiple of the length of a block.
fn places_in(text: &[u8]) -> Vec<(bool, bool, bool)> {
    dispatch!(Level::new(), simd => {
        let mut strings = Strings::default();
        let mut found = Vec::new();
        for at in (0..text.len()).step_by(BLOCK_BYTES) {
            let places = strings.places(Block::load(simd, text, at).unwrap());
            let is_set = |mask: u64, bit: usize| mask >> bit & 1 == 1;
            found.extend((0..BLOCK_BYTES).map(|bit| {
                (is_set(places.opening, bit), is_set(places.closing, bit), is_set(places.between, bit))
            }));
        }
        found
    })
}

/// The places that [`places_in`] should find. This function reads one byte after the other.
fn expected_places(text: &[u8]) -> Vec<(bool, bool, bool)> {
    let (mut inside, mut escaped) = (false, false);
    let each = text.iter().map(|&byte| {
        let is_quote = byte == b'"' && !escaped;
        let places = (is_quote && !inside, is_quote && inside, !is_quote && !inside);
        inside ^= is_quote;
        escaped = byte == b'\\' && !escaped;
        places
    });
    each.collect()
}

#[test]
fn a_block_needs_all_its_bytes() {
    dispatch!(Level::new(), simd => {
        assert!(Block::load(simd, &[0; BLOCK_BYTES], 0).is_some());
        assert!(Block::load(simd, &[0; BLOCK_BYTES], 1).is_none());
        assert!(Block::load(simd, &[0; BLOCK_BYTES], usize::MAX).is_none());
    });
}

#[test]
fn the_bits_below_the_first_one_are_kept() {
    assert_eq!(below_first(0), u64::MAX);
    assert_eq!(below_first(1), 0);
    assert_eq!(below_first(0b101000), 0b111);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn strings_are_found_as_byte_by_byte(
        text in prop::collection::vec(prop::sample::select(b"\"\\\\\\a,".to_vec()), 4 * BLOCK_BYTES),
    ) {
        prop_assert_eq!(places_in(&text), expected_places(&text));
    }

    #[test]
    fn masks_are_what_comparisons_say(text in prop::array::uniform32(any::<u8>()), byte: u8) {
        let text = [text, text].concat();
        let mask_of = |is_set: &dyn Fn(u8) -> bool| {
            (0..).zip(&text).fold(0, |mask, (bit, byte)| mask | u64::from(is_set(*byte)) << bit)
        };
        // The best instructions of this machine, and those that every machine has.
        for level in [Level::new(), Level::baseline()] {
            let (digits, equal) = dispatch!(level, simd => {
                let block = Block::load(simd, &text, 0).unwrap();
                (block.digits(), block.equal_to(byte))
            });
            prop_assert_eq!(digits, mask_of(&|byte| byte.is_ascii_digit()));
            prop_assert_eq!(equal, mask_of(&|other| other == byte));
        }
    }
}
