//! `rolldock reward score`

use std::sync::Arc;
use std::time::Duration;

use rolldock_process::plural;
use rolldock_reward::{RewardJob, Score};
use rolldock_scope::Scope;
use serde_json::Value;
use tokio::runtime::Handle;

use super::row_scorer::RowScorer;
use super::rows::{self, Numbered, Row};
use crate::args::ScoreArgs;

/// Maximum number of characters of an answer that are shown.
const SHOWN_CHARS_MAX: usize = 60;

/// Maximum time for worker processes to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The sums over a file.
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
            "{scorer}: {}, mean score {:.4}, mean acc {:.4}, {without_answer} without an answer",
            plural(*rows, "row"),
            mean(*score),
            mean(*acc)
        )
    }
}

/// The second scorer, and its differences from the first scorer.
struct Against {
    scorer: RowScorer,
    totals: Totals,
    disagreements: u64,
    shown: Vec<String>,
    shown_max: usize,
}

impl Against {
    fn compare(&mut self, line: u64, first: &Score, second: &Score, truth: &str) {
        self.totals.add(second);
        if first.acc == second.acc {
            return;
        }
        self.disagreements += 1;
        if self.shown.len() < self.shown_max {
            self.shown.push(format!(
                "  line {line}: acc {} against {}; found {} against {}, truth {}",
                said(first),
                said(second),
                shown(first.pred.as_deref()),
                shown(second.pred.as_deref()),
                shown(Some(truth))
            ));
        }
    }
}

pub(super) fn run(args: &ScoreArgs) -> anyhow::Result<()> {
    let scope = Scope::new();
    let scorer = RowScorer::open(&args.scorer, &args.set, ("--scorer", "--set"), &scope)?;
    let against = match &args.against {
        Some(name) => Some(RowScorer::open(name, &args.against_set, ("--against", "--against-set"), &scope)?),
        None => None,
    };
    let rows_max = scorer.rows_max().max(against.as_ref().map_or(1, RowScorer::rows_max));
    let mut against = against.map(|scorer| Against {
        scorer,
        totals: Totals::default(),
        disagreements: 0,
        shown: Vec::new(),
        shown_max: args.show,
    });
    let mut totals = Totals::default();
    let scored = rows::each_batch(&args.file, args.output.as_deref(), rows_max, |rows| {
        let job = |(line, row): &Numbered| job(row).map_err(|reason| (*line, reason));
        let jobs: Vec<RewardJob> = rows.iter().map(job).collect::<Result<_, _>>()?;
        let named = |(at, reason): (usize, String)| (rows[at].0, reason);
        let scores = scorer.score(&jobs).map_err(named)?;
        if let Some(against) = &mut against {
            let others = against.scorer.score(&jobs).map_err(named)?;
            for (((line, _), job), (score, other)) in rows.iter().zip(&jobs).zip(scores.iter().zip(&others)) {
                against.compare(*line, score, other, &job.ground_truth);
            }
        }
        for ((_, row), score) in rows.iter_mut().zip(&scores) {
            totals.add(score);
            add_to(row, score);
        }
        Ok(())
    });
    Handle::current().block_on(scope.close(CLOSE_LIMIT));
    scored?;
    let mut lines = vec![totals.describe(&args.scorer)];
    if let Some(against) = against {
        lines.push(against.totals.describe(args.against.as_deref().unwrap_or_default()));
        lines.push(plural(against.disagreements, "disagreement"));
        lines.extend(against.shown);
    }
    super::summarise(args.output.as_deref(), &lines.join("\n"));
    Ok(())
}

fn job(row: &Row) -> Result<RewardJob, String> {
    let response: String = rows::value(row, "response", "the response's text")?;
    let data_source: Option<String> = rows::optional(row, "data_source", "a text")?;
    let prompt: Option<String> = rows::optional(row, "prompt", "a text").unwrap_or_default();
    Ok(RewardJob {
        response: response.into(),
        ground_truth: ground_truth(row)?.into(),
        data_source: data_source.unwrap_or_default().into(),
        prompt: prompt.unwrap_or_default().into(),
        extra: Arc::new(row.get("extra_info").cloned().unwrap_or_default()),
    })
}

/// The ground truth of a row. A number is converted to text.
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
    if let Some(reason) = &score.reason {
        row.insert("reason".to_owned(), rows::json(reason));
    }
    if !score.parts.is_empty() {
        row.insert("parts".to_owned(), rows::json(&score.parts));
    }
}

/// The accuracy of a score, with the scorer's reason if there is one.
fn said(score: &Score) -> String {
    match &score.reason {
        Some(reason) => format!("{} ({})", score.acc, reason.as_str()),
        None => score.acc.to_string(),
    }
}

fn shown(text: Option<&str>) -> String {
    let Some(text) = text else { return "nothing".to_owned() };
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
}
