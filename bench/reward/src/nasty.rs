//! Measures the longest time of a score over many hostile texts of a megabyte. The texts repeat the patterns
//! that a scorer looks for, alone and at the position of the answer.
//!
//! No output of a model may lead to a score that takes a noticeable time. Only CPU time counts. A slow score
//! is measured twice, and the faster time counts, so the machine's other load has little effect.

use std::hint::black_box;
use std::sync::Arc;

use rolldock_reward::{ScoreInput, Scorer, ScorerConfig};
use serde_json::{Value, json};

use super::texts::PIECES;
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::{Bar, Figure};

/// Number of bytes of a text.
const BYTES: usize = 1 << 20;
const QUICK_STEP: usize = 8;
/// The largest number of milliseconds that a score may take.
const MOST_MS: f64 = 50.0;

/// Patterns that nest, multiply or grow, in addition to [`PIECES`].
const GROWING: &[&str] = &[
    "(",
    "[",
    "\\{",
    "|",
    "^",
    "9^",
    "9^{9",
    "x^x^",
    "99!",
    "\\frac{1}{",
    "\\frac{1}{2}",
    "\\sqrt[",
    "\\begin{pmatrix}",
    "\\text{cm}",
    "\\{1,\\{2,3\\}\\},",
    "1,",
    "1{,}111",
    "x+",
    "x=",
    "\\pm",
    "\\cup",
    "<think>",
    "</think>",
    "<answer></answer>",
    "```json",
    "```json\n",
    "{\"a\":",
    "[1,",
    "answer is",
    "the answer is a",
    "Answer: a b",
    "C",
    "word ",
];

struct Subject {
    name: &'static str,
    scorer: Arc<dyn Scorer>,
    truth: &'static str,
}

/// The built-in scorers, each with options and a truth that it accepts. `rubric` and `routed` are missing,
/// because they call other scorers.
fn subjects() -> anyhow::Result<Vec<Subject>> {
    let all: [(&str, Value, &str); 13] = [
        ("math_dapo 2025", json!({"scorer": "math_dapo", "variant": "2025"}), "42"),
        ("math_dapo 2026", json!({"scorer": "math_dapo", "variant": "2026"}), "42"),
        ("gsm8k strict", json!({"scorer": "gsm8k", "method": "strict"}), "42"),
        ("gsm8k flexible", json!({"scorer": "gsm8k", "method": "flexible"}), "42"),
        ("math", json!({"scorer": "math"}), "\\frac{1}{2}"),
        ("math_equiv", json!({"scorer": "math_equiv"}), "\\frac{1}{2}"),
        ("choice", json!({"scorer": "choice"}), "C"),
        ("exact_match", json!({"scorer": "exact_match", "ignore_case": true, "after": "Answer:"}), "C"),
        ("regex", json!({"scorer": "regex", "pattern": r"Answer:\s*([A-J])", "group": 1}), "C"),
        ("json_schema", json!({"scorer": "json_schema"}), r#"{"type": "object", "required": ["a"]}"#),
        ("format", json!({"scorer": "format"}), ""),
        ("length", json!({"scorer": "length", "target": 100, "max": 1000}), ""),
        ("repetition", json!({"scorer": "repetition"}), ""),
    ];
    let built = all.into_iter().map(|(name, config, truth)| {
        let config: ScorerConfig = serde_json::from_value(config)?;
        Ok(Subject { name, scorer: config.build()?, truth })
    });
    built.collect()
}

fn texts(piece: &str) -> [String; 4] {
    let many = piece.repeat(BYTES / piece.len());
    let half = piece.repeat(BYTES / 2 / piece.len());
    let long = piece.repeat(2000 / piece.len());
    [
        format!("\\boxed{{{many}}}"),
        format!("Answer: {half}\n#### {half}"),
        // An answer that is just short enough to be parsed.
        format!("{many} so \\boxed{{{long}}}"),
        many,
    ]
}

/// Milliseconds of processor time for one score.
fn cost(subject: &Subject, response: &str) -> anyhow::Result<f64> {
    let input = ScoreInput { response, ground_truth: subject.truth, data_source: "", extra: None };
    let started = cpu::own();
    black_box(subject.scorer.score(&input)?);
    Ok((cpu::own() - started).as_secs_f64() * 1e3)
}

pub(super) fn figures(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let subjects = subjects()?;
    let mut worst = vec![0.0_f64; subjects.len()];
    let step = if quick { QUICK_STEP } else { 1 };
    for piece in PIECES.iter().chain(GROWING).step_by(step) {
        for text in texts(piece) {
            for (subject, worst) in subjects.iter().zip(&mut worst) {
                let once = cost(subject, &text)?;
                if once > *worst {
                    *worst = worst.max(once.min(cost(subject, &text)?));
                }
            }
        }
    }
    let figures = subjects.iter().zip(worst).map(|(subject, worst)| {
        let what = format!("{}: longest time for a megabyte", subject.name);
        Figure::new(what, worst, "ms").bar(Bar::AtMost(MOST_MS))
    });
    Ok(figures.collect())
}
