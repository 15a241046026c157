//! A trainer beside a synchronous run: the trainer gets only rows of the version that it announced last. No
//! prompt is left out, although groups are held and cut off and the run is killed.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use rolldock_ledger::{LedgerConfig, LedgerState, LedgerWriter, Record, ledger_file, read_log};
use rolldock_queue::{Lease, Queue, QueueError, RemoteConfig, RemoteQueue, Stale, Take};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::vllm::post_json;
use crate::support::{Rolldock, Running, Simengine, pause_for, untaken_recipe, wait_for};

const GROUPS: usize = 4;
const SAMPLES: usize = 2;
const STEPS: u64 = 8;
/// The longest wait for a step.
const PATIENCE: Duration = Duration::from_secs(240);
/// The difference between two versions. The trainer skips numbers, like a trainer that counts optimizer steps.
const BETWEEN_VERSIONS: u64 = 3;
/// The run is killed after the announcements that follow these steps. The second number is the time from the
/// announcement to the kill, in milliseconds. A kill happens during the update, or in the next step.
const KILLS: [(u64, u64); 3] = [(2, 0), (4, 60), (6, 250)];

/// Settings of a small synchronous run over the repository's data, in file order. A generation batch has more
/// groups than a step needs, so each step leaves groups that are valid and groups that still run.
const SETTINGS: [&str; 19] = [
    "fleet.endpoints=[]",
    "fleet.simulated.servers=2",
    "fleet.simulated.time_scale=0.02",
    "fleet.simulated.mean_response_length=60",
    "model.tokenizer=builtin",
    "data.train=data/arithmetic/train.jsonl",
    "data.validation=data/arithmetic/validation.jsonl",
    "data.shuffle=false",
    "filter.enable=false",
    "rollout.early_stop=fifo",
    "rollout.launch=batch",
    "rollout.workers=1",
    "rollout.max_concurrent_prompts=10",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=10",
    "rollout.samples_per_prompt=2",
    "rollout.max_response_length=256",
    "policy.mode=sync",
    "validation.every_steps=1000",
];

/// The addresses of a run for its trainer. All processes of the run use the same addresses.
struct Addresses {
    queue: String,
    policy: String,
}

/// An address that no process uses. Its port is below the range from which the system chooses ports, so the
/// address stays unused while no process of the run listens there.
fn unused_address() -> String {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(31).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.0.0.1:{}", 10_000 + number % 20_000);
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

impl Addresses {
    fn new() -> Self {
        Self { queue: unused_address(), policy: unused_address() }
    }

    fn start(&self, out: &Path, settings: &[&str]) -> Running {
        self.run(out, SETTINGS.iter().chain(settings)).start()
    }

    /// Starts a run on a server of another process.
    fn start_on(&self, server: &Simengine, out: &Path) -> Running {
        let settings = SETTINGS.iter().filter(|setting| !setting.starts_with("fleet."));
        let run = self.run(out, settings).set("model.name=simulated");
        run.arg("--endpoint").arg(&server.url).start()
    }

    fn run<'a>(&self, out: &Path, settings: impl Iterator<Item = &'a &'a str>) -> Rolldock {
        let run = Rolldock::new(&["run", "--out"]).arg(out).arg(untaken_recipe());
        let run = settings.fold(run, |run, set| run.set(set));
        let run = run.set(&format!("queue.listen={}", self.queue));
        run.set(&format!("policy.listen={}", self.policy))
    }

    fn client(&self) -> RemoteQueue {
        RemoteQueue::new(RemoteConfig::new(format!("http://{}", self.queue))).unwrap()
    }

    /// Announces a version until the run has accepted it.
    fn announce(&self, version: u64) {
        let policy = format!("http://{}", self.policy);
        let announcement = json!({ "version": version, "label": format!("v{version}") });
        wait_for("announcement", || post_json(&policy, "/v1/policy/announce", &announcement).is_some());
    }
}

/// A row as a trainer sees it: its versions, and its index in the data.
#[derive(Debug)]
struct Row {
    oldest: u64,
    newest: u64,
    place: u64,
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let version = |name: &str, at: usize| column(name).as_primitive::<UInt64Type>().value(at);
    let text = |name: &str, at: usize| column(name).as_string::<i32>().value(at).to_owned();
    let row = |at: usize| {
        let fields: Value = serde_json::from_str(&text("data_fields", at)).unwrap();
        Row {
            oldest: version("policy_version_min", at),
            newest: version("policy_version_max", at),
            place: fields["extra_info"]["index"].as_u64().unwrap(),
        }
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Leases a whole step. The run may be starting.
async fn lease_step(queue: &RemoteQueue) -> Lease {
    let until = Instant::now() + PATIENCE;
    loop {
        let take = Take { at_least: GROUPS, ..Take::groups("train", GROUPS) };
        match queue.take("train", &take.until(until)).await {
            Ok(Some(lease)) => return lease,
            Err(QueueError::Unreachable { .. }) if Instant::now() < until => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Takes a whole step, acks it, and returns its rows.
async fn take_step(queue: &RemoteQueue) -> Vec<Row> {
    let lease = lease_step(queue).await;
    let rows = lease.batches().iter().flat_map(rows_of).collect();
    lease.ack().await.unwrap();
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_a_synchronous_run_is_of_the_version_announced_last() {
    for on_stop in ["requeue", "carry"] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let addresses = Addresses::new();
        let on_stop = format!("rollout.on_stop={on_stop}");
        let settings = [on_stop.as_str(), "queue.lease_s=60", "run.steps=1000"];
        let mut run = addresses.start(&out, &settings);
        let queue = addresses.client();
        let (mut version, mut places) = (0, Vec::new());
        for step in 1..=STEPS {
            let rows = take_step(&queue).await;
            assert_eq!(rows.len(), GROUPS * SAMPLES);
            for row in rows {
                assert_eq!((row.oldest, row.newest), (version, version), "step={step}: {row:?}");
                places.push(row.place);
            }
            version += BETWEEN_VERSIONS;
            addresses.announce(version);
            if let Some((_, moment)) = KILLS.iter().find(|(of_step, _)| *of_step == step) {
                pause_for(Duration::from_millis(*moment));
                run.kill();
                run = addresses.start(&out, &settings);
                // The run may have been killed before it recorded the announcement.
                addresses.announce(version);
            }
        }
        // The filter is off, so every prompt is accepted, in the order of the data.
        places.dedup();
        assert_eq!(places, (0..STEPS * GROUPS as u64).collect::<Vec<_>>(), "{on_stop}");
        run.interrupt();
        let ended = run.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let (state, _) = LedgerState::read(&out).unwrap();
        let totals = state.totals();
        assert!(totals.held > 0 && totals.stale > 0, "{on_stop}: nothing was held: {totals:?}");
    }
}

/// Writes a run's ledger anew without the records that say that a step has ended.
async fn forget_that_steps_ended(run: &Path) {
    let (old, new) = (ledger_file(run), TempDir::new().unwrap());
    let ledger = LedgerWriter::open(
        new.path(),
        LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO },
    )
    .unwrap()
    .writer;
    let copy = |_, record| {
        if !matches!(record, Record::StepEnd(_)) {
            ledger.append(record);
        }
        Ok(())
    };
    read_log(run, copy).unwrap();
    ledger.sync_all().await.unwrap();
    ledger.close().unwrap();
    std::fs::copy(ledger_file(new.path()), old).unwrap();
}

/// A trainer may be quick enough to take a step, to train on it and to announce its version before the run
/// has recorded that the step has ended. If the run is killed at that moment, this version is the version of
/// the next step.
#[tokio::test]
async fn a_step_that_the_trainer_has_trained_on_needs_no_other_version_after_a_kill() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let addresses = Addresses::new();
    let run = addresses.start(&out, &["run.steps=1"]);
    let queue = addresses.client();
    // The run ends when the rows of its last step are acked.
    let lease = lease_step(&queue).await;
    addresses.announce(BETWEEN_VERSIONS);
    wait_for("recorded version", || LedgerState::read(&out).unwrap().0.policy_version() == BETWEEN_VERSIONS);
    lease.ack().await.unwrap();
    assert_eq!(run.wait().code, Some(0));
    forget_that_steps_ended(&out).await;

    let run = addresses.start(&out, &["run.steps=2"]);
    let rows = take_step(&queue).await;
    let versions = (BETWEEN_VERSIONS, BETWEEN_VERSIONS);
    assert!(rows.iter().all(|row| (row.oldest, row.newest) == versions), "{rows:?}");
    run.interrupt();
    assert_eq!(run.wait().code, Some(0));
}

#[test]
fn a_synchronous_run_waits_for_its_trainer_and_the_watchdog_names_it() {
    let dir = TempDir::new().unwrap();
    let run = Addresses::new().start(&dir.path().join("run"), &["timeouts.silence=0.5"]);
    wait_for("report that names the trainer", || {
        let said = run.stderr_so_far();
        said.contains("the run waits for trainer (phase=trainer") && said.contains("version=1 for step=2")
    });
    assert_eq!(run.stdout_so_far().matches("target reached").count(), 1, "{}", run.stdout_so_far());
    run.interrupt();
    assert_eq!(run.wait().code, Some(0));
}

#[tokio::test]
async fn rows_of_a_lease_that_ends_come_again_after_the_seconds_of_the_recipe() {
    let dir = TempDir::new().unwrap();
    let addresses = Addresses::new();
    let run = addresses.start(&dir.path().join("run"), &["queue.lease_s=0.5"]);
    let queue = addresses.client();
    let take = async || {
        let take = Take { at_least: GROUPS, ..Take::groups("train", GROUPS) };
        queue.take("train", &take.until(Instant::now() + Duration::from_secs(60))).await.unwrap().unwrap()
    };
    let lease = take().await;
    let groups = lease.groups().to_vec();
    // A dead trainer does not give rows back.
    std::mem::forget(lease);
    let again = take().await;
    assert_eq!(again.groups(), groups);
    again.ack().await.unwrap();
    run.interrupt();
    assert_eq!(run.wait().code, Some(0));
}

/// The trainer waits for the step that follows from its version, so it does not announce the version again.
#[tokio::test]
async fn an_update_that_fails_between_two_steps_is_tried_again() {
    let dir = TempDir::new().unwrap();
    let addresses = Addresses::new();
    let can_update = dir.path().join("can-update");
    let command = format!("policy.update.command=[\"test\", \"-e\", {:?}]", can_update.display().to_string());
    let settings = ["policy.update.method=command", &command];
    let run = addresses.start(&dir.path().join("run"), &settings);
    let queue = addresses.client();
    take_step(&queue).await;
    addresses.announce(1);
    wait_for("failed update", || run.stderr_so_far().contains("no server has the new weights"));
    std::fs::write(&can_update, "").unwrap();
    let rows = take_step(&queue).await;
    assert!(rows.iter().all(|row| (row.oldest, row.newest) == (1, 1)), "{rows:?}");
    run.interrupt();
    assert_eq!(run.wait().code, Some(0));
}

/// Servers keep their label when a run ends. Without the weights of this run, their tokens must not look newer than the
/// run.
#[tokio::test]
async fn a_label_that_an_earlier_run_has_left_is_reported_and_not_believed() {
    let dir = TempDir::new().unwrap();
    let addresses = Addresses::new();
    let server = Simengine::start(&["--time-scale", "0.02", "--mean-response-length", "60"]);
    post_json(&server.url, "/update_weight_version", &json!({ "new_version": "step-4" })).unwrap();
    let run = addresses.start_on(&server, &dir.path().join("run"));
    let queue = addresses.client();
    let rows = take_step(&queue).await;
    assert!(rows.iter().all(|row| (row.oldest, row.newest) == (0, 0)), "{rows:?}");
    let said = run.stderr_so_far();
    let warning = "newer than every version that was announced to this run";
    assert_eq!((said.matches(warning).count(), said.contains("step-4")), (1, true), "{said}");
    addresses.announce(1);
    let rows = take_step(&queue).await;
    assert!(rows.iter().all(|row| (row.oldest, row.newest) == (1, 1)), "{rows:?}");
    assert_eq!(run.stderr_so_far().matches(warning).count(), 1, "{}", run.stderr_so_far());
    run.interrupt();
    assert_eq!(run.wait().code, Some(0));
}

/// The run generates two steps with version 0. Its trainer takes the first one. Then it is far ahead, and drops what is
/// older than its own version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_groups_that_become_too_old_in_the_queue_are_in_the_summary() {
    let dir = TempDir::new().unwrap();
    let addresses = Addresses::new();
    let run = addresses.start(&dir.path().join("run"), &["policy.mode=fully_async", "run.steps=2"]);
    let queue = addresses.client();
    assert_eq!(take_step(&queue).await.len(), GROUPS * SAMPLES);
    let take = Take { min_policy_version: 4, stale: Stale::Drop, ..Take::groups("train", GROUPS) };
    // The take ends with the run, because no group is left for it.
    let taken = queue.take("train", &take.until(Instant::now() + PATIENCE)).await;
    assert!(!matches!(taken, Ok(Some(_))), "{taken:?}");
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let stale = format!("the queue dropped {GROUPS} accepted groups ({} rows) as stale: ", GROUPS * SAMPLES);
    assert!(ended.stdout.contains(&stale), "{stale:?} is not in\n{}", ended.stdout);
    assert!(ended.stdout.contains("\n0 rows are left"), "{}", ended.stdout);
}
