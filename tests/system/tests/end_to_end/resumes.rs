//! Resumed runs whose recipe, directory or place has changed, and the errors that say what to do.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use rolldock_dispatch::Fate;
use rolldock_ledger::{KeptGroup, LedgerConfig, LedgerState, LedgerWriter};
use rolldock_tests::free_address;
use tempfile::TempDir;

use crate::support::{Rolldock, SMALL, recipe, root, small_run, wait_for};

/// A run of one step that is killed while its first prompts are under way.
fn killed(out: &Path) {
    let run = small_run(out, "1").set("fleet.simulated.time_scale=50").start();
    wait_for("dispatches", || LedgerState::read(out).is_ok_and(|(state, _)| state.totals().dispatched > 0));
    run.kill();
}

fn resumed(out: &Path) -> Rolldock {
    Rolldock::new(&["run", "--resume"]).arg(out).set("fleet.simulated.time_scale=0.002")
}

#[test]
fn a_waiting_prompt_that_is_too_long_now_is_refused_with_the_key_that_has_changed() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    killed(&out);
    let refused = resumed(&out).set("data.max_prompt_length=3").fails(1).stderr;
    for words in [
        "data.max_prompt_length has changed from 256 to 3",
        "resume with --set data.max_prompt_length=256, or name another --out",
    ] {
        assert!(refused.contains(words), "{words} in {refused}");
    }
    assert!(!refused.contains("the data has changed"), "{refused}");
    let cut = resumed(&out).set("data.max_prompt_length=3").set("data.overlong_prompts=truncate_left");
    let refused = cut.fails(2).stderr;
    assert!(refused.contains("data.max_prompt_length: 256 -> 3 (refused: "), "{refused}");
    assert!(refused.contains("resume it with the old values, or name another --out"), "{refused}");
    resumed(&out).set("data.max_prompt_length=300").succeeds();
}

#[test]
fn a_run_with_relative_paths_is_resumed_from_another_directory() {
    let dir = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    let recipes = dir.path().join("recipes");
    fs::create_dir(&recipes).unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let text = fs::read_to_string(recipe("quickstart.toml")).unwrap();
    fs::write(recipes.join("base.toml"), text.replace("../data/arithmetic", "../data")).unwrap();
    fs::write(recipes.join("own.toml"), "base = \"base.toml\"\n").unwrap();
    for file in ["train.jsonl", "validation.jsonl"] {
        fs::copy(root().join("data/arithmetic").join(file), dir.path().join("data").join(file)).unwrap();
    }
    let small = |run: Rolldock| SMALL.iter().fold(run, |run, set| run.set(set));
    let begun = Rolldock::new(&["run", "--steps", "1", "--out", "run", "recipes/own.toml"]);
    small(begun.within(dir.path())).succeeds();

    let out = dir.path().join("run");
    let said = Rolldock::new(&["run", "--steps", "2", "--resume"]).arg(&out).within(elsewhere.path());
    assert!(said.succeeds().stdout.contains("the run continues"));
    // The recipe itself is the same recipe from there.
    let named = Rolldock::new(&["run", "--steps", "3", "--out"]).arg(&out).arg(recipes.join("own.toml"));
    let said = small(named.within(elsewhere.path())).succeeds();
    assert!(!said.stderr.contains("the recipe has changed: data"), "{}", said.stderr);
}

/// A start that waits for its reward has opened its ledger and its queue, and has sent out nothing.
#[test]
fn a_run_that_is_killed_while_it_starts_can_be_resumed_and_started_again() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let reward = format!("reward.http=http://{}", silent.local_addr().unwrap());
    let run = small_run(&out, "1").set(&reward).start();
    silent.set_nonblocking(true).unwrap();
    let mut asking = Vec::new();
    wait_for("the check of the reward", || {
        asking.extend(silent.accept().ok());
        !asking.is_empty()
    });
    run.kill();
    drop(asking);
    drop(silent);
    let resumed = Rolldock::new(&["run", "--resume"]).arg(&out).fails(1).stderr;
    assert!(resumed.contains("the reward cannot be used"), "{resumed}");
    assert!(resumed.contains("go on with: rolldock run --resume "), "{resumed}");
    let other = small_run(&out, "1").set("queue.capacity_rows=64").fails(2).stderr;
    assert!(other.contains("queue.capacity_rows: 32 -> 64 (refused: "), "{other}");
    small_run(&out, "1").succeeds();
}

#[test]
fn a_run_without_its_recipe_says_whether_anything_was_collected_and_what_to_do() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    fs::create_dir(&out).unwrap();
    let resumed = || Rolldock::new(&["run", "--resume"]).arg(&out);
    for left in [&b""[..], b"ROLLDOCK-LEDGER-1\n"] {
        fs::write(out.join("ledger.log"), left).unwrap();
        let refused = resumed().fails(2).stderr;
        assert!(refused.contains("was ended while it started, and nothing was collected"), "{refused}");
        assert!(refused.contains("start it again with `rolldock run RECIPE --out "), "{refused}");
    }
    small_run(&out, "1").succeeds();
    fs::remove_file(out.join("recipe.toml")).unwrap();
    let refused = resumed().fails(2).stderr;
    assert!(refused.contains("recipe.toml does not exist, found a ledger of "), "{refused}");
    assert!(refused.contains("rolldock run RECIPE --resume "), "{refused}");
    let named = SMALL.iter().fold(resumed().arg(recipe("quickstart.toml")), |run, set| run.set(set));
    named.set("run.steps=1").succeeds();
}

#[test]
fn lost_tokens_are_an_error_that_names_the_file_and_what_it_is_for() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    killed(&out);
    // The process could have cut off this group before it was killed.
    let opened =
        LedgerWriter::open(&out, LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO })
            .unwrap();
    let (number, id) = opened.state.open().map(|dispatch| (dispatch.number, dispatch.id)).next().unwrap();
    let group = KeptGroup { number, parent: id, samples: Vec::new() };
    opened.writer.append_carried(id, Fate::Carried, Box::new(group));
    opened.writer.close().unwrap();
    let (tokens, away) = (out.join("tokens-1.bin"), dir.path().join("away"));
    fs::rename(&tokens, &away).unwrap();
    let lost = resumed(&out).fails(1).stderr;
    for words in [
        "the tokens of groups that were cut off or held in step 1",
        "put tokens-1.bin back from a copy of the directory, or name another --out",
        &format!("cannot open file={}: No such file", tokens.display()),
    ] {
        assert!(lost.contains(words), "{words} in {lost}");
    }
    fs::rename(&away, &tokens).unwrap();
    resumed(&out).succeeds();
}

#[test]
fn a_run_that_is_under_way_is_not_resumed_and_its_process_is_named() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let listen = format!("queue.listen={}", free_address());
    let run = small_run(&out, "1").set("fleet.simulated.time_scale=50").set(&listen).start();
    wait_for("dispatches", || LedgerState::read(&out).is_ok_and(|(state, _)| state.totals().dispatched > 0));
    let refused = resumed(&out).fails(1).stderr;
    assert!(refused.contains("is under way; end it first, or name another --out"), "{refused}");
    assert!(refused.contains(&format!("ledger.log is in use by process {}", run.id())), "{refused}");
    assert!(!refused.contains("cannot listen") && !refused.contains("go on with"), "{refused}");
    run.kill();
}

/// A small run over the first rows of the data, with all groups valid.
fn run_of_rows(rows: usize, dir: &Path) -> Rolldock {
    let all = fs::read_to_string(root().join("data/arithmetic/train.jsonl")).unwrap();
    let file = dir.join("rows.jsonl");
    fs::write(&file, all.lines().take(rows).map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    let run = small_run(&dir.join("run"), "100").set(&format!("data.train={}", file.display()));
    run.set("filter.enable=false").set("data.epochs=1")
}

/// The numbers of steps, of accepted groups, and of groups in flight.
fn collected(out: &Path) -> (usize, u64, usize) {
    LedgerState::read(out)
        .map_or((0, 0, 0), |(state, _)| (state.steps().len(), state.totals().accepted, state.open().count()))
}

const ASYNCHRONOUS: [&str; 2] =
    ["policy.mode=fully_async", "queue.consumer={task=\"train\",take_groups=4,announces=true}"];

/// Eight rows are two steps of four groups. In `fully_async` the steps are a flow.
#[test]
fn a_run_whose_data_ends_with_a_full_step_gets_no_empty_one() {
    for (mode, settings) in [("off", &[][..]), ("fully_async", &ASYNCHRONOUS[..])] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let run = settings.iter().fold(run_of_rows(8, dir.path()), |run, set| run.set(set));
        let begun = run.succeeds();
        let last = "the data has ended with step 2, and nothing is left to generate";
        assert!(begun.stdout.contains(last) && !begun.stdout.contains("SHORT"), "{mode}: {}", begun.stdout);
        assert!(begun.stdout.contains("done: 2 steps; 8 groups accepted"), "{mode}: {}", begun.stdout);
        assert_eq!(collected(&out), (2, 8, 0), "{mode}");
        let again = resumed(&out).succeeds().stdout;
        assert!(again.contains(last), "{mode}: {again}");
        resumed(&out).set("data.epochs=2").succeeds();
        assert_eq!(collected(&out), (4, 16, 0), "{mode}");
    }
}

/// Six rows are one step of four groups and a short one of two. In `fully_async` no trainer announces a version for a
/// step after the short one.
#[test]
fn a_run_whose_data_has_ended_gets_no_further_step_when_it_is_resumed() {
    for (mode, settings) in [("off", &[][..]), ("fully_async", &ASYNCHRONOUS[..])] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let run = settings.iter().fold(run_of_rows(6, dir.path()), |run, set| run.set(set));
        let begun = run.succeeds();
        assert!(begun.stdout.contains("the data set has no more prompts"), "{mode}: {}", begun.stdout);
        assert_eq!(collected(&out), (2, 6, 0), "{mode}");
        for _ in 0..2 {
            let again = resumed(&out).succeeds().stdout;
            assert!(
                again.contains("the data has ended with step 2, and nothing is left to generate"),
                "{again}"
            );
            assert!(again.contains("done: 2 steps; 6 groups accepted"), "{mode}: {again}");
            assert_eq!(collected(&out), (2, 6, 0), "{mode}");
        }
        let why = Rolldock::new(&["why"]).arg(&out).succeeds().stdout;
        assert!(
            why.contains("the data had no more prompts. The run is complete. `rolldock run --resume "),
            "{why}"
        );
        if mode == "off" {
            resumed(&out).set("data.epochs=2").succeeds();
            assert_eq!(collected(&out), (4, 12, 0), "the second epoch is a step and a short one");
        }
    }
}
