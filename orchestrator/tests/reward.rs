//! `rolldock reward` over files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Ended, Rolldock, shared};
use tempfile::TempDir;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write(dir: &TempDir, name: &str, rows: &[Value]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    path
}

fn reward(command: &str, file: &Path, flags: &[&str]) -> Rolldock {
    flags.iter().fold(Rolldock::new(&["reward", command]).arg(file), Rolldock::arg)
}

/// Rows of a shared file of expected results; says so where it is absent.
fn vectors(name: &str) -> Option<Vec<Value>> {
    Some(lines(&fs::read_to_string(shared(&format!("vectors/{name}"))?).unwrap()))
}

#[test]
fn scores_are_the_references() {
    let Some(expected) = vectors("math_dapo_vectors.jsonl") else { return };
    let expected: Vec<Value> =
        expected.into_iter().filter(|row| row["strict_box_verify"] == json!(false)).collect();
    let dir = TempDir::new().unwrap();
    let rows: Vec<Value> = expected
        .iter()
        .enumerate()
        .map(
            |(id, row)| json!({ "id": id, "response": row["solution"], "ground_truth": row["ground_truth"] }),
        )
        .collect();
    let file = write(&dir, "rows.jsonl", &rows);
    for (variant, suffix) in [("2025", ""), ("2026", "_main2026")] {
        let out = dir.path().join(variant);
        let set = format!("variant={variant}");
        let flags = ["--scorer", "math_dapo", "--set", &set, "--output", out.to_str().unwrap()];
        let said = reward("score", &file, &flags).succeeds().stdout;
        assert!(said.contains(&format!("math_dapo: {} rows", rows.len())), "{said}");
        let scored = lines(&fs::read_to_string(&out).unwrap());
        assert_eq!(scored.len(), rows.len());
        for (row, wanted) in scored.iter().zip(&expected) {
            assert_eq!(row["score"], wanted[format!("expected_score{suffix}")], "{wanted}");
            assert_eq!(row["pred"], wanted[format!("expected_pred{suffix}")], "{wanted}");
            assert_eq!(
                row["acc"] == json!(1.0),
                wanted[format!("expected_acc{suffix}")] == json!(true),
                "{wanted}"
            );
            assert!(row["id"].is_number(), "what else a row has stays");
        }
    }
}

#[test]
fn a_second_scorer_says_where_it_differs() {
    let dir = TempDir::new().unwrap();
    let rows = [
        json!({ "response": "Answer: 5", "ground_truth": 5 }),
        json!({ "response": "so \\boxed{7}", "ground_truth": "7" }),
    ];
    let file = write(&dir, "rows.jsonl", &rows);
    let flags = ["--against", "math_dapo", "--against-set", "variant=2026"];
    let Ended { stdout, stderr, .. } = reward("score", &file, &flags).succeeds();
    assert_eq!(lines(&stdout).len(), 2, "rows alone: {stdout}");
    for words in ["1 disagreements", "line 2: acc 0 against 1", "2 rows, mean score 0.0000, mean acc 0.5000"]
    {
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn advantages_are_the_references() {
    let Some(expected) = vectors("advantage_vectors.jsonl") else { return };
    let dir = TempDir::new().unwrap();
    let rows: Vec<Value> = expected
        .iter()
        .map(|row| {
            let estimator = if row["norm_by_std"] == json!(true) { "grpo" } else { "grpo_no_std" };
            json!({ "rewards": row["rewards"], "group": row["group"], "estimator": estimator, "epsilon": row["epsilon"] })
        })
        .collect();
    let file = write(&dir, "rows.jsonl", &rows);
    let found = lines(&reward("advantage", &file, &[]).succeeds().stdout);
    assert_eq!(found.len(), expected.len());
    for (row, wanted) in found.iter().zip(&expected) {
        let got = row["advantage"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32);
        let wanted_values = wanted["expected_adv_f32"].as_array().unwrap();
        assert_eq!(got.len(), wanted_values.len());
        for (got, wanted_value) in got.zip(wanted_values) {
            assert_eq!(got, wanted_value.as_f64().unwrap() as f32, "{wanted}");
        }
        for (name, verdict) in row["groups"].as_object().unwrap() {
            assert_eq!(verdict["valid"], wanted["group_valid_async_recipe"][name], "{wanted}");
            assert_eq!(verdict["kept"], wanted["group_kept_by_dapo_filter"][name], "{wanted}");
        }
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let good = json!({ "response": "Answer: 5", "ground_truth": "5" });
    let out = dir.path().join("out.jsonl");
    for (bad, words) in [
        (
            json!({ "response": 5, "ground_truth": "5" }),
            "rows.jsonl:2: response: expected the response's text, found 5",
        ),
        (json!({ "response": "5" }), "rows.jsonl:2: ground_truth is not there"),
        (json!([1]), "rows.jsonl:2: expected a JSON object"),
    ] {
        let file = write(&dir, "rows.jsonl", &[good.clone(), bad]);
        let ended = reward("score", &file, &["--output", out.to_str().unwrap()]).fails(1);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!out.exists(), "half an output");
    }
    let file = write(&dir, "rows.jsonl", &[good]);
    for (flags, words) in [
        (&["--scorer", "nobody"][..], "--scorer: unknown scorer=\"nobody\""),
        (&["--set", "variant"], "--set: expected KEY=VALUE, found \"variant\""),
        (&["--set", "variant=1999"], "--set: math_dapo: "),
        (&["--set", "colour=red"], "--set: math_dapo: "),
    ] {
        let ended = reward("score", &file, flags).fails(2);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    let uneven = write(&dir, "uneven.jsonl", &[json!({ "rewards": [1, 0], "group": ["a"] })]);
    let ended = reward("advantage", &uneven, &[]).fails(1);
    assert!(ended.stderr.contains("uneven.jsonl:1: group has 1 names for 2 rewards"), "{}", ended.stderr);
    let ended = reward("advantage", &uneven, &["--estimator", "guess"]).fails(2);
    assert!(ended.stderr.contains("--estimator: "), "{}", ended.stderr);
}
