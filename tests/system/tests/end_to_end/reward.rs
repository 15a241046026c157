//! Tests of `rolldock reward` on files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Ended, Rolldock, root, shared};

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

/// The rows of a shared file of expected results. Prints a note and returns `None` if the file is absent.
fn vectors(name: &str) -> Option<Vec<Value>> {
    Some(lines(&fs::read_to_string(shared(&format!("vectors/{name}"))?).unwrap()))
}

#[test]
fn scores_equal_those_of_the_reference() {
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
            assert!(row["id"].is_number(), "expected other columns of a row to stay");
        }
    }
}

#[test]
fn the_guide_shows_what_a_comparison_prints() {
    let guide = fs::read_to_string(root().join("docs/src/rewards.md")).unwrap();
    let (_, example) = guide.split_once("$ cat answers.jsonl\n").unwrap();
    let (rows, rest) = example.split_once("$ rolldock ").unwrap();
    let (command, rest) = rest.split_once('\n').unwrap();
    let (shown, _) = rest.split_once("$ rolldock ").unwrap();
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("answers.jsonl"), rows).unwrap();
    let said = Rolldock::new(&[]).args(command.split(' ')).within(dir.path()).succeeds();
    assert_eq!(said.stdout, shown);
}

#[test]
fn a_comparison_prints_where_the_scorers_differ() {
    let dir = TempDir::new().unwrap();
    let rows = [
        json!({ "response": "Answer: 5", "ground_truth": 5 }),
        json!({ "response": "so \\boxed{7}", "ground_truth": "7" }),
    ];
    let file = write(&dir, "rows.jsonl", &rows);
    let flags = ["--against", "math_dapo", "--against-set", "variant=2026"];
    let Ended { stdout, stderr, .. } = reward("score", &file, &flags).succeeds();
    assert_eq!(lines(&stdout).len(), 2, "stdout has only rows: {stdout}");
    for words in ["1 disagreement\n", "line 2: acc 0 against 1", "2 rows, mean score 0.0000, mean acc 0.5000"]
    {
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_reward_from_outside_scores_files_too() {
    let dir = TempDir::new().unwrap();
    let module = dir.path().join("mine.py");
    let code = "def f(data_source, solution_str, ground_truth, extra_info):\n    return {'score': len(solution_str) + 0.5, 'acc': extra_info['weight']}\n";
    std::fs::write(&module, code).unwrap();
    let row = |number: usize| json!({ "response": "x".repeat(number), "ground_truth": "", "extra_info": { "weight": 1 } });
    let rows: Vec<Value> = (0..1500).map(row).collect();
    let file = write(&dir, "rows.jsonl", &rows);
    let function = format!("function={}:f", module.display());
    let flags = ["--scorer", "python", "--set", &function, "--set", "workers=2", "--set", "retries=0"];
    let Ended { stdout, stderr, .. } = reward("score", &file, &flags).succeeds();
    let found = lines(&stdout);
    assert_eq!(found.len(), rows.len());
    for (number, row) in found.iter().enumerate() {
        assert_eq!(
            (&row["score"], &row["acc"]),
            (&json!(number as f64 + 0.5), &json!(1.0)),
            "expected the rows in order: {row}"
        );
    }
    assert!(stderr.contains("python: 1500 rows, mean score 750.0000"), "{stderr}");

    let bad = write(&dir, "bad.jsonl", &[row(1), json!({ "response": "x", "ground_truth": "" })]);
    let ended = reward("score", &bad, &flags).fails(1);
    assert!(ended.stderr.contains("bad.jsonl:2: ") && ended.stderr.contains("TypeError"), "{}", ended.stderr);
    let ended = reward("score", &file, &["--scorer", "python", "--set", "workers=2"]).fails(2);
    assert!(
        ended.stderr.contains("--set: python: ") && ended.stderr.contains("function"),
        "{}",
        ended.stderr
    );
}

#[test]
fn math_equiv_gives_a_reason() {
    let dir = TempDir::new().unwrap();
    let rows = [json!({ "response": "Answer: \\boxed{100\\text{ cm}}", "ground_truth": "1\\text{ m}" })];
    let file = write(&dir, "rows.jsonl", &rows);
    let flags = ["--scorer", "math_equiv", "--against", "math_dapo"];
    let Ended { stdout, stderr, .. } = reward("score", &file, &flags).succeeds();
    let found = lines(&stdout);
    assert_eq!(found[0]["acc"], json!(1.0), "units are converted");
    let reason = found[0]["reason"].as_str().unwrap();
    assert!(stderr.contains(&format!("line 1: acc 1 ({reason}) against 0;")), "{stderr}");
}

#[test]
fn a_schema_is_given_as_json() {
    let dir = TempDir::new().unwrap();
    let rows = [
        json!({ "response": "{\"a\": 1}", "ground_truth": "" }),
        json!({ "response": "[]", "ground_truth": "" }),
    ];
    let file = write(&dir, "rows.jsonl", &rows);
    let flags = ["--scorer", "json_schema", "--set", "schema={\"type\":\"object\"}"];
    let found = lines(&reward("score", &file, &flags).succeeds().stdout);
    assert_eq!((&found[0]["acc"], &found[1]["acc"]), (&json!(1.0), &json!(0.0)));
}

#[test]
fn reinforce_plus_plus_baseline_has_its_own_epsilon_and_weights_rewards_by_lengths() {
    let dir = TempDir::new().unwrap();
    let tiny =
        json!({ "rewards": [0.0, 1e-4], "group": ["a", "a"], "estimator": "reinforce_plus_plus_baseline" });
    let mut weighed = tiny.clone();
    weighed["lengths"] = json!([1, 3]);
    let mut uneven = tiny.clone();
    uneven["lengths"] = json!([1]);
    let file = write(&dir, "rows.jsonl", &[tiny, weighed]);
    let found = lines(&reward("advantage", &file, &[]).succeeds().stdout);
    let second = |row: &Value| row["advantage"][1].as_f64().unwrap();
    // The expected value is (5e-5 - 0) / sqrt(5e-9 + 1e-8).
    assert!((second(&found[0]) - 0.408).abs() < 1e-3, "{}", found[0]);
    assert!(
        second(&found[1]) < second(&found[0]),
        "the mean is nearer to the reward of the longer response: {}",
        found[1]
    );
    let file = write(&dir, "uneven.jsonl", &[uneven]);
    let ended = reward("advantage", &file, &[]).fails(1);
    assert!(ended.stderr.contains("uneven.jsonl:1: lengths has 1 numbers for 2 rewards"), "{}", ended.stderr);
}

#[test]
fn advantages_equal_those_of_the_reference() {
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
fn an_error_names_its_line_and_leaves_no_output() {
    let dir = TempDir::new().unwrap();
    let good = json!({ "response": "Answer: 5", "ground_truth": "5" });
    let out = dir.path().join("out.jsonl");
    for (bad, words) in [
        (
            json!({ "response": 5, "ground_truth": "5" }),
            "rows.jsonl:2: response: expected the response's text, found 5",
        ),
        (json!({ "response": "5" }), "rows.jsonl:2: ground_truth: expected"),
        (json!([1]), "rows.jsonl:2: expected a JSON object"),
    ] {
        let file = write(&dir, "rows.jsonl", &[good.clone(), bad]);
        let ended = reward("score", &file, &["--output", out.to_str().unwrap()]).fails(1);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!out.exists(), "expected no output after an error");
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
    let ended = reward("advantage", &uneven, &["--epsilon", "nan"]).fails(2);
    assert!(ended.stderr.contains("--epsilon: "), "{}", ended.stderr);
    for (row, words) in [
        (json!({ "rewards": [0, 1e39], "group": ["a", "a"] }), "rewards.1 is beyond the range of 32 bits"),
        (
            json!({ "rewards": [1, 1], "group": ["a", "a"], "epsilon": 0 }),
            "the advantage of rewards.0 is not a finite number",
        ),
    ] {
        let endless = write(&dir, "endless.jsonl", &[row]);
        let ended = reward("advantage", &endless, &[]).fails(1);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn a_byte_order_mark_is_skipped_and_a_file_without_rows_is_an_error() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    let row =
        json!({ "response": "Answer: 3", "ground_truth": "3", "rewards": [0.0, 1.0], "group": ["a", "a"] });
    fs::write(&file, format!("\u{feff}{row}\n")).unwrap();
    for command in ["score", "advantage"] {
        assert_eq!(lines(&reward(command, &file, &[]).succeeds().stdout).len(), 1);
    }
    let out = dir.path().join("out.jsonl");
    for text in ["", "\n \n", "\u{feff}"] {
        fs::write(&file, text).unwrap();
        let said = reward("score", &file, &["--output", out.to_str().unwrap()]).fails(1).stderr;
        assert!(said.contains("rows.jsonl: expected JSON lines, found no row"), "{said}");
        assert!(!out.exists());
    }
}
