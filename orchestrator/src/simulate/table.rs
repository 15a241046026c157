//! The results of a sweep, as a Markdown table and as JSON.

use rolldock_simulate::ratio::Ratio;
use serde_json::{Map, Value, json};

use super::{Outcome, Setting};

/// The column of the effective groups. A table has it if a setting weights its groups.
const EFFECTIVE: &str = "effective groups";

/// The columns after those of the swept keys.
const COLUMNS: [&str; 11] = [
    "step, s",
    "x FIFO bound",
    "x saturation",
    "tokens/s",
    "wasted",
    "filtered",
    "length bias",
    "accuracy bias",
    EFFECTIVE,
    "staleness",
    "preempted",
];

/// A Markdown table with one row for each setting, aligned for a terminal.
pub fn table(results: &[(Setting, Outcome)]) -> String {
    let keys = results.first().map(|(setting, _)| setting.changes.iter().map(|change| change.key.clone()));
    let has_weights = results.iter().any(|(_, outcome)| outcome.effective_groups.is_some());
    let is_shown = |column: &str| has_weights || column != EFFECTIVE;
    let names = COLUMNS.into_iter().filter(|name| is_shown(name)).map(str::to_owned);
    let mut rows = vec![keys.into_iter().flatten().chain(names).collect::<Vec<String>>()];
    rows.extend(results.iter().map(|(setting, outcome)| row(setting, outcome, is_shown)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |", cells.join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut lines = vec![line(&rows[0]), format!("|-{}-|", rule.join("-|-"))];
    lines.extend(rows[1..].iter().map(line));
    lines.join("\n")
}

fn row(setting: &Setting, outcome: &Outcome, is_shown: impl Fn(&str) -> bool) -> Vec<String> {
    let times = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let oldest = outcome.staleness.keys().next_back().copied().unwrap_or(0);
    let cells = [
        format!("{:.1}", outcome.times.step_s),
        times(outcome.over_fifo()),
        times(outcome.over_saturation()),
        format!("{:.0}", outcome.tokens_per_s),
        format!("{:.1} %", 100.0 * outcome.waste),
        format!("{:.1} %", 100.0 * outcome.filtered),
        ratio(outcome.length_bias),
        ratio(outcome.accuracy_bias),
        times(outcome.effective_groups),
        format!("{:.2} (max {oldest})", outcome.mean_staleness()),
        outcome.preemptions.to_string(),
    ];
    // A value may have a `|`, which would end its cell.
    let values = setting.changes.iter().map(|change| change.value.replace('|', "\\|"));
    let cells = COLUMNS.iter().zip(cells).filter(|(name, _)| is_shown(name)).map(|(_, cell)| cell);
    values.chain(cells).collect()
}

fn ratio(ratio: Option<Ratio>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(Ratio { value, standard_error: None }) => format!("{value:.3}"),
        Some(Ratio { value, standard_error: Some(error) }) => format!("{value:.3} \u{b1} {error:.3}"),
    }
}

/// A JSON list with one object for each setting.
///
/// # Errors
/// Returns an error if a result cannot be written as JSON.
pub fn json(results: &[(Setting, Outcome)]) -> serde_json::Result<String> {
    let object = |(setting, outcome): &(Setting, Outcome)| {
        let changes: Map<String, Value> =
            setting.changes.iter().map(|change| (change.key.clone(), json!(change.value))).collect();
        let mut object = json!({
            "setting": changes,
            "over_fifo_bound": outcome.over_fifo(),
            "over_saturation_bound": outcome.over_saturation(),
            "mean_staleness": outcome.mean_staleness(),
        });
        if let (Some(object), Value::Object(figures)) =
            (object.as_object_mut(), serde_json::to_value(outcome)?)
        {
            object.extend(figures);
        }
        Ok(object)
    };
    let objects = results.iter().map(object).collect::<serde_json::Result<Vec<Value>>>()?;
    serde_json::to_string_pretty(&objects)
}
