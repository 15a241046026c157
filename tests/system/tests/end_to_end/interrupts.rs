//! Tests of what an interrupt finds under way: a validation, a full queue, and consumers. Also of a reader of batches
//! that has gone, and of a step that ends short.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rolldock_ledger::LedgerState;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Rolldock, Running, recipe, root, small_run, wait_for, wait_within};

/// The longest time that a run may need to end after an interrupt. It is far below the times for which the runs of
/// these tests would go on.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn quickstart(out: &Path, sets: &[&str]) -> Rolldock {
    let run = Rolldock::new(&["run", "--out"]).arg(out).arg(recipe("quickstart.toml"));
    sets.iter().fold(run, |run, set| run.set(set))
}

/// A take of more groups than there are, over a connection of its own.
pub(crate) struct WaitingTake(TcpStream);

impl WaitingTake {
    /// Begins a take from the queue at `at`, which is a host with a port.
    pub(crate) fn start(at: &str, partition: &str, task: &str) -> Self {
        let mut connection = TcpStream::connect(at).unwrap();
        let take =
            format!(r#"{{"task": "{task}", "groups": 100000, "at_least": 100000, "wait_ms": 100000}}"#);
        write!(
            connection,
            "POST /v1/partitions/{partition}/take HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{take}",
            take.len()
        )
        .unwrap();
        Self(connection)
    }

    /// Waits for the end of the connection. Returns whether the queue has said that nothing more is put.
    pub(crate) fn heard_of_an_end(mut self) -> bool {
        let mut answer = String::new();
        // The connection may be reset instead of answered.
        let _ = self.0.read_to_string(&mut answer);
        answer.contains(" 204 ") || answer.contains("rolldock-ended")
    }
}

/// Interrupts the run, and returns its standard output.
pub(crate) fn interrupted(mut run: Running) -> String {
    run.interrupt();
    wait_within(ENDS_WITHIN, "end of the run", || run.has_ended());
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("interrupted after"), "{}", ended.stdout);
    ended.stdout
}

/// The quickstart recipe without its consumer, in a file in `dir`.
fn served(dir: &TempDir) -> PathBuf {
    let text = std::fs::read_to_string(recipe("quickstart.toml")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("consumer = ")).map(|line| format!("{line}\n"));
    let own = dir.path().join("recipe.toml");
    let data = root().join("data");
    std::fs::write(&own, lines.collect::<String>().replace("../data", data.to_str().unwrap())).unwrap();
    own
}

fn validations(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("validation.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_interrupted_validation_has_no_result_and_runs_again() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    // The validation has 64 prompts and a server at a time runs 8 samples, so it takes many times as long as the step.
    let sets = [
        "run.steps=1",
        "fleet.simulated.time_scale=0.05",
        "fleet.simulated.mean_response_length=100",
        "fleet.max_loads_per_server=8",
        "rollout.train_batch_size=2",
        "rollout.gen_batch_size=4",
        "rollout.samples_per_prompt=4",
        "queue.consumer.take_groups=2",
        "validation.every_steps=1",
        "validation.samples_per_prompt=4",
    ];
    let run = quickstart(&out, &sets).start();
    wait_for("the step", || run.stdout_so_far().contains("target reached"));
    let said = interrupted(run);
    assert!(said.contains("validation after step 1: interrupted"), "{said}");
    assert_eq!(validations(&out), Vec::<Value>::new());

    let said = Rolldock::new(&["run", "--resume"]).arg(&out).succeeds().stdout;
    assert!(said.contains("validation after step 1: 64 prompts"), "{said}");
    let [validation] = validations(&out).try_into().unwrap();
    assert_eq!((&validation["step"], &validation["prompts"]), (&1.into(), &64.into()), "{validation}");
}

#[test]
fn an_interrupted_run_waits_once_for_room_in_a_full_queue() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    // No client takes rows. The queue has room for 2 of the 128 groups. The run accepts the others while it waits for
    // room.
    let own = served(&dir);
    let run = Rolldock::new(&["run", "--steps", "1", "--out"]).arg(&out).arg(&own);
    let sets = [
        "fleet.simulated.time_scale=0.001",
        "fleet.simulated.mean_response_length=40",
        "rollout.early_stop=off",
        "rollout.train_batch_size=128",
        "rollout.gen_batch_size=256",
        "rollout.samples_per_prompt=4",
        "rollout.max_response_length=256",
        "queue.capacity_rows=8",
        "queue.listen=127.0.0.1:0",
    ];
    let run = sets.iter().fold(run, |run, set| run.set(set)).start();
    wait_for("accepted groups without room", || {
        LedgerState::read(&out).is_ok_and(|(state, _)| state.totals().accepted > 40)
    });
    // It would take two minutes if the run waited a second for each group.
    interrupted(run);
}

/// A consumer that waits for a whole step is not told that the puts have ended, because the next process of the run
/// completes the step.
#[test]
fn an_interrupted_run_does_not_end_the_puts() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let sets = [
        "fleet.simulated.time_scale=0.05",
        "fleet.simulated.mean_response_length=40",
        "rollout.train_batch_size=4",
        "rollout.gen_batch_size=8",
        "rollout.samples_per_prompt=4",
        "queue.capacity_rows=65536",
        "queue.listen=127.0.0.1:0",
        "validation.every_steps=1000000",
    ];
    let run = Rolldock::new(&["run", "--steps", "1000", "--out"]).arg(&out).arg(served(&dir));
    let run = sets.iter().fold(run, |run, set| run.set(set)).start();
    let at = run.url_after("serving the queue at http://");
    let waiting = WaitingTake::start(&at, "train", "train");
    wait_for("a step", || run.stdout_so_far().contains("target reached"));
    interrupted(run);
    assert!(!waiting.heard_of_an_end());
}

/// A short step does not end a run, also if its steps overlap. The run waits for the version of each step, so its own
/// consumer announces one for a short step too. All steps but the last are trained on.
#[test]
fn a_run_goes_on_after_short_steps() {
    for mode in ["sync", "one_step_off", "fully_async"] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let mode = format!("policy.mode={mode}");
        let sets = [
            mode.as_str(),
            "queue.consumer={task=\"train\",take_groups=4,announces=true,keep_last_steps=1}",
            "rollout.gen_batch_size=4",
            "rollout.max_gen_batches=1",
            "run.on_short=short",
        ];
        let run = sets.iter().fold(small_run(&out, "6"), |run, set| run.set(set)).succeeds();
        assert!(run.stdout.contains("SHORT: every generation batch is used up"), "{}", run.stdout);
        assert!(run.stdout.contains("done: 6 steps"), "{}", run.stdout);
        let (state, _) = LedgerState::read(&out).unwrap();
        let accepted: Vec<u64> = state.steps().values().map(|step| step.totals.accepted).collect();
        let took = format!("the run's own consumer took {} groups; ", accepted[..5].iter().sum::<u64>());
        assert!(run.stdout.contains(&took), "{took:?} of {accepted:?} is not in\n{}", run.stdout);
    }
}

#[test]
fn an_interrupt_does_not_wait_for_a_consumer_that_trains() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let run = small_run(&out, "1000").set("queue.consumer.train_s=1000.0").start();
    wait_for("a step", || run.stdout_so_far().contains("target reached"));
    interrupted(run);
    // The batch that the consumer trained on is still there.
    let said =
        Rolldock::new(&["consume"]).arg(&out).args(["--groups", "2", "--max-batches", "1"]).succeeds().stdout;
    assert!(said.contains("batch 1: 2 groups, 8 rows"), "{said}");
}

#[test]
fn a_batch_that_nobody_reads_is_not_acked() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out, "4").set("queue.consumer.keep_last_steps=4").set("queue.capacity_rows=4096").succeeds();
    let rows = |said: &str| said.lines().last().unwrap().to_owned();
    let before = Rolldock::new(&["consume"]).arg(&out).arg("--leave").succeeds().stdout;
    for output in [closed_pipe(), full_disk()] {
        Rolldock::new(&["consume"]).arg(&out).args(["--groups", "2"]).to(output);
        let after = Rolldock::new(&["consume"]).arg(&out).arg("--leave").succeeds().stdout;
        assert_eq!(rows(&after), rows(&before), "all rows are left");
    }
}

/// A pipe whose reader has gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full_disk() -> Stdio {
    std::fs::File::options().write(true).open("/dev/full").unwrap().into()
}
