//! Gates of the filter, inside and outside of the run's process.

use std::collections::BTreeMap;

use super::*;

#[test]
fn gates_filter_by_name_and_yield_to_a_step_that_would_be_short() {
    let filter = r#"
        [filter]
        gates = [{ gate = "length", mean_tokens_min = 100000.0 }]
        KEEP
    "#;
    let short = Step::new(filter).with("KEEP", "").with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = short.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT") && short.rows().is_empty(), "{}", ended.stdout);

    let kept = Step::new(filter)
        .with("KEEP", "keep_if_short = [\"length\"]")
        .with("max_gen_batches = 8", "max_gen_batches = 1");
    let ended = kept.succeeds_in_time();
    assert_eq!(kept.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(ended.stdout.contains("target reached"), "{}", ended.stdout);
}

#[test]
fn a_group_that_is_kept_for_a_short_step_has_passed_the_gates_outside() {
    if !has_python() {
        return;
    }
    let step = Step::new(
        r#"
        [filter]
        metric = "none"
        gates = [{ gate = "length", name = "too_short", mean_tokens_min = 100000.0 }]
        keep_if_short = ["too_short"]
        [[filter.outside]]
        name = "mine"
        ask = { python = "DIR/gate.py:keep" }
        "#,
    )
    .with("max_gen_batches = 8", "max_gen_batches = 1");
    step.file("gate.py", "def keep(data_source, solution_str, ground_truth, extra_info):\n    return 0.0\n");
    let ended = step.succeeds_in_time();
    assert!(ended.stdout.contains("SHORT") && step.rows().is_empty(), "{}", ended.stdout);
    assert!(ended.stdout.contains("gate mine: 32 groups seen, 32 rejected"), "{}", ended.stdout);
    assert!(ended.stdout.contains("mine 32"), "counted by its name: {}", ended.stdout);
}

#[test]
fn a_gate_of_the_user_gets_only_groups_that_passed_all_others() {
    if !has_python() {
        return;
    }
    let step = Step::new(
        r#"
        [[filter.outside]]
        name = "mine"
        ask = { python = "DIR/gate.py:keep" }
        "#,
    );
    step.file(
        "gate.py",
        r#"
def keep(data_source, solution_str, ground_truth, extra_info):
    accs = extra_info["accs"]
    assert len(accs) == len(extra_info["rewards"]) == len(extra_info["tokens"]) == 4
    return 0 < sum(accs) < 3
"#,
    );
    let ended = step.succeeds_in_time();
    let mut right: BTreeMap<String, f64> = BTreeMap::new();
    for row in step.rows() {
        *right.entry(row["prompt_uid"].to_string()).or_default() += row["acc"].as_f64().unwrap();
    }
    assert_eq!(right.len(), GROUPS, "{}", ended.stdout);
    assert!(right.values().all(|right| (1.0..3.0).contains(right)), "{right:?}");
    assert!(ended.stdout.contains("gate mine: "), "{}", ended.stdout);
}
