//! The equivalence scorer on the ground truths and reference solutions of a real data set.
#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic as its cases do")]

use rolldock_reward::scorer::MathEquiv;
use rolldock_reward::scorer::math_equiv::{Reason, equivalent};
use rolldock_reward::{ScoreInput, Scorer};
use serde_json::Value;

/// Ground truths that are compared as text.
const UNPARSED: &[&str] = &[];

/// Reference solutions whose boxed answer does not equal their ground truth.
const UNEQUAL: &[&str] = &[];

fn rows() -> Vec<Value> {
    let path = format!("{}/../../shared/vectors/math500_real_vectors.jsonl", env!("CARGO_MANIFEST_DIR"));
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(!rows.is_empty(), "{path} is empty");
            rows
        }
        Err(_) => {
            eprintln!("skipped: {path} does not exist");
            Vec::new()
        }
    }
}

#[test]
fn every_reference_solution_has_its_ground_truth() {
    let mut unequal = Vec::new();
    for row in rows() {
        let (response, ground_truth) =
            (row["solution"].as_str().unwrap(), row["ground_truth"].as_str().unwrap());
        assert!(equivalent(ground_truth, ground_truth).is_equal, "{ground_truth}");
        let input = ScoreInput { response, ground_truth, data_source: "", extra: None };
        if MathEquiv.score(&input).unwrap().score != 1.0 {
            unequal.push(ground_truth.to_owned());
        }
    }
    assert!(unequal.iter().all(|truth| UNEQUAL.contains(&truth.as_str())), "{unequal:?}");
}

#[test]
fn nearly_every_ground_truth_is_read() {
    let mut unparsed = Vec::new();
    for row in rows() {
        let ground_truth = row["ground_truth"].as_str().unwrap();
        // No ground truth has these words. For a ground truth that was parsed, the verdict has another
        // reason.
        let verdict = equivalent(ground_truth, "\\text{none of these words}");
        assert!(!verdict.is_equal, "{ground_truth}");
        if verdict.reason == Reason::UnparsedComparedAsText {
            unparsed.push(ground_truth.to_owned());
        }
    }
    assert!(unparsed.iter().all(|truth| UNPARSED.contains(&truth.as_str())), "{unparsed:?}");
}
