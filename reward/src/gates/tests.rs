use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{FilterMetric, GroupFilter};

fn gates(value: serde_json::Value) -> Gates {
    Gates::new(&serde_json::from_value(value).unwrap()).unwrap()
}

fn one(rule: serde_json::Value) -> Gates {
    gates(json!({"gates": [rule]}))
}

/// Checks a group whose rewards equal its accs, with no truncated sample and one token per sample.
fn check(gates: &Gates, accs: &[f32]) -> Result<(), Rejection> {
    let (truncated, tokens) = (vec![false; accs.len()], vec![1; accs.len()]);
    gates.check(&GroupView { accs, rewards: accs, truncated: &truncated, tokens: &tokens }, true)
}

fn reason(verdict: Result<(), Rejection>) -> Option<(&'static str, f64)> {
    verdict.err().map(|rejection| (rejection.reason, rejection.value))
}

#[test]
fn variance_is_exact_or_by_tolerance() {
    let exact = one(json!({"gate": "variance", "metric": "acc"}));
    assert_eq!(reason(check(&exact, &[0.0, 1.0])), None);
    assert_eq!(reason(check(&exact, &[1.0, 1.0])), Some(("all_right", 0.0)));
    assert_eq!(reason(check(&exact, &[])), Some(("empty", 0.0)));
    let tolerant = one(json!({"gate": "variance", "metric": "reward", "tolerance": 0.25}));
    assert_eq!(reason(check(&tolerant, &[0.5, 0.75, 0.5])), Some(("within_tolerance", 0.25)));
    assert_eq!(reason(check(&tolerant, &[0.5, 0.8125, 0.5])), None);
    assert_eq!(reason(check(&tolerant, &[0.5, 0.5])), Some(("equal_rewards", 0.0)));
    assert_eq!(reason(check(&tolerant, &[f32::NAN, 0.5])), None, "as the published rule has it");
    assert_eq!(reason(check(&tolerant, &[f32::INFINITY, f32::INFINITY])), Some(("equal_rewards", 0.0)));
}

#[test]
fn the_mean_lies_in_a_range() {
    let middle = one(json!({"gate": "mean_range", "min": 0.25, "max": 0.75}));
    assert_eq!(reason(check(&middle, &[0.0, 0.0, 0.0, 1.0])), None, "bounds pass");
    assert_eq!(reason(check(&middle, &[0.0, 0.0])), Some(("mean_too_low", 0.0)));
    assert_eq!(reason(check(&middle, &[1.0, 1.0])), Some(("mean_too_high", 1.0)));
    assert_eq!(check(&middle, &[]).unwrap_err().reason, "no_mean");
    assert_eq!(check(&middle, &[f32::NAN]).unwrap_err().reason, "no_mean");
    let open = one(json!({"gate": "mean_range", "metric": "reward", "min": 0.5}));
    assert_eq!(reason(check(&open, &[9.0])), None);
}

#[test]
fn samples_cuts_and_lengths_are_counted() {
    let group = GroupView {
        accs: &[0.0, 1.0],
        rewards: &[-1.0, 1.0],
        truncated: &[true, false],
        tokens: &[100, 300],
    };
    for (rule, expected) in [
        (json!({"gate": "min_samples", "samples": 2}), None),
        (json!({"gate": "min_samples", "samples": 3}), Some(("too_few_samples", 2.0))),
        (json!({"gate": "truncated", "share_max": 0.5}), None),
        (json!({"gate": "truncated", "share_max": 0.25}), Some(("too_many_truncated", 0.5))),
        (json!({"gate": "length", "mean_tokens_min": 200, "mean_tokens_max": 200}), None),
        (json!({"gate": "length", "mean_tokens_min": 201}), Some(("too_short", 200.0))),
        (json!({"gate": "length", "mean_tokens_max": 199.5}), Some(("too_long", 200.0))),
        (json!({"gate": "mean_range", "metric": "reward", "min": 0.1}), Some(("mean_too_low", 0.0))),
    ] {
        assert_eq!(reason(one(rule.clone()).check(&group, true)), expected, "{rule}");
    }
    let without_samples = GroupView { accs: &[], rewards: &[], truncated: &[], tokens: &[] };
    let length = one(json!({"gate": "length", "mean_tokens_min": 1}));
    assert_eq!(length.check(&without_samples, true).unwrap_err().reason, "no_length");
}

#[test]
fn a_mean_that_equals_a_bound_in_single_precision_passes() {
    let exactly = one(json!({"gate": "mean_range", "metric": "reward", "min": 0.7, "max": 0.7}));
    for (rewards, expected) in [
        ([0.7_f32, 0.7], None),
        ([0.4, 1.0], None),
        ([0.699_99, 0.7], Some("mean_too_low")),
        ([0.7, 0.700_01], Some("mean_too_high")),
    ] {
        let group =
            GroupView { accs: &[0.0, 1.0], rewards: &rewards, truncated: &[false; 2], tokens: &[1, 1] };
        let found = reason(exactly.check(&group, true)).map(|(reason, _)| reason);
        assert_eq!(found, expected, "{rewards:?}");
    }
}

#[test]
fn a_group_yields_when_every_gate_behind_its_rejection_does() {
    let gates = gates(json!({
        "gates": [
            {"gate": "variance"},
            {"gate": "mean_range", "max": 0.75},
            {"name": "few", "gate": "min_samples", "samples": 2},
        ],
        "keep_if_short": {"gates": ["variance", "mean_range"]},
    }));
    let soft = check(&gates, &[1.0, 1.0]).unwrap_err();
    assert_eq!((&*soft.gate, soft.reason, soft.yields), ("variance", "all_right", true));
    let hard = check(&gates, &[1.0]).unwrap_err();
    assert_eq!((&*hard.gate, hard.value, hard.yields), ("few", 1.0, false), "the hard gate is named");
    gates.kept_if_short(&soft);
    gates.kept_if_short(&hard);
    check(&gates, &[0.0, 1.0]).unwrap();
    let counts: Vec<_> =
        gates.counts().into_iter().map(|gate| (gate.seen, gate.passed, gate.rejected, gate.kept)).collect();
    assert_eq!(counts, [(3, 1, 2, 1), (3, 1, 2, 0), (3, 2, 1, 0)]);
}

#[test]
fn counts_go_on_from_those_of_an_earlier_process() {
    let gates = one(json!({"gate": "variance"}));
    gates.go_on("variance", 10, 5, 2);
    gates.go_on("a gate that is gone", 1, 1, 1);
    check(&gates, &[0.0, 1.0]).unwrap();
    let accs = [1.0, 1.0];
    let again = GroupView { accs: &accs, rewards: &accs, truncated: &[false; 2], tokens: &[1; 2] };
    assert!(gates.check(&again, false).is_err(), "a verdict that is not counted");
    let [counts] = <[_; 1]>::try_from(gates.counts()).unwrap();
    assert_eq!((counts.seen, counts.passed, counts.rejected, counts.kept), (16, 11, 5, 2));
    counts.add_up().unwrap();
}

#[test]
fn gates_of_users_are_gates() {
    struct Odd;
    impl Gate for Odd {
        fn check(&self, group: &GroupView<'_>) -> Result<(), Refusal> {
            let samples = group.accs.len();
            if samples % 2 == 1 { Ok(()) } else { Err(Refusal { reason: "even", value: samples as f64 }) }
        }
    }
    let mut gates = one(json!({"gate": "variance"}));
    gates.push("odd", Box::new(Odd), true).unwrap();
    assert!(gates.push("odd", Box::new(Odd), true).is_err());
    assert_eq!(reason(check(&gates, &[0.0, 1.0, 1.0])), None);
    let even = check(&gates, &[0.0, 1.0]).unwrap_err();
    assert_eq!((&*even.gate, even.reason, even.yields), ("odd", "even", true));
    for index in 2..GATES_MAX {
        gates.push(&index.to_string(), Box::new(Odd), false).unwrap();
    }
    assert!(gates.push("one more", Box::new(Odd), false).is_err());
}

#[test]
fn no_gate_lets_everything_pass() {
    let none = gates(json!({}));
    assert_eq!(check(&none, &[]), Ok(()));
    assert!(none.counts().is_empty());
    assert!(none.only_compare() && none.differ(&Finished::default()), "every group passes");
    assert!(!one(json!({"gate": "min_samples", "samples": 2})).only_compare());
}

#[test]
fn configurations_are_read_written_and_refused() {
    let config = json!({
        "gates": [
            {"name": "a", "gate": "variance", "metric": "acc", "tolerance": 0.5},
            {"gate": "truncated", "share_max": 0.5},
        ],
        "keep_if_short": {"gates": ["a"]},
    });
    let read: GatesConfig = serde_json::from_value(config.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), config);
    for unknown in [
        json!({"gate": "variance", "metrics": "acc"}),
        json!({"gate": "truncated", "share_max": 0.5, "tolerance": 1.0}),
        json!({"gate": "entropy"}),
        json!({"name": "a"}),
    ] {
        assert!(serde_json::from_value::<GateConfig>(unknown.clone()).is_err(), "{unknown}");
    }
    for (config, words) in [
        (json!({"gates": [{"gate": "variance", "tolerance": -1.0}]}), "variance.tolerance"),
        (json!({"gates": [{"gate": "mean_range"}]}), "mean_range"),
        (json!({"gates": [{"gate": "mean_range", "min": 1.0, "max": 0.0}]}), "in order"),
        (json!({"gates": [{"gate": "mean_range", "min": 1e300}]}), "mean_range"),
        (json!({"gates": [{"gate": "min_samples", "samples": 0}]}), "1 or more"),
        (json!({"gates": [{"gate": "truncated", "share_max": 1.5}]}), "0 to 1"),
        (
            json!({"gates": [{"gate": "variance"}, {"gate": "variance", "metric": "reward"}]}),
            "that no other gate has",
        ),
        (json!({"gates": [{"gate": "variance", "name": ""}]}), "name of 1 to"),
        (json!({"gates": [], "keep_if_short": {"gates": ["variance"]}}), "name of a gate in the list"),
    ] {
        let error = Gates::new(&serde_json::from_value(config).unwrap()).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Rewards that occur in practice, and values that should never occur.
fn values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        prop::sample::select(vec![0.0_f32, -0.0, 0.5, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        any::<f32>(),
    ];
    prop_oneof![
        prop::collection::vec(value.clone(), 0..8),
        (value, 0_usize..8).prop_map(|(value, count)| vec![value; count])
    ]
}

proptest! {
    #[test]
    fn without_a_tolerance_the_variance_gate_is_the_published_rule(accs in values(), is_reward: bool) {
        let metric = if is_reward { FilterMetric::Reward } else { FilterMetric::Acc };
        let rewards: Vec<f32> = accs.iter().rev().copied().collect();
        let (truncated, tokens) = (vec![false; accs.len()], vec![0; accs.len()]);
        let view = GroupView { accs: &accs, rewards: &rewards, truncated: &truncated, tokens: &tokens };
        let gate = one(json!({"gate": "variance", "metric": metric}));
        let published = GroupFilter { enable: true, metric }.check(&accs, &rewards);
        prop_assert_eq!(reason(gate.check(&view, true)).map(|(reason, _)| reason), published.err().map(|reason| reason.as_str()));
    }

    #[test]
    fn finished_samples_prove_exactly_what_the_variance_gates_decide(accs in values(), tolerance in 0.0..2.0_f64, is_exact: bool) {
        let tolerance = if is_exact { 0.0 } else { tolerance };
        let rewards: Vec<f32> = accs.iter().rev().copied().collect();
        let by_acc = json!({"gate": "variance", "metric": "acc", "tolerance": tolerance});
        let by_reward = json!({"name": "other", "gate": "variance", "metric": "reward"});
        let both = gates(json!({"gates": [by_acc, by_reward]}));
        prop_assert!(both.only_compare());
        let (mut finished, mut proven) = (Finished::default(), both.differ(&Finished::default()));
        for (acc, reward) in accs.iter().zip(&rewards) {
            finished.add(*acc, *reward);
            let differ = both.differ(&finished);
            prop_assert!(differ || !proven, "what is proven stays proven");
            proven = differ;
        }
        let (truncated, tokens) = (vec![false; accs.len()], vec![0; accs.len()]);
        let view = GroupView { accs: &accs, rewards: &rewards, truncated: &truncated, tokens: &tokens };
        prop_assert_eq!(both.check(&view, true).is_ok(), proven);
        prop_assert_eq!(finished.samples() as usize, accs.len());
        prop_assert_eq!(finished.first_is_right(), accs.first().is_some_and(|acc| *acc > 0.0));
    }

    #[test]
    fn all_gates_must_agree_and_their_counts_add_up(groups in prop::collection::vec((values(), 0_usize..4), 0..12)) {
        let rules = [
            json!({"gate": "variance"}),
            json!({"gate": "mean_range", "min": 0.25, "max": 0.75}),
            json!({"gate": "min_samples", "samples": 2}),
            json!({"gate": "truncated", "share_max": 0.5}),
            json!({"gate": "length", "mean_tokens_max": 2.0}),
        ];
        let together = gates(json!({"gates": rules, "keep_if_short": {"gates": ["variance", "length"]}}));
        let alone: Vec<Gates> = rules.iter().map(|rule| one(rule.clone())).collect();
        for (accs, cut) in &groups {
            let truncated: Vec<bool> = (0..accs.len()).map(|index| index < *cut).collect();
            let tokens: Vec<u32> = (0..accs.len() as u32).collect();
            let view = GroupView { accs, rewards: accs, truncated: &truncated, tokens: &tokens };
            let verdict = together.check(&view, true);
            let rejecting: Vec<Arc<str>> = alone.iter().filter_map(|gate| gate.check(&view, true).err()).map(|r| r.gate).collect();
            prop_assert_eq!(verdict.is_ok(), rejecting.is_empty());
            if let Err(rejection) = verdict {
                let all_yield = rejecting.iter().all(|gate| matches!(&**gate, "variance" | "length"));
                prop_assert!(rejecting.contains(&rejection.gate));
                prop_assert_eq!(rejection.yields, all_yield);
                together.kept_if_short(&rejection);
            }
        }
        for (counts, alone) in together.counts().iter().zip(&alone) {
            prop_assert_eq!(counts.add_up(), Ok(()));
            prop_assert_eq!(counts.seen, groups.len() as u64);
            prop_assert_eq!(counts.passed, alone.counts()[0].passed, "the others change nothing");
        }
    }
}
