//! The rule that decides which answer counts, on a model of two servers whose draws are independent.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::engine::{FinishReason, SampleOutput};

const PAIRS: u32 = 200_000;
/// Tokens a second of the two servers.
const SPEEDS: [f64; 2] = [10.0, 35.0];
/// The number of tokens of the first request when the copy begins.
const COPIED_AT: f64 = 300.0;

/// A length with a heavy tail, and a mean of 400.
fn length(random: &mut StdRng) -> f64 {
    (200.0 * (1.0 - random.random::<f64>()).powf(-0.5)).min(40_000.0).round()
}

fn generation(tokens: f64) -> Generation {
    let response_ids = vec![7; tokens as usize];
    let sample = SampleOutput {
        logprobs: Vec::new(),
        finish_reason: FinishReason::Stop,
        version_spans: Vec::new(),
        response_ids,
    };
    Generation { samples: vec![sample] }
}

/// The length of the answer that counts, and of the answer that ends first.
fn counted(first: f64, copy: f64) -> (f64, f64) {
    let [slow, fast] = SPEEDS;
    let ends = [first / slow, COPIED_AT / slow + copy / fast];
    let (ended, other, running) = match ends[0] <= ends[1] {
        true => (first, copy, (ends[0] - COPIED_AT / slow).max(0.0) * fast),
        false => (copy, first, ends[1] * slow),
    };
    let counts = if is_ahead(&generation(ended), running) { ended } else { other };
    (counts, ended)
}

#[test]
fn the_answer_that_counts_is_as_long_as_a_draw_and_the_first_to_end_is_shorter() {
    let mut random = StdRng::seed_from_u64(7);
    let (mut drawn, mut by_rule, mut by_end) = (0.0, 0.0, 0.0);
    for _ in 0..PAIRS {
        let (first, copy) = (length(&mut random), length(&mut random));
        // A request that ends before the copy begins has no copy.
        let (counts, ended) = if first <= COPIED_AT { (first, first) } else { counted(first, copy) };
        drawn += (first + copy) / 2.0;
        by_rule += counts;
        by_end += ended;
    }
    let (rule, end) = (by_rule / drawn, by_end / drawn);
    assert!((0.98..1.02).contains(&rule), "by the rule: {rule}");
    assert!(end < 0.9, "by the first end: {end}");
}
