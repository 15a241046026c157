//! `rolldock reward score`

use std::sync::Arc;

use rolldock_reward::{RewardError, Score, ScoreInput, Scorer, ScorerConfig};
use serde::Deserialize;
use serde_json::Value;

use super::rows::{self, Row};
use crate::cli::UsageError;
use crate::cli::args::ScoreArgs;

/// Longest part of an answer that is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// What a file came to.
#[derive(Debug, Default)]
struct Totals {
    rows: u64,
    score: f64,
    acc: f64,
    without_answer: u64,
}

impl Totals {
    fn add(&mut self, score: &Score) {
        self.rows += 1;
        self.score += score.score;
        self.acc += score.acc;
        self.without_answer += u64::from(score.pred.is_none());
    }

    fn describe(&self, scorer: &str) -> String {
        let Self { rows, score, acc, without_answer } = self;
        let mean = |sum: f64| if *rows > 0 { sum / *rows as f64 } else { 0.0 };
        format!(
            "{scorer}: {rows} rows, mean score {:.4}, mean acc {:.4}, {without_answer} without an answer",
            mean(*score),
            mean(*acc)
        )
    }
}

/// A second opinion.
struct Against {
    scorer: Arc<dyn Scorer>,
    totals: Totals,
    disagreements: u64,
    shown: Vec<String>,
    shown_max: usize,
}

impl Against {
    fn compare(&mut self, line: u64, first: &Score, input: &ScoreInput<'_>) -> Result<(), String> {
        let second = self.scorer.score(input).map_err(|error| error.to_string())?;
        self.totals.add(&second);
        if first.acc == second.acc {
            return Ok(());
        }
        self.disagreements += 1;
        if self.shown.len() < self.shown_max {
            self.shown.push(format!(
                "  line {line}: acc {} against {}; found {} against {}, truth {}",
                first.acc,
                second.acc,
                shown(first.pred.as_deref()),
                shown(second.pred.as_deref()),
                shown(Some(input.ground_truth))
            ));
        }
        Ok(())
    }
}

pub(super) fn run(args: &ScoreArgs) -> anyhow::Result<()> {
    let scorer = build(&args.scorer, &args.set, "--scorer", "--set")?;
    let against = match &args.against {
        Some(name) => Some(build(name, &args.against_set, "--against", "--against-set")?),
        None => None,
    };
    let mut against = against.map(|scorer| Against {
        scorer,
        totals: Totals::default(),
        disagreements: 0,
        shown: Vec::new(),
        shown_max: args.show,
    });
    let mut totals = Totals::default();
    rows::each(&args.file, args.output.as_deref(), |line, row| {
        let response: String = rows::value(row, "response", "the response's text")?;
        let ground_truth: String = ground_truth(row)?;
        let data_source: Option<String> = rows::optional(row, "data_source", "a text")?;
        let input = ScoreInput {
            response: &response,
            ground_truth: &ground_truth,
            data_source: data_source.as_deref().unwrap_or_default(),
            extra: row.get("extra_info"),
        };
        let score = scorer.score(&input).map_err(|error| error.to_string())?;
        totals.add(&score);
        if let Some(against) = &mut against {
            against.compare(line, &score, &input)?;
        }
        add_to(row, &score);
        Ok(())
    })?;
    let mut lines = vec![totals.describe(scorer.name())];
    if let Some(against) = against {
        lines.push(against.totals.describe(against.scorer.name()));
        lines.push(format!("{} disagreements", against.disagreements));
        lines.extend(against.shown);
    }
    super::summarise(args.output.as_deref(), &lines.join("\n"));
    Ok(())
}

/// Truths are texts; numbers are taken for what they are written as.
fn ground_truth(row: &Row) -> Result<String, String> {
    match row.get("ground_truth") {
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => rows::value(row, "ground_truth", "a text or a number"),
    }
}

fn add_to(row: &mut Row, score: &Score) {
    for (key, value) in [
        ("score", rows::json(score.score)),
        ("acc", rows::json(score.acc)),
        ("pred", rows::json(&score.pred)),
    ] {
        row.insert(key.to_owned(), value);
    }
    if !score.parts.is_empty() {
        row.insert("parts".to_owned(), rows::json(&score.parts));
    }
}

fn shown(text: Option<&str>) -> String {
    let Some(text) = text else { return "nothing".to_owned() };
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
}

/// A scorer with its options. A value counts as text where the option is one, else as JSON: `variant=2026` and
/// `strict_box=true` are both what they look like.
fn build(name: &str, settings: &[String], flag: &str, set_flag: &str) -> Result<Arc<dyn Scorer>, UsageError> {
    match ScorerConfig::from_name(name) {
        Ok(_) => {}
        // Perhaps they are there.
        Err(RewardError::NeedsOptions { .. }) if !settings.is_empty() => {}
        Err(error) => return Err(UsageError(format!("{flag}: {error}"))),
    }
    let mut config = Row::new();
    config.insert("scorer".to_owned(), Value::String(name.to_owned()));
    let parse = |config: &Row| ScorerConfig::deserialize(&Value::Object(config.clone()));
    for setting in settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| UsageError(format!("{set_flag}: expected KEY=VALUE, found {setting:?}")))?;
        config.insert(key.to_owned(), Value::String(value.to_owned()));
        if !parse(&config).is_err_and(|error| error.to_string().contains("invalid type: string")) {
            continue;
        }
        if let Ok(json) = serde_json::from_str::<Value>(value) {
            config.insert(key.to_owned(), json);
        }
    }
    let config = parse(&config).map_err(|error| UsageError(format!("{set_flag}: {name}: {error}")))?;
    config.build().map_err(|error| UsageError(format!("{set_flag}: {error}")))
}
