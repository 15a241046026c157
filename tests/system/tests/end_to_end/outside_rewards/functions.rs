//! Rewards that are Python functions: they raise, exit and leak.

use std::collections::BTreeMap;

use super::*;

#[test]
fn a_common_reward_function_scores_without_changes() {
    if !has_python() {
        return;
    }
    let step = Step::new("[reward]\npython = { function = \"judge.py:compute_score\", directory = \"DIR\" }");
    step.file(
        "judge.py",
        r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = len(solution_str) % 2 == 0
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": ground_truth + "?"}
"#,
    );
    let ended = step.succeeds_in_time();
    let rows = step.rows();
    assert_eq!(rows.len(), GROUPS * SAMPLES, "{}", ended.stdout);
    for row in &rows {
        let acc = row["acc"].as_f64().unwrap();
        assert_eq!(row["score"].as_f64().unwrap(), 2.0 * acc - 1.0);
        assert_eq!(row["prediction"], format!("{}?", row["ground_truth"].as_str().unwrap()));
    }
    assert!(ended.stdout.contains("reward: Python judge.py:compute_score"), "{}", ended.stdout);
}

#[test]
fn a_function_that_raises_or_exits_fails_only_its_groups() {
    if !has_python() {
        return;
    }
    let step = Step::new("[reward]\npython = \"DIR/bad.py:compute_score\"\n[reward.guard]\nretries = 0");
    step.file(
        "bad.py",
        r#"
import os
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    digit = ground_truth.strip()[-1]
    if digit in "135":
        raise ValueError("odd is not a number")
    if digit in "24":
        os._exit(3)
    return float(len(solution_str) % 2)
"#,
    );
    let ended = step.succeeds_in_time();
    let rows = step.rows();
    assert_eq!(rows.len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert!(fate(&ended, " failed") > 0, "{}", ended.stdout);
    for row in &rows {
        let truth = row["ground_truth"].as_str().unwrap();
        assert!(!truth.ends_with(['1', '2', '3', '4', '5']), "{truth}");
    }
    for reason in ["odd is not a number", "exit status: 3"] {
        assert!(ended.stderr.contains(reason), "{reason}: {}", ended.stderr);
    }
    assert!(!ended.stdout.contains("reward outages"), "samples that kill are no outage: {}", ended.stdout);
}

#[test]
fn a_worker_of_a_leaking_function_is_replaced_in_time() {
    if !has_python() || !cfg!(target_os = "linux") {
        return;
    }
    let step = Step::new(
        "[reward.python]\nfunction = \"DIR/leak.py:compute_score\"\nworkers = 2\nmemory_mb = 600\njobs_per_worker = 10",
    );
    step.file(
        "leak.py",
        r#"
hoard = []
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    hoard.append(bytearray(32 << 20))
    return float(len(solution_str) % 2)
"#,
    );
    let ended = step.succeeds_in_time();
    assert_eq!(step.rows().len(), GROUPS * SAMPLES, "{}", ended.stdout);
    assert_eq!(fate(&ended, " failed"), 0, "{}", ended.stdout);
}

/// Raises for about one response in three, in all groups.
const RAISES_AT_TIMES: &str = r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if sum(map(ord, solution_str)) % 3 == 0:
        raise ValueError("divisible")
    return float(len(solution_str))
"#;

#[test]
fn a_group_continues_without_failed_samples_if_the_recipe_allows_it() {
    if !has_python() {
        return;
    }
    let filter = "[filter]\nmetric = \"none\"\ngates = [{ gate = \"min_samples\", samples = 2 }]";
    let step = Step::new(&format!(
        "[reward]\npython = \"DIR/some.py:compute_score\"\n[reward.guard]\nretries = 0\n{filter}"
    ));
    step.file("some.py", RAISES_AT_TIMES);
    let ended = step.succeeds_in_time();
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in step.rows_of_any_groups() {
        groups.entry(row["prompt_uid"].to_string()).or_default().push(row);
    }
    assert_eq!(groups.len(), GROUPS, "{}", ended.stdout);
    let sizes: BTreeSet<usize> = groups.values().map(Vec::len).collect();
    assert!(sizes.iter().all(|size| (2..=SAMPLES).contains(size)), "{sizes:?}");
    assert!(sizes.iter().any(|size| *size < SAMPLES), "some lack samples: {sizes:?}");
    for rows in groups.values() {
        let mean = rows.iter().map(|row| row["advantage"].as_f64().unwrap()).sum::<f64>() / rows.len() as f64;
        assert!(mean.abs() < 1e-4, "advantages are those of the samples that are there: {rows:?}");
    }
}
