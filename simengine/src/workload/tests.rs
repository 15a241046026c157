use std::sync::Arc;

use proptest::prelude::*;

use super::{Plan, PlanRequest, Workload, WorkloadConfig};
use crate::request::FinishReason;
use crate::{Answer, AnswerTable, NoAnswers};

const ENDS: PlanRequest<'static> = PlanRequest {
    max_tokens: 100_000,
    min_tokens: 0,
    ignore_eos: false,
    stop_token_ids: &[],
    stop_scan: None,
};

fn table(difficulty: Option<f32>) -> AnswerTable {
    let mut table = AnswerTable::new();
    let answer = Answer { right_ids: [7, 8].into(), wrong_ids: [7, 9].into(), difficulty };
    table.insert(&[1, 2, 3], answer);
    table
}

#[test]
fn a_right_response_ends_in_the_right_answer() {
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let key = table(Some(0.5));
    let answer = crate::AnswerKey::answer(&key, crate::answer::prompt_hash(&[1, 2, 3]));
    let mut rights = 0;
    for seed in 0..200 {
        let draw = workload.draw(&[1, 2, 3], seed, &key);
        let plan = Plan::new(&workload, draw, answer.as_ref(), ENDS);
        let tokens = plan.token_ids(0, plan.total);
        assert_eq!(tokens.len(), draw.length as usize);
        let expected: &[u32] = if draw.correct { &[7, 8, 0] } else { &[7, 9, 0] };
        assert!(tokens.ends_with(expected));
        assert_eq!(plan.finish_reason, FinishReason::Stop);
        rights += u32::from(draw.correct);
    }
    assert!((60..140).contains(&rights), "half of them in the mean, not {rights}");
}

#[test]
fn difficulty_decides_at_its_ends() {
    let workload = Workload::new(WorkloadConfig::default());
    let rights = |difficulty| {
        let key = table(difficulty);
        (0..50).filter(|seed| workload.draw(&[1, 2, 3], *seed, &key).correct).count()
    };
    assert_eq!(rights(Some(0.0)), 50);
    assert_eq!(rights(Some(1.0)), 0);
}

#[test]
fn pass_chances_are_u_shaped_and_hard_prompts_long() {
    let workload = Workload::new(WorkloadConfig::default());
    let prompts = 4_000_u32;
    let (mut extreme, mut middle, mut easy_length, mut hard_length) = (0, 0, (0_u64, 0_u64), (0_u64, 0_u64));
    for prompt in 0..prompts {
        let hash = crate::answer::prompt_hash(&[prompt]);
        let difficulty = workload.difficulty(hash, None);
        let chance = workload.pass_chance(difficulty);
        extreme += u32::from(!(0.1..=0.9).contains(&chance));
        middle += u32::from((0.4..=0.6).contains(&chance));
        let length = u64::from(workload.draw_hashed(hash, 0, None).length);
        let bin = if difficulty < 0.5 { &mut easy_length } else { &mut hard_length };
        *bin = (bin.0 + length, bin.1 + 1);
    }
    // Both ranges have a total width of 0.2.
    assert!(extreme > 3 * middle, "{extreme} and {middle} of {prompts}");
    assert!(hard_length.0 / hard_length.1 > easy_length.0 / easy_length.1 * 3 / 2);
}

#[test]
fn lengths_have_the_median_and_the_tail_of_their_distribution() {
    let workload = Workload::new(WorkloadConfig::default());
    let mut lengths: Vec<u32> =
        (0..10_001).map(|seed| workload.draw(&[1, 2, 3], seed, &table(Some(0.0))).length).collect();
    lengths.sort_unstable();
    let (median, high) = (f64::from(lengths[5_000]), f64::from(lengths[9_772]));
    assert!((median / 400.0 - 1.0).abs() < 0.05, "{median}");
    // Two standard deviations above the median: exp(2 * 0.6).
    assert!((high / median / 1.2_f64.exp() - 1.0).abs() < 0.1, "{high}");
}

#[test]
fn filler_that_cannot_encode_a_signature_writes_none() {
    for filler_ids in [vec![], vec![5], (100..150).collect(), [vec![7], (0..100).collect()].concat()] {
        let workload = Arc::new(Workload::new(WorkloadConfig { filler_ids, ..WorkloadConfig::default() }));
        let draw = workload.draw(&[4], 1, &NoAnswers);
        let tokens = Plan::new(&workload, draw, None, ENDS).token_ids(0, 30);
        assert_eq!(workload.recognise(&tokens), None);
    }
}

#[test]
fn a_stop_token_ends_a_sample_with_itself() {
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let draw = workload.draw(&[4], 1, &NoAnswers);
    let free = Plan::new(&workload, draw, None, ENDS);
    let tokens = free.token_ids(0, free.total);
    let stops = [tokens[5]];
    let stopped = Plan::new(&workload, draw, None, PlanRequest { stop_token_ids: &stops, ..ENDS });
    let first = tokens.iter().position(|token| *token == stops[0]).unwrap();
    assert_eq!(stopped.total as usize, first + 1);
    assert_eq!(stopped.stop_token_id, Some(stops[0]));
    let later =
        Plan::new(&workload, draw, None, PlanRequest { stop_token_ids: &stops, min_tokens: 8, ..ENDS });
    assert!(later.total >= 8);
}

proptest! {
    #[test]
    fn any_part_of_a_sample_is_a_part_of_the_whole(
        seed in any::<u64>(), start in 0_u32..300, span in 0_u32..300, ignore_eos in any::<bool>(),
    ) {
        let workload = Arc::new(Workload::new(WorkloadConfig::default()));
        let key = table(None);
        let answer = crate::AnswerKey::answer(&key, crate::answer::prompt_hash(&[1, 2, 3]));
        let draw = workload.draw(&[1, 2, 3], seed, &key);
        let ends = PlanRequest { max_tokens: 700, min_tokens: 600, ignore_eos, ..ENDS };
        let plan = Plan::new(&workload, draw, answer.as_ref(), ends);
        prop_assert!(plan.total >= 600 && plan.total <= 700);
        let (whole, logprobs) = plan.outputs(0, plan.total, None);
        let range = start as usize..(start + span) as usize;
        let (part, part_logprobs) = plan.outputs(start, start + span, None);
        prop_assert_eq!(&part[..], &whole[range.clone()]);
        prop_assert_eq!(&part_logprobs[..], &logprobs[range]);
        prop_assert!(logprobs.iter().all(|logprob| *logprob < 0.0 && logprob.is_finite()));
    }

    #[test]
    fn what_is_left_of_a_sample_is_its_rest(seed in any::<u64>(), share in 0.0..1.0_f64, ignore_eos in any::<bool>()) {
        let workload = Arc::new(Workload::new(WorkloadConfig::default()));
        let key = table(None);
        let answer = crate::AnswerKey::answer(&key, crate::answer::prompt_hash(&[1, 2, 3]));
        let draw = workload.draw(&[1, 2, 3], seed, &key);
        let ends = PlanRequest { max_tokens: 900, ignore_eos, ..ENDS };
        let plan = Plan::new(&workload, draw, answer.as_ref(), ends);
        let (tokens, logprobs) = plan.outputs(0, plan.total, None);
        let cut = (f64::from(plan.total) * share) as usize;
        let rest = plan.clone().after(&tokens[..cut]).unwrap();
        prop_assert_eq!(rest.total as usize, tokens.len() - cut);
        prop_assert_eq!(rest.finish_reason, plan.finish_reason);
        let left = (tokens[cut..].to_vec(), logprobs[cut..].to_vec());
        prop_assert_eq!(rest.outputs(0, rest.total, None), left);
        // There is no rest if nothing is left, or if the tokens are not those of the sample.
        prop_assert!(plan.clone().after(&tokens).is_none());
        let mut other = tokens[..=cut.min(tokens.len() - 1)].to_vec();
        other[cut / 2] ^= 1;
        prop_assert!(plan.after(&other).is_none());
    }

    #[test]
    fn a_prompt_that_ends_in_the_beginning_of_a_sample_shows_which(
        prompt in prop::collection::vec(0_u32..1_500, 1..300), seed in any::<u64>(), cut in 0_usize..60,
    ) {
        let workload = Arc::new(Workload::new(WorkloadConfig::default()));
        prop_assert_eq!(workload.recognise(&prompt), None);
        let draw = workload.draw(&prompt, seed, &NoAnswers);
        let ends = PlanRequest { max_tokens: 60, ignore_eos: true, ..ENDS };
        let tokens = Plan::new(&workload, draw, None, ends).token_ids(0, 60);
        let longer = [&prompt[..], &tokens[..cut]].concat();
        // A signature has 96 bits, and each token encodes ten of them.
        let expected = (cut >= 10).then_some((prompt.len(), draw.identity));
        prop_assert_eq!(workload.recognise(&longer), expected);
    }
}
