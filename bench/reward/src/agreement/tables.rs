//! The two tables: the verdicts by kind of pair, and the causes of disagreements.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};

use super::Judged;
use super::cause::Cause;

/// Number of examples that are printed for a cause.
const EXAMPLES: usize = 2;

/// The data sets in the order in which they were judged.
pub(super) fn sets(judged: &[Judged]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = judged.iter().map(|it| it.set).collect();
    names.dedup();
    names
}

fn markdown(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table.add_rows(rows);
    table.to_string()
}

/// The number of pairs of each data set, by the kind of the pair and by the verdicts.
pub(super) fn by_kind(judged: &[Judged]) -> String {
    let header = [
        "data set",
        "the answer is",
        "value",
        "pairs",
        "both right",
        "both wrong",
        "only ours",
        "only theirs",
        "agree",
    ];
    let mut rows = Vec::new();
    for set in sets(judged) {
        let mut kinds: BTreeMap<_, Vec<&Judged>> = BTreeMap::new();
        for it in judged.iter().filter(|it| it.set == set) {
            kinds.entry(it.pair.kind).or_default().push(it);
        }
        for (kind, of_kind) in kinds {
            let count = |ours, theirs| {
                let is_meant = |it: &&&Judged| (it.is_ours_right(), it.is_theirs_right()) == (ours, theirs);
                of_kind.iter().filter(is_meant).count()
            };
            let (right, wrong) = (count(true, true), count(false, false));
            rows.push(vec![
                set.to_owned(),
                kind.name().to_owned(),
                if kind.keeps() { "kept" } else { "changed" }.to_owned(),
                of_kind.len().to_string(),
                right.to_string(),
                wrong.to_string(),
                count(true, false).to_string(),
                count(false, true).to_string(),
                format!("{:.1} %", (right + wrong) as f64 / of_kind.len() as f64 * 100.0),
            ]);
        }
    }
    markdown(&header, rows)
}

/// All disagreements by cause. Disagreements without a cause come first.
pub(super) fn by_cause(judged: &[Judged]) -> String {
    let mut causes: BTreeMap<Option<Cause>, Vec<&Judged>> = BTreeMap::new();
    for it in judged.iter().filter(|it| it.is_disagreement()) {
        causes.entry(it.cause()).or_default().push(it);
    }
    let rows = causes.into_iter().map(|(cause, all)| {
        let ours = all.iter().filter(|it| it.is_ours_right()).count();
        let right = match all.len() - ours {
            0 => "ours".to_owned(),
            theirs if ours == 0 => format!("theirs ({theirs})"),
            theirs => format!("ours in {ours}, theirs in {theirs}"),
        };
        // The examples are far apart in the list, so that their answers are likely to differ.
        let step = (all.len() / EXAMPLES).max(1);
        let examples = all.iter().step_by(step).take(EXAMPLES);
        let examples =
            examples.map(|it| format!("`{}` for `{}`", cell(&it.pair.answer), cell(&it.pair.truth)));
        vec![
            cause.map_or("unexplained", Cause::explanation).to_owned(),
            all.len().to_string(),
            right,
            examples.collect::<Vec<_>>().join("; "),
        ]
    });
    markdown(&["why they differ", "pairs", "right by construction", "for example"], rows)
}

/// A text in a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
