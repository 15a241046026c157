//! Tests of `steps.jsonl`, `validation.jsonl` and `rolldock report`, on the files of real runs.
//!
//! The figures are compared with the rows of the queue and with the ledger, which are written independently.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rolldock_ledger::LedgerState;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Rolldock, recipe, root};

const STEPS: usize = 4;
const GROUPS: usize = 4;
const SAMPLES: usize = 4;

/// A run that takes about a second, and whose rows stay in the queue.
const SMALL: [&str; 12] = [
    "run.steps=4",
    "fleet.simulated.time_scale=0.002",
    "fleet.simulated.mean_response_length=40",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    // With a launch on demand, the first launch is generous. Within 4 steps, its groups would not be decided,
    // and the bias would not be known.
    "rollout.launch=batch",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "queue.consumer={task=\"train\",take_groups=1,keep_last_steps=9}",
    "validation.every_steps=2",
    "report.timelines=2",
    "report.tensorboard=true",
];

fn small_run(out: &Path) -> Rolldock {
    let run = Rolldock::new(&["run", "--out"]).arg(out).arg(recipe("quickstart.toml"));
    SMALL.iter().fold(run, |run, set| run.set(set))
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The names that the guide documents for a file, with their types.
fn documented(file: &str) -> BTreeMap<String, String> {
    let guide = fs::read_to_string(root().join("docs/src/figures.md")).unwrap();
    let section = guide.split("\n## ").find(|section| section.starts_with(&format!("`{file}`"))).unwrap();
    let mut names = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, kind, _unit, _meaning, _] = cells.as_slice() else { panic!("{line}") };
        let is_new = names.insert(name.trim_matches('`').to_owned(), (*kind).to_owned()).is_none();
        assert!(is_new, "{name} is documented twice");
    }
    names
}

/// Checks that a value and all values in it are as documented. Adds the names that occur to `seen`.
fn check(name: &str, value: &Value, names: &BTreeMap<String, String>, seen: &mut BTreeSet<String>) {
    let kind = names.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
    seen.insert(name.to_owned());
    let (kind, may_be_null) =
        kind.strip_suffix(" or null").map_or((kind.as_str(), false), |kind| (kind, true));
    match (kind, value) {
        (_, Value::Null) => assert!(may_be_null, "{name} is null"),
        ("integer", value) => assert!(value.is_u64(), "{name}: {value}"),
        ("number", value) => assert!(value.is_number(), "{name}: {value}"),
        ("string", value) => assert!(value.is_string(), "{name}: {value}"),
        ("boolean", value) => assert!(value.is_boolean(), "{name}: {value}"),
        ("list", Value::Array(items)) => {
            items.iter().for_each(|item| check(&format!("{name}[]"), item, names, seen));
        }
        ("object", Value::Object(inner)) => check_members(&format!("{name}."), inner, names, seen),
        (kind, value) => panic!("{name}: expected {kind}, found {value}"),
    }
}

/// Checks the members of an object. It must have exactly the documented members.
fn check_members(
    prefix: &str,
    members: &serde_json::Map<String, Value>,
    names: &BTreeMap<String, String>,
    seen: &mut BTreeSet<String>,
) {
    let any = format!("{prefix}*");
    for (member, value) in members {
        let name = if names.contains_key(&any) { any.clone() } else { format!("{prefix}{member}") };
        check(&name, value, names, seen);
    }
    let required = names.keys().filter_map(|name| name.strip_prefix(prefix));
    for member in required.filter(|member| !member.contains(['.', '[', '*'])) {
        assert!(members.contains_key(member), "{prefix}{member} is absent");
    }
}

/// Checks all lines of a file. Returns the documented names that do not occur.
fn check_file(out: &Path, file: &str) -> Vec<String> {
    let (names, mut seen) = (documented(file), BTreeSet::new());
    assert!(names.len() > 20, "{names:?}");
    for line in lines(&out.join(file)) {
        let Value::Object(members) = &line else { panic!("{line}") };
        check_members("", members, &names, &mut seen);
    }
    names.into_keys().filter(|name| !seen.contains(name)).collect()
}

/// Checks that each ended step has one line, with the fates of the ledger.
pub(crate) fn check_against_ledger(out: &Path, state: &LedgerState) {
    let lines = lines(&out.join("steps.jsonl"));
    let by_step: BTreeMap<u64, &Value> =
        lines.iter().map(|line| (line["step"].as_u64().unwrap(), line)).collect();
    assert_eq!(by_step.len(), lines.len(), "a step has two lines");
    assert!(by_step.keys().eq(state.steps().keys()), "{:?} {:?}", by_step.keys(), state.steps().keys());
    for (step, kept) in state.steps() {
        let (fates, totals) = (&by_step[step]["fates"], &kept.totals);
        let of_ledger = [
            ("accepted", totals.accepted),
            ("filtered", totals.filtered),
            ("held", totals.held),
            ("requeued", totals.requeued),
            ("carried", totals.carried),
            ("cancelled", totals.cancelled),
            ("stale", totals.stale),
            ("failed", totals.failed),
        ];
        for (fate, count) in of_ledger {
            assert_eq!(fates[fate], count, "step {step}: {fate}: {fates} {totals:?}");
        }
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn assert_near(found: &Value, expected: f64) {
    assert!((number(found) - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found} {expected}");
}

/// Checks the figures of a step against the rows that it has put.
fn check_against_rows(step: &Value, rows: &[Value]) {
    let column = |name: &str| -> Vec<f64> { rows.iter().map(|row| number(&row[name])).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let rewards = column("reward");
    assert_near(&step["rewards"]["mean"], mean(&rewards));
    let squares: Vec<f64> = rewards.iter().map(|reward| reward * reward).collect();
    let variance = mean(&squares) - mean(&rewards).powi(2);
    assert!((number(&step["rewards"]["std"]).powi(2) - variance).abs() < 1e-4, "{}", step["rewards"]);
    assert_near(&step["rewards"]["acc_mean"], mean(&column("acc")));
    assert_near(&step["rewards"]["score_mean"], mean(&column("score")));
    let count = |name: &str| -> Vec<f64> {
        rows.iter().map(|row| row[name].as_array().unwrap().len() as f64).collect()
    };
    let mut lengths = count("response_ids");
    assert_near(&step["lengths"]["mean"], mean(&lengths));
    assert_near(&step["lengths"]["prompt_mean"], mean(&count("prompt_ids")));
    lengths.sort_by(f64::total_cmp);
    assert_near(&step["lengths"]["min"], lengths[0]);
    assert_near(&step["lengths"]["p50"], lengths[lengths.len() / 2 - 1]);
    assert_near(&step["lengths"]["max"], lengths[lengths.len() - 1]);
    assert_near(&step["tokens"]["accepted"], lengths.iter().sum());
    let slowest = rows.iter().map(|row| number(&row["ended_s"]) - number(&row["dispatched_s"]));
    assert_near(&step["slowest"][0]["seconds"], slowest.fold(0.0, f64::max));
    assert_eq!(step["slowest"].as_array().unwrap().len(), GROUPS);
}

#[test]
fn figures_have_the_documented_form_and_agree_with_rows_and_ledger() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out).set("data.history.sampling=difficulty").succeeds();
    let absent = check_file(&out, "steps.jsonl");
    assert!(absent.is_empty(), "documented and never written: {absent:?}");
    let absent = check_file(&out, "validation.jsonl");
    assert!(absent.is_empty(), "documented and never written: {absent:?}");
    let (state, _) = LedgerState::read(&out).unwrap();
    check_against_ledger(&out, &state);

    let steps = lines(&out.join("steps.jsonl"));
    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(&out).succeeds().stdout;
    let rows: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((steps.len(), rows.len()), (STEPS, STEPS * GROUPS * SAMPLES));
    for (step, rows) in steps.iter().zip(rows.chunks(GROUPS * SAMPLES)) {
        check_against_rows(step, rows);
        assert_eq!(
            step["history"]["foreseen"], 0,
            "no prompt has a history in the first epoch: {}",
            step["history"]
        );
    }
    assert!(rows.iter().all(|row| row["importance_weight"] == 1.0), "all rows have a weight");
    let validated: Vec<u64> =
        lines(&out.join("validation.jsonl")).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(validated, [2, 4]);
}

#[test]
fn a_validation_names_the_version_that_its_tokens_are_of() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let trainer =
        "queue.consumer={task=\"train\",take_groups=4,keep_last_steps=0,train_s=0.01,announces=true}";
    let run = small_run(&out).set("policy.mode=sync").set("validation.every_steps=3").set(trainer);
    run.succeeds();
    let validations = lines(&out.join("validation.jsonl"));
    let export = ["queue", "export", "--format", "jsonl", "--partition", "validation"];
    let exported = Rolldock::new(&export).arg(&out).succeeds().stdout;
    // The servers report the versions of the rows.
    let versions: BTreeSet<u64> = exported
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["policy_version_min"].as_u64().unwrap())
        .collect();
    assert_eq!(validations.len(), 1);
    assert_eq!(validations[0]["policy_version"].as_u64(), versions.first().copied());
    assert!(versions.first() >= Some(&2), "the third step is of version 2, and not of {versions:?}");
}

/// For each server, the number of samples in the requests of a timeline that ended with `end`.
fn samples_of(timeline: &Value, end: &str) -> BTreeMap<String, u64> {
    let mut samples = BTreeMap::new();
    for request in timeline["requests"].as_array().unwrap() {
        let [server, _dispatch, count, began, ended, how] = request.as_array().unwrap().as_slice() else {
            panic!("{request}")
        };
        assert!(number(began) <= number(ended) && number(ended) <= number(&timeline["ended_s"]) + 1e-6);
        if how == end {
            let name = timeline["servers"][server.as_u64().unwrap() as usize].as_str().unwrap();
            *samples.entry(name.to_owned()).or_default() += count.as_u64().unwrap();
        }
    }
    samples
}

#[test]
fn a_timeline_has_the_requests_of_each_server_and_a_page_shows_them() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out).succeeds();
    let mut kept: Vec<String> = fs::read_dir(out.join("timeline"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, ["step-3.json", "step-4.json"], "the newest two");
    for step in &lines(&out.join("steps.jsonl"))[2..] {
        let file = out.join(format!("timeline/step-{}.json", step["step"]));
        let timeline: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let (answered, cut_off) = (samples_of(&timeline, "answered"), samples_of(&timeline, "cut_off"));
        for (server, load) in step["servers"].as_object().unwrap() {
            let count = |of: &BTreeMap<String, u64>| of.get(server).copied().unwrap_or(0);
            // A sample with an answer but without a grade at the end of the step does not count as finished.
            assert!(count(&answered) >= load["samples"].as_u64().unwrap(), "{server}: {timeline}");
            assert_eq!(count(&cut_off), load["cut_off"], "{server}: {timeline}");
        }
    }

    let page = dir.path().join("page.html");
    let report = |more: &[&str]| {
        let command = Rolldock::new(&["report", "--output"]).arg(&page).arg(&out);
        more.iter().fold(command, |command, argument| command.arg(argument))
    };
    report(&["--step", "3"]).succeeds();
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("Requests of step 3"), "the step that was asked for");
    assert!(!html.contains("http") && !html.contains("<script") && !html.contains("url("), "self-contained");
    let refused = report(&["--step", "1"]).fails(2);
    assert!(
        refused.stderr.contains("of step 1 are kept; expected one of the steps [3, 4]"),
        "{}",
        refused.stderr
    );
    Rolldock::new(&["report"]).arg(&out).succeeds();
    assert!(out.join("report.html").exists());
    fs::remove_dir_all(out.join("timeline")).unwrap();
    let without = report(&["--step", "3"]).fails(2);
    assert!(without.stderr.contains("keeps no times of requests; expected no --step"), "{}", without.stderr);

    let nothing = Rolldock::new(&["report"]).arg(dir.path()).fails(1);
    assert!(
        nothing.stderr.contains("steps.jsonl is missing or empty; expected the directory"),
        "{}",
        nothing.stderr
    );
    fs::write(out.join("steps.jsonl"), "{\"step\":1}\n{}\n").unwrap();
    let damaged = report(&[]).fails(1);
    assert!(damaged.stderr.contains("steps.jsonl is damaged at line 2"), "{}", damaged.stderr);
}

#[test]
fn a_resumed_run_adds_lines_that_are_missing_and_drops_what_is_not_whole() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out).set("run.steps=2").succeeds();
    let file = out.join("steps.jsonl");
    let first = fs::read_to_string(&file).unwrap().lines().next().unwrap().to_owned();
    fs::write(&file, format!("{first}\n{{\"step\":2,\"end\":")).unwrap();
    small_run(&out).set("run.steps=3").succeeds();

    check_file(&out, "steps.jsonl");
    let (state, _) = LedgerState::read(&out).unwrap();
    check_against_ledger(&out, &state);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().next(), Some(first.as_str()), "a line is never changed");
    let recovered: Vec<(Value, Value)> =
        lines(&file).into_iter().map(|line| (line["recovered"].clone(), line["life"].clone())).collect();
    let expected = [(false.into(), 1.into()), (true.into(), Value::Null), (false.into(), 2.into())];
    assert_eq!(recovered, expected);
    let events = fs::read_dir(out.join("tensorboard")).unwrap().count();
    assert_eq!(events, 1, "one event file has all steps");
}
