//! Compares this crate with the recorded results of the reference implementations (the vectors).
#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test may panic as its cases do")]

use std::collections::BTreeMap;

use rolldock_reward::policy_loss::{Aggregation, Clip, Sequence, policy_loss};
use rolldock_reward::scorer::normalize;
use rolldock_reward::{
    Advantage, Gsm8k, Gsm8kMethod, Math, MathDapo, Overlong, Score, ScoreInput, Scorer, Variant, filter,
    python_text,
};
use serde_json::Value;

fn read(name: &str) -> Option<String> {
    let path = format!("{}/../../shared/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(_) => {
            eprintln!("skipped: {path} does not exist");
            None
        }
    }
}

/// Calls `check` with every row of a file. Fails if the file has no rows.
fn each_row(name: &str, mut check: impl FnMut(&Value)) {
    let Some(text) = read(name) else { return };
    let mut rows = 0;
    for line in text.lines() {
        check(&serde_json::from_str(line).unwrap());
        rows += 1;
    }
    assert!(rows > 0, "{name} is empty");
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} in {row}"))
}

fn score(scorer: &dyn Scorer, response: &str, ground_truth: &str) -> Score {
    scorer.score(&ScoreInput { response, ground_truth, data_source: "", extra: None }).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn math_dapo() {
    each_row("math_dapo_vectors.jsonl", |row| {
        let strict_box = row["strict_box_verify"].as_bool().unwrap();
        for (variant, suffix) in [(Variant::V2025, ""), (Variant::V2026, "_main2026")] {
            let got =
                score(&MathDapo { variant, strict_box }, text(row, "solution"), text(row, "ground_truth"));
            assert_eq!(Some(got.score), row[&format!("expected_score{suffix}")].as_f64(), "{row}");
            assert_eq!(Some(got.acc == 1.0), row[&format!("expected_acc{suffix}")].as_bool(), "{row}");
            assert_eq!(got.pred.as_deref(), row[&format!("expected_pred{suffix}")].as_str(), "{row}");
        }
    });
}

#[test]
fn math_dapo_normalisation() {
    each_row("math_dapo_normalize_vectors.jsonl", |row| {
        assert_eq!(normalize(text(row, "input")), text(row, "normalized"), "{row}");
    });
}

#[test]
fn gsm8k() {
    for file in ["gsm8k_vectors.jsonl", "gsm8k_real_vectors.jsonl"] {
        each_row(file, |row| {
            let method = match text(row, "method") {
                "strict" => Gsm8kMethod::Strict,
                _ => Gsm8kMethod::Flexible,
            };
            let got = score(&Gsm8k { method }, text(row, "solution"), text(row, "ground_truth"));
            assert_eq!(got.pred.as_deref(), row["expected_extracted"].as_str(), "{row}");
            assert_eq!(Some(got.score), row["expected_score"].as_f64(), "{row}");
        });
    }
}

#[test]
fn math() {
    each_row("math_vectors.jsonl", |row| {
        let got = score(&Math, text(row, "solution"), text(row, "ground_truth"));
        assert_eq!(Some(got.score), row["expected_score"].as_f64(), "{row}");
    });
}

#[test]
fn math500() {
    each_row("math500_real_vectors.jsonl", |row| {
        let (solution, truth) = (text(row, "solution"), text(row, "ground_truth"));
        assert_eq!(Some(score(&Math, solution, truth).score), row["expected_math"].as_f64(), "{row}");
        let answered = score(&MathDapo::default(), &format!("Answer: {truth}"), truth);
        assert_eq!(Some(answered.score), row["expected_dapo_on_'Answer: '+gt"].as_f64(), "{row}");
        assert_eq!(answered.pred.as_deref(), row["expected_dapo_pred"].as_str(), "{row}");
        let boxed = score(&MathDapo { variant: Variant::V2026, strict_box: false }, solution, truth);
        assert_eq!(Some(boxed.score), row["expected_dapo_main2026_on_solution"].as_f64(), "{row}");
    });
}

#[test]
fn overlong() {
    each_row("overlong_vectors.jsonl", |row| {
        let count = |key: &str| row[key].as_u64().unwrap() as u32;
        let shaping = Overlong {
            max_response_length: count("max_response_length"),
            buffer_length: count("buffer_len"),
            penalty_factor: row["penalty_factor"].as_f64().unwrap(),
        };
        let got = shaping.penalty(count("response_len"));
        assert_eq!(Some(got), row["expected_penalty"].as_f64(), "{row}");
    });
}

#[test]
fn advantages_and_filters() {
    each_row("advantage_vectors.jsonl", |row| {
        let rewards: Vec<f32> = numbers(&row["rewards"]).iter().map(|reward| *reward as f32).collect();
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, group) in row["group"].as_array().unwrap().iter().enumerate() {
            groups.entry(group.as_str().unwrap()).or_default().push(index);
        }
        let advantage = match row["norm_by_std"].as_bool().unwrap() {
            true => Advantage::Grpo { epsilon: row["epsilon"].as_f64().unwrap() as f32 },
            false => Advantage::GrpoNoStd,
        };
        let expected = numbers(&row["expected_adv_f32"]);
        let formula = numbers(&row["expected_adv_f64_formula"]);
        for (name, members) in groups {
            let of_group: Vec<f32> = members.iter().map(|index| rewards[*index]).collect();
            for (got, index) in advantage.of_group(&of_group).iter().zip(&members) {
                assert_eq!(*got, expected[*index] as f32, "{row}");
            }
            let exact: Vec<f64> =
                members.iter().map(|index| row["rewards"][*index].as_f64().unwrap()).collect();
            for (got, index) in advantage.of_group_f64(&exact).iter().zip(&members) {
                let wanted = formula[*index];
                assert!(
                    (got - wanted).abs() <= 1e-12 * wanted.abs().max(1.0),
                    "{got} is not {wanted} in {row}"
                );
            }
            assert_eq!(
                Some(filter::varies(&of_group)),
                row["group_valid_async_recipe"][name].as_bool(),
                "{row}"
            );
            assert_eq!(
                Some(filter::kept_by_deviation(&of_group)),
                row["group_kept_by_dapo_filter"][name].as_bool(),
                "{row}"
            );
        }
    });
}

#[test]
fn policy_losses() {
    each_row("policy_loss_vectors.jsonl", |row| {
        let table =
            |key: &str| -> Vec<Vec<f64>> { row[key].as_array().unwrap().iter().map(numbers).collect() };
        let (old, new) = (table("old_log_prob"), table("log_prob"));
        let (advantages, mask) = (table("advantages"), table("mask"));
        let batch: Vec<Sequence<'_>> = (0..old.len())
            .map(|i| Sequence {
                old_log_prob: &old[i],
                log_prob: &new[i],
                advantages: &advantages[i],
                mask: &mask[i],
            })
            .collect();
        let number = |key: &str| row[key].as_f64().unwrap();
        let clip = Clip { low: number("clip_low"), high: number("clip_high"), c: number("clip_c") };
        let aggregation = match text(row, "mode") {
            "token-mean" => Aggregation::TokenMean,
            "seq-mean-token-sum" => Aggregation::SeqMeanTokenSum,
            "seq-mean-token-mean" => Aggregation::SeqMeanTokenMean,
            other => panic!("mode {other}"),
        };
        let got = policy_loss(&batch, clip, aggregation);
        let metrics = &row["metrics"];
        for (got, wanted) in [
            (got.loss, number("expected_loss")),
            (got.clip_fraction, metrics["actor/pg_clipfrac"].as_f64().unwrap()),
            (got.clip_fraction_lower, metrics["actor/pg_clipfrac_lower"].as_f64().unwrap()),
            (got.kl, metrics["actor/ppo_kl"].as_f64().unwrap()),
        ] {
            assert!((got - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{got} is not {wanted} in {row}");
        }
    });
}

#[test]
fn python_text_tables() {
    let Some(tables) = read("python_unicode_tables.json") else { return };
    let tables: Value = serde_json::from_str(&tables).unwrap();
    for (key, ours) in [("isspace", python_text::SPACES), ("isdigit", python_text::DIGITS)] {
        let theirs: Vec<(u32, u32)> = serde_json::from_value(tables[key].clone()).unwrap();
        assert_eq!(ours, theirs, "{key}");
    }
}
