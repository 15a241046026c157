use proptest::prelude::*;

use super::Overlong;
use crate::invariants;

const PUBLISHED: Overlong = Overlong { max_response_length: 8192, buffer_length: 512, penalty_factor: 1.0 };

#[test]
fn the_penalty_grows_over_the_buffer() {
    for (length, penalty) in [(0, 0.0), (7680, 0.0), (7681, -1.0 / 512.0), (7936, -0.5), (8192, -1.0)] {
        assert_eq!(PUBLISHED.penalty(length), penalty, "{length} tokens");
    }
}

#[test]
fn no_buffer_means_no_penalty() {
    assert_eq!(Overlong { buffer_length: 0, ..PUBLISHED }.penalty(u32::MAX), 0.0);
}

proptest! {
    #[test]
    fn longer_is_never_better(limit: u32, buffer: u32, factor in 0.0..10.0, length in 0..u32::MAX) {
        let shaping = Overlong { max_response_length: limit, buffer_length: buffer, penalty_factor: factor };
        prop_assert_eq!(invariants::penalty_is_sound(shaping.penalty(length)), Ok(()));
        prop_assert!(shaping.penalty(length + 1) <= shaping.penalty(length));
    }
}
