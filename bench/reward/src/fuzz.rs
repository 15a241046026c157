//! Differential fuzzing: hostile texts go to our scorers and to verl's, and all verdicts must be equal.
//!
//! The comparison covers the score, the accuracy and the extracted answer of `math_dapo` (both variants, with
//! and without the strict box) and of `gsm8k` (both methods). It also covers the score of `math` and the
//! normal form of the truth.

use std::time::Duration;

use rolldock_reward::scorer::normalize;
use rolldock_reward::{Gsm8k, Gsm8kMethod, Math, MathDapo, Score, ScoreInput, Scorer, Variant};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::data;
use super::peer::{Peer, REFERENCE};
use super::texts::{Case, Texts};
use rolldock_bench_figures::{Bar, Figure};

/// Number of texts that the peer gets in one line.
const BATCH: u64 = 500;
/// Maximum number of differing cases that are printed.
const PRINTED_MAX: usize = 20;

/// Our verdicts, in the shape of `verdicts` in `bench/peers/reward_peer.py`.
fn verdicts((response, truth): &Case) -> anyhow::Result<Value> {
    let input = ScoreInput { response, ground_truth: truth, data_source: "", extra: None };
    let all = |score: Score| json!([score.score, score.acc, score.pred]);
    let mut found = Map::new();
    for (variant, name) in [(Variant::V2025, "math_dapo 2025"), (Variant::V2026, "math_dapo 2026")] {
        found.insert(name.to_owned(), all(MathDapo { variant, strict_box: false }.score(&input)?));
        let strict = MathDapo { variant, strict_box: true };
        found.insert(format!("{name} strict_box"), all(strict.score(&input)?));
    }
    for (method, name) in [(Gsm8kMethod::Strict, "gsm8k strict"), (Gsm8kMethod::Flexible, "gsm8k flexible")] {
        found.insert(name.to_owned(), all(Gsm8k { method }.score(&input)?));
    }
    found.insert("math".to_owned(), json!(Math.score(&input)?.score));
    found.insert("normalize".to_owned(), json!(normalize(truth)));
    Ok(Value::Object(found))
}

/// The scorers whose verdicts differ, each with both verdicts.
fn differences(ours: &Value, theirs: &Value) -> Vec<Value> {
    let names = ours.as_object().into_iter().flat_map(Map::keys);
    names
        .filter(|name| ours[*name] != theirs[*name])
        .map(|name| json!({"scorer": name, "ours": ours[name], "theirs": theirs[name]}))
        .collect()
}

/// Compares at least one batch of texts, and more until the time is over. Differing cases are printed to
/// standard error.
pub(super) fn figures(seed: u64, lasts: Duration, peer: &mut Peer) -> anyhow::Result<Vec<Figure>> {
    let rows = data::gsm8k()?.into_iter().map(|row| {
        let text = format!("{}#### {}", row.text, row.answer);
        (text, row.answer)
    });
    let latex = data::math_500()?.into_iter().map(|row| (row.text, row.answer));
    // GSM8K has many more rows than MATH-500, so only every 16th of them is used.
    let texts = Texts::new(seed, rows.step_by(16).chain(latex));
    let end = Instant::now() + lasts;
    let (mut compared, mut differing, mut right) = (0, 0, 0);
    while compared == 0 || Instant::now() < end {
        let cases: Vec<Case> = (compared..compared + BATCH).map(|number| texts.case(number)).collect();
        let theirs = peer.score(&cases)?;
        anyhow::ensure!(theirs.len() == cases.len(), "{} verdicts on {} texts", theirs.len(), cases.len());
        for ((number, case), their) in (compared..).zip(&cases).zip(&theirs) {
            let our = verdicts(case)?;
            right += usize::from(our["math_dapo 2026"][0] == json!(1.0));
            let found = differences(&our, their);
            if found.is_empty() {
                continue;
            }
            differing += 1;
            if differing <= PRINTED_MAX {
                let (response, truth) = case;
                let said = json!({"seed": seed, "case": number, "response": response, "truth": truth, "differ": found});
                eprintln!("differs: {said}");
            }
        }
        compared += BATCH;
    }
    let what = format!("hostile texts of seed {seed} on which a scorer and {REFERENCE}'s differ");
    Ok(vec![
        Figure::new(
            format!("hostile texts of seed {seed}, compared with {REFERENCE}"),
            compared as f64,
            "texts",
        ),
        Figure::new(
            "of these, right according to math_dapo 2026",
            right as f64 / compared as f64 * 100.0,
            "%",
        ),
        Figure::new(what, differing as f64, "texts").bar(Bar::AtMost(0.0)),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{differences, verdicts};

    #[test]
    fn what_differs_is_named() {
        let ours = verdicts(&("Answer: 5".to_owned(), "5".to_owned())).unwrap();
        assert_eq!(ours["math_dapo 2025"], json!([1.0, 1.0, "5"]));
        assert!(differences(&ours, &ours).is_empty());
        let mut theirs = ours.clone();
        theirs["math"] = json!(1.0);
        assert_eq!(differences(&ours, &theirs)[0]["scorer"], "math");
    }
}
