//! Pages of small files of figures.

use serde_json::{Value, json};

use super::*;

/// The page of a run with these lines of steps.
fn page(lines: &[Value]) -> String {
    let run = tempfile::tempdir().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(run.path().join(STEPS_FILE), text).unwrap();
    report_page(run.path(), None).unwrap()
}

fn line(step: u64, life: u64, tokens: Value) -> Value {
    json!({
        "step": step, "life": life, "recovered": false, "tokens": tokens,
        "fates": { "accepted": 16, "filtered": 4 }, "time": { "step_s": 2.0 },
    })
}

/// The number of the tile of this name.
fn tile<'a>(page: &'a str, name: &str) -> &'a str {
    let (before, _) = page.split_once(&format!("</b><span>{name}</span>")).unwrap();
    before.rsplit_once("<b>").unwrap().1
}

/// Three steps generate 1,000, 500 and 300 tokens. The tokens that wait at the end of a step are in the buckets of
/// the next step too.
#[test]
fn tokens_that_wait_for_a_later_step_are_counted_once() {
    let page = page(&[
        line(1, 1, json!({ "in_flight": 100, "accepted": 300, "held": 250, "carried": 350 })),
        line(2, 1, json!({ "in_flight": 0, "accepted": 400, "held": 250, "carried": 500, "filtered": 50 })),
        line(3, 1, json!({ "in_flight": 20, "accepted": 650, "held": 60, "carried": 220, "probes": 100 })),
    ]);
    assert_eq!((tile(&page, "response tokens"), tile(&page, "of them accepted")), ("1800", "75.0 %"));
    assert_eq!((tile(&page, "groups accepted"), tile(&page, "accept rate")), ("48", "80.0 %"));
    assert!(page.contains("waiting for the next step count again in it"), "the chart of tokens says so");
    assert!(!page.contains("was resumed"), "one process made the run");
}

#[test]
fn a_page_of_a_resumed_run_says_what_its_numbers_cover() {
    let known = json!({ "accepted": 300, "carried": 100 });
    let recovered = json!({
        "step": 2, "life": null, "recovered": true, "tokens": null, "time": null,
        "fates": { "accepted": 16, "filtered": 4 },
    });
    let page = page(&[line(1, 1, known.clone()), recovered, line(3, 2, known)]);
    assert_eq!((tile(&page, "response tokens"), tile(&page, "of them accepted")), ("700", "85.7 %"));
    assert!(page.contains("The run was resumed.") && page.contains("only the process that ended the step"));
    assert!(page.contains("Of 1 step, only the fates are known."), "{page}");
}
