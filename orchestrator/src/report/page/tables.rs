//! The tables of a page: totals, slowest groups, servers, newest steps.

use std::fmt::Write;

use serde_json::Value;

use super::plot::{escaped, exact, short};
use super::read::RunFigures;
use crate::process::plural;

/// The maximum number of listed servers. If there are more, the servers with the most failures are listed.
/// Among servers with equal failures, the servers with the fewest tokens are preferred.
const SERVERS_MAX: usize = 64;

/// The main totals of the run.
pub(super) fn totals(figures: &RunFigures) -> String {
    let steps = &figures.steps;
    let (accepted, filtered) = (steps.sum("fates.accepted"), steps.sum("fates.filtered"));
    let complete = accepted + filtered;
    let tokens = figures.generated_tokens();
    let share = |part: f64, whole: f64| match whole > 0.0 {
        true => format!("{:.1} %", 100.0 * part / whole),
        false => "\u{2013}".to_owned(),
    };
    let tiles = [
        ("steps", figures.count.to_string()),
        ("groups accepted", short(accepted)),
        ("accept rate", share(accepted, complete)),
        ("response tokens", short(tokens)),
        ("of them accepted", share(steps.sum("tokens.accepted"), tokens)),
        ("seconds in steps", short(steps.sum("time.step_s"))),
    ];
    let tile = |(name, value): (&str, String)| format!("<div><b>{value}</b><span>{name}</span></div>");
    format!("<section class=\"tiles\">{}</section>\n{}", tiles.map(tile).concat(), coverage(figures))
}

/// What the numbers of a resumed run leave out; empty if one process made the run.
fn coverage(figures: &RunFigures) -> String {
    if figures.lives == 1 && figures.recovered == 0 {
        return String::new();
    }
    let recovered = match figures.recovered {
        0 => String::new(),
        steps => format!(" Of {}, only the fates are known.", plural(steps, "step")),
    };
    format!(
        "<p>The run was resumed. Steps, groups, fates, filter reasons and the bias are those of all processes. \
         All other numbers of a step cover only the process that ended the step.{recovered}</p>\n"
    )
}

/// A table with a header; every cell is HTML.
fn table(id: &str, title: &str, header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut html = format!(
        "<figure id=\"{id}\" class=\"wide\"><figcaption><b>{title}</b></figcaption><table><thead><tr>"
    );
    for name in header {
        let _ = write!(html, "<th>{name}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = write!(html, "<tr>{cells}</tr>");
    }
    html.push_str("</tbody></table></figure>\n");
    html
}

/// A value as the text of a cell.
fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) => exact(number.as_f64().unwrap_or_default()),
        Value::String(text) => escaped(text),
        Value::Null => "\u{2013}".to_owned(),
        other => escaped(&other.to_string()),
    }
}

/// The table of the slowest groups of the run, each with its slowest sample.
pub(super) fn slowest(figures: &RunFigures) -> String {
    let header = [
        "step",
        "seconds",
        "dispatch",
        "prompt",
        "row",
        "tokens",
        "slowest sample on",
        "permit, s",
        "engine, s",
        "reward, s",
    ];
    let keys = ["dispatch", "prompt_uid", "row", "tokens", "server", "permit_s", "engine_s", "reward_s"];
    let rows = figures.slowest.iter().map(|slow| {
        let mut row = vec![slow.step.to_string(), exact(slow.seconds)];
        row.extend(keys.iter().map(|key| cell(&slow.group[*key])));
        row
    });
    table("slowest", "Slowest accepted groups", &header, rows)
}

/// The table of the servers and their work.
pub(super) fn servers(figures: &RunFigures) -> String {
    let mut servers: Vec<(&String, &[f64; 4])> = figures.servers.iter().collect();
    servers.sort_by(|(_, one), (_, other)| other[3].total_cmp(&one[3]).then(one[1].total_cmp(&other[1])));
    servers.truncate(SERVERS_MAX);
    servers.sort_unstable_by_key(|(name, _)| *name);
    let rows = servers.into_iter().map(|(name, load)| {
        let numbers = load.iter().map(|number| exact(*number));
        std::iter::once(escaped(name)).chain(numbers).collect()
    });
    let header = ["server", "samples finished", "their tokens", "samples cut off", "failed requests"];
    table("servers", "Servers", &header, rows)
}

/// The table of the newest steps, the newest step first.
pub(super) fn newest(figures: &RunFigures) -> String {
    let header = [
        "step",
        "end",
        "seconds",
        "accepted",
        "wanted",
        "accept rate",
        "reward",
        "length",
        "tokens/s",
        "policy version",
    ];
    let places = [
        "/step",
        "/end",
        "/time/step_s",
        "/fates/accepted",
        "/groups/target",
        "/groups/accept_rate",
        "/rewards/mean",
        "/lengths/mean",
        "/samples/tokens_per_s",
        "/policy_version",
    ];
    let rows =
        figures.newest.iter().rev().map(|line| {
            places.iter().map(|place| cell(line.pointer(place).unwrap_or(&Value::Null))).collect()
        });
    table("newest", "Newest steps", &header, rows)
}
