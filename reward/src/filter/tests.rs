use proptest::prelude::*;

use super::{FilterMetric, FilterReason, GroupFilter, kept_by_deviation, varies};

const BY_ACC: GroupFilter = GroupFilter { enable: true, metric: FilterMetric::Acc };
const BY_REWARD: GroupFilter = GroupFilter { enable: true, metric: FilterMetric::Reward };

#[test]
fn check_returns_the_reason_of_each_rejection() {
    let shaped = [1.0, 0.5];
    assert_eq!(BY_ACC.check(&[1.0, 1.0], &shaped), Err(FilterReason::AllRight));
    assert_eq!(BY_ACC.check(&[0.0, 0.0], &shaped), Err(FilterReason::AllWrong));
    assert_eq!(BY_ACC.check(&[0.5, 0.5], &shaped), Err(FilterReason::EqualAccs));
    assert_eq!(BY_ACC.check(&[], &[]), Err(FilterReason::Empty));
    assert_eq!(BY_ACC.check(&[1.0, 0.0], &shaped), Ok(()));
    assert_eq!(BY_REWARD.check(&[1.0, 0.0], &[0.5, 0.5]), Err(FilterReason::EqualRewards));
}

#[test]
fn shaping_makes_only_the_rewards_differ() {
    let (accs, shaped) = ([1.0; 3], [1.0, 1.0, 0.75]);
    assert_eq!(BY_REWARD.check(&accs, &shaped), Ok(()));
    assert_eq!(BY_ACC.check(&accs, &shaped), Err(FilterReason::AllRight));
}

#[test]
fn the_published_rules_differ_on_a_single_sample() {
    assert!(!varies(&[1.0]) && kept_by_deviation(&[1.0]));
    assert_eq!(BY_ACC.check(&[1.0], &[1.0]), Err(FilterReason::AllRight));
}

#[test]
fn a_filter_that_is_off_lets_everything_pass() {
    let off = GroupFilter { enable: false, ..BY_ACC };
    assert_eq!(off.check(&[0.0; 4], &[0.0; 4]), Ok(()));
}

#[test]
fn missing_keys_have_defaults_and_unknown_ones_are_refused() {
    let read = serde_json::from_str::<GroupFilter>;
    assert_eq!(read(r#"{"metric": "reward"}"#).unwrap(), BY_REWARD);
    assert!(read(r#"{"metrics": "acc"}"#).is_err());
}

proptest! {
    #[test]
    fn reversing_the_samples_does_not_change_the_result(mut values in prop::collection::vec(prop::sample::select(vec![0.0_f32, 0.5, 1.0]), 0..12)) {
        let verdict = BY_ACC.check(&values, &values);
        values.reverse();
        prop_assert_eq!(BY_ACC.check(&values, &values), verdict);
    }
}
