//! `rolldock why` on runs that wait, that have ended, and that have died.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::metrics::address;
use crate::support::{Rolldock, recipe, wait_for};

/// A run on three simulated servers. The last server is hundreds of times as slow as the others.
fn run(out: &Path, slow: f64, steps: &str) -> Rolldock {
    let run = Rolldock::new(&["run", "--steps", steps, "--out"]).arg(out).arg(recipe("quickstart.toml"));
    let speeds = format!("fleet.simulated.speeds=[1.0,1.0,{slow:?}]");
    let settings = [
        speeds.as_str(),
        "fleet.simulated.servers=3",
        "fleet.simulated.time_scale=0.02",
        "fleet.simulated.mean_response_length=40",
        "fleet.policy=round_robin",
        "fleet.probe_interval=0.1",
        "rollout.train_batch_size=4",
        "rollout.gen_batch_size=8",
        "rollout.samples_per_prompt=4",
        "rollout.max_response_length=256",
        "queue.consumer.keep_last_steps=0",
        "validation.every_steps=1000000",
    ];
    settings.iter().fold(run, |run, set| run.set(set))
}

fn why(source: impl AsRef<Path>) -> String {
    Rolldock::new(&["why"]).arg(source.as_ref()).succeeds().stdout
}

#[test]
fn why_names_the_slow_server_that_holds_a_step_and_tells_of_the_end() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let running = run(&out, 0.001, "1000").start();
    let url = address(&running);
    let mut said = String::new();
    wait_for("the slow server is named", || {
        said = why(&out);
        said.contains(": an answer of sim-2, for ") && said.contains("times as fast")
    });
    // The group that holds the step waits for the slow server alone: the others answer in milliseconds.
    let asked: Vec<&str> = said.lines().filter(|line| line.contains(": an answer of ")).collect();
    assert!(asked.iter().all(|line| line.contains("an answer of sim-2, for ")), "{said}");
    for words in [
        "Step 1 has run for ",
        " accepted, in dispatch order",
        "The oldest group that has not ended is that of dispatch ",
        "sim-2 is active, with ",
        "`rolldock fleet remove sim-2`",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    let json = Rolldock::new(&["why", "--json"]).arg(&url).succeeds().stdout;
    let status: Value = serde_json::from_str(&json).unwrap();
    let rate = |server: usize| status["servers"][server]["tokens_per_second"].as_f64().unwrap();
    // By configuration, the first two servers are a thousand times as fast, minus the effect of their larger
    // batches.
    assert!(rate(0) > 50.0 * rate(2) && rate(1) > 50.0 * rate(2), "{json}");
    assert_eq!(status["step"]["step"], 1, "{json}");

    running.interrupt();
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!out.join("address.json").exists(), "a run that has ended has no address");
    let said = why(&out);
    assert!(
        said.contains("The run's process has ended after step 1, with ") && said.contains("was interrupted"),
        "{said}"
    );
    assert!(said.contains("`rolldock run --resume "), "{said}");
    Rolldock::new(&["why"]).arg(&url).fails(1);
}

#[test]
fn why_distinguishes_a_killed_run_from_a_complete_one() {
    let dir = TempDir::new().unwrap();
    let none = Rolldock::new(&["why"]).arg(dir.path()).fails(1);
    assert!(none.stderr.contains("holds no run; expected a directory with a ledger.log"), "{}", none.stderr);

    let out = dir.path().join("died");
    let running = run(&out, 0.001, "1000").start();
    address(&running);
    wait_for("a step", || why(&out).contains("Step 1 has run for "));
    // The ledger is written a moment after the events that it records.
    let ledger = || Rolldock::new(&["ledger"]).arg(&out).succeeds().stdout;
    wait_for("the step in the ledger", || ledger().contains(": life 1, 1 step, "));
    running.kill();
    assert!(out.join("address.json").exists(), "no process was left to remove it");
    let said = why(&out);
    assert!(said.contains("The run's process is gone: it ended within step 1, with "), "{said}");
    assert!(said.contains(" dispatches in flight. Nothing is waited for."), "{said}");

    let out = dir.path().join("complete");
    run(&out, 1.0, "1").succeeds();
    let said = why(&out);
    assert_eq!(
        said.trim(),
        "The run's process has ended after step 1, with 4 of 4 groups accepted: the step reached its target. The \
         run is complete: it has done 1 step."
    );
}
