#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

const SAMPLES: u32 = 16;
const CHOOSING: HistoryConfig = HistoryConfig { sampling: Sampling::Difficulty, keep_min: 0.1 };

fn group(uid: u64, visit: u32, number: u64, right: u32) -> GradedGroup {
    let figures = GroupFigures { samples: SAMPLES, tokens: 16_000, right: f64::from(right) };
    let is_valid = right > 0 && right < SAMPLES;
    GradedGroup { prompt_uid: PromptUid(uid), visit, number, figures, is_valid }
}

/// An epoch in which every count of right samples occurs in equally many groups.
fn epoch_of(prompts: u64) -> PromptHistory {
    let mut history = PromptHistory::default();
    for uid in 0..prompts {
        history.sent(0, uid);
        history.graded(&group(uid, 0, uid, (uid % 17) as u32));
    }
    history
}

fn chance(history: &PromptHistory, uid: u64, visit: u32, next: u64) -> Chance {
    history.chance(&CHOOSING, SAMPLES, (PromptUid(uid), visit), next).unwrap()
}

#[test]
fn a_prompt_without_a_graded_group_has_no_chance() {
    let history = epoch_of(10);
    assert_eq!(history.chance(&CHOOSING, SAMPLES, (PromptUid(10), 1), 10), None);
    assert!((Chance::weight_of(None) - 1.0).abs() < f32::EPSILON);
}

#[test]
fn prompts_of_medium_difficulty_are_kept_most_often() {
    let history = epoch_of(17 * 100);
    let keeps: Vec<f32> = (0..17).map(|right| chance(&history, right, 1, 1700).keep).collect();
    assert!(keeps[..9].windows(2).all(|pair| pair[0] < pair[1]), "{keeps:?}");
    assert!(keeps[8..].windows(2).all(|pair| pair[0] > pair[1]), "{keeps:?}");
    // With a uniform prior, the next group of a prompt with 0 of 16 right samples is valid with a probability
    // of nearly 1 - (16 + 1)/(32 + 1). The chance of 16 right samples in this group is negligible.
    let valid = chance(&history, 0, 1, 1700).valid;
    assert!((f64::from(valid) - (1.0 - 17.0 / 33.0)).abs() < 0.01, "{valid}");
}

#[test]
fn long_prompts_are_kept_less_often_and_weigh_more() {
    let mut history = epoch_of(17 * 100);
    let mut long = group(5000, 0, 1700, 8);
    long.figures.tokens *= 4;
    history.graded(&long);
    let (usual, long) = (chance(&history, 8, 1, 1701), chance(&history, 5000, 1, 1701));
    assert!(long.keep < usual.keep && long.weight() > usual.weight(), "{usual:?} {long:?}");
    assert!((long.valid - usual.valid).abs() < 1e-6, "length says nothing about validity");
}

#[test]
fn no_chance_is_below_keep_min_and_no_weight_above_its_inverse() {
    let mut history = PromptHistory::default();
    for number in 0..4096 {
        history.graded(&group(number, 0, number, 0));
    }
    let hopeless = chance(&history, 7, 1, 4096);
    assert!((hopeless.keep - 0.1).abs() < 1e-6 && (hopeless.weight() - 10.0).abs() < 1e-4, "{hopeless:?}");
    let all = HistoryConfig { sampling: Sampling::All, ..CHOOSING };
    let kept = history.chance(&all, SAMPLES, (PromptUid(7), 1), 4096).unwrap();
    assert!((kept.keep - 1.0).abs() < f32::EPSILON && kept.valid < 0.1, "{kept:?}");
}

#[test]
fn equal_prompts_have_equal_weights() {
    let mut history = PromptHistory::default();
    (0..1000).for_each(|number| history.graded(&group(number, 0, number, 8)));
    let keeps: Vec<f32> = (0..1000).map(|uid| chance(&history, uid, 1, 1000).keep).collect();
    assert!(keeps.iter().all(|keep| (keep - keeps[0]).abs() < f32::EPSILON), "{:?}", &keeps[..4]);
}

#[test]
fn a_second_result_of_a_visit_does_not_count() {
    let mut history = epoch_of(100);
    let once = history.clone();
    history.graded(&group(3, 0, 3, 3));
    history.graded(&group(3, 0, 200, 16));
    assert_eq!(history, once);
    history.graded(&group(3, 1, 103, 16));
    let record = history.prompt(PromptUid(3)).unwrap();
    assert_eq!((record.groups, record.valid), (2, 1));
    // The first group has 3 of 16 right samples, and the second group has 16 of 16. The first group has half
    // the weight of the second group.
    assert!((record.accuracy() - (1.5 + 16.0) / 24.0).abs() < 1e-6);
    assert!((record.length() - 1000.0).abs() < 1e-3);
}

#[test]
fn the_order_in_which_groups_end_does_not_matter() {
    let forwards = epoch_of(2000);
    let mut backwards = PromptHistory::default();
    (0..2000).rev().for_each(|uid| backwards.graded(&group(uid, 0, uid, (uid % 17) as u32)));
    for uid in 0..17 {
        assert_eq!(chance(&forwards, uid, 1, 2000), chance(&backwards, uid, 1, 2000));
    }
}

#[test]
fn results_of_the_epoch_itself_change_nothing_for_other_prompts() {
    let mut history = epoch_of(1024);
    let before = chance(&history, 5, 1, 1024);
    for uid in 100..600 {
        let number = 924 + uid;
        history.sent(1, number);
        history.graded(&group(uid, 1, number, 0));
    }
    assert_eq!(chance(&history, 5, 1, 1524), before);
}

/// The gates of this run do not depend on right and wrong samples: groups of even prompts are valid.
#[test]
fn without_agreement_of_gates_and_accuracy_the_gates_count() {
    let mut history = PromptHistory::default();
    for uid in 0..1000 {
        history.graded(&GradedGroup { is_valid: uid % 2 == 0, ..group(uid, 0, uid, 0) });
    }
    let (even, odd) = (chance(&history, 0, 1, 1000), chance(&history, 1, 1, 1000));
    // The prior has the weight of two groups, one of them valid.
    assert!(
        (even.valid - 2.0 / 3.0).abs() < 0.01 && (odd.valid - 1.0 / 3.0).abs() < 0.01,
        "{even:?} {odd:?}"
    );
}

#[test]
fn the_share_of_kept_prompts_is_the_probability_in_every_epoch() {
    for visit in 1..5 {
        let kept = |keep: f32| (0..10_000).filter(|uid| is_kept(9, PromptUid(*uid), visit, keep)).count();
        assert_eq!((kept(1.0), kept(f32::MIN_POSITIVE)), (10_000, 0));
        assert!((2850..3150).contains(&kept(0.3)), "visit={visit}: {}", kept(0.3));
    }
    let both = (0..10_000).filter(|uid| [1, 2].iter().all(|visit| is_kept(9, PromptUid(*uid), *visit, 0.3)));
    assert!((800..1000).contains(&both.count()), "draws of different epochs are independent");
}

#[test]
fn a_prompt_takes_32_bytes() {
    assert_eq!(size_of::<(PromptUid, PromptRecord)>(), 32);
}
