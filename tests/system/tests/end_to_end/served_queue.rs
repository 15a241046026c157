//! Tests of the queue's server as a process: a trainer beside a run, and a server that is killed with
//! SIGKILL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch};
use futures::future::join_all;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rolldock_queue::{PartitionSpec, Put, Queue, QueueError, RemoteConfig, RemoteQueue, Take, TaskSpec};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{Rolldock, Running, untaken_recipe};

/// The longest time of a call to a server that is killed.
const PATIENCE: Duration = Duration::from_secs(240);

/// Settings for the published recipe with a simulated fleet, the data of the repository, and space for the
/// rows of one step.
const SMALL: [&str; 13] = [
    "fleet.endpoints=[]",
    "fleet.simulated.time_scale=0.002",
    "fleet.simulated.mean_response_length=40",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "model.tokenizer=builtin",
    "data.train=data/arithmetic/train.jsonl",
    "data.validation=data/arithmetic/validation.jsonl",
    "queue.capacity_rows=16",
    "queue.listen=127.0.0.1:0",
    "queue.token=secret",
];

#[test]
fn a_trainer_takes_from_a_run_that_is_under_way() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let run = Rolldock::new(&["run", "--steps", "3", "--out"]).arg(&out).arg(untaken_recipe());
    let run = SMALL.iter().fold(run, |run, set| run.set(set)).start();
    let url = run.url_after("serving the queue at ");

    let refused = Rolldock::new(&["queue", "inspect"]).arg(&url).fails(1);
    assert!(refused.stderr.contains("bearer token"), "{}", refused.stderr);
    let inspected = Rolldock::new(&["queue", "inspect", "--token", "secret"]).arg(&url).succeeds().stdout;
    assert!(inspected.contains("of 16 in"), "{inspected}");
    let trainer = Rolldock::new(&["consume", "--groups", "2", "--wait", "60", "--token", "secret"]).arg(&url);
    let trained = trainer.succeeds().stdout;
    assert!(trained.contains("48 rows consumed; 0 rows are left"), "{trained}");
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("done: 3 steps; 12 groups accepted"), "{}", ended.stdout);
    assert!(ended.stdout.contains("0 rows are left"), "{}", ended.stdout);
    assert!(!std::fs::read_to_string(out.join("recipe.toml")).unwrap().contains("secret"));
}

fn serve(dir: &TempDir, address: &str) -> Running {
    Rolldock::new(&["queue", "serve", "--listen", address, "--dir"]).arg(dir.path()).start()
}

/// The tasks of the queue whose server is killed, each with the columns that it needs. `ref` takes rows as
/// they were put; `train` waits for a column that is written later.
const TASKS: [(&str, &[&str]); 2] = [("ref", &[]), ("train", &["reward"])];

/// Leases are short, so rows whose lease was lost with a dead server are ready again within the test.
const LEASE: Duration = Duration::from_secs(2);

/// The answers that clients got from a queue whose server is killed several times.
#[derive(Default)]
struct Known {
    /// Ids of rows whose put was acknowledged. `written` has the ids whose write of a column was acknowledged.
    put: BTreeSet<i64>,
    written: BTreeSet<i64>,
    /// For each task, how often the ack of each id succeeded.
    acked: [BTreeMap<i64, u32>; 2],
    /// The acks that were refused in the first half of their lease.
    refused: Vec<String>,
    given_after_ack: Vec<i64>,
    /// Ids of rows that were delivered with the reward of another row.
    mixed: Vec<i64>,
}

fn column(name: &str, values: Vec<i64>) -> RecordBatch {
    RecordBatch::try_from_iter([(name, Arc::new(Int64Array::from(values)) as _)]).unwrap()
}

fn values(batches: &[RecordBatch], name: &str) -> Vec<i64> {
    let found = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>());
    found.flat_map(|found| found.values().to_vec()).collect()
}

fn reward(id: i64) -> i64 {
    id * 3 + 1
}

/// Puts groups of two rows, and then writes a column to each, until `stop` is cancelled.
async fn produce(queue: &RemoteQueue, known: &Mutex<Known>, first: i64, stop: &CancellationToken) {
    let mut id = first;
    while !stop.is_cancelled() {
        let ids = [id, id + 1];
        let put = Put::group(format!("g{id}"), column("id", ids.to_vec()));
        let rows = queue.put("train", put, Some(PATIENCE)).await.unwrap();
        known.lock().put.extend(ids);
        let rewards = column("reward", ids.map(reward).to_vec());
        queue.write_columns("train", &rows, rewards).await.unwrap();
        known.lock().written.extend(ids);
        id += 2;
    }
}

/// Takes and acks groups as one of the tasks, until the puts have stopped and no rows are left.
async fn consume(queue: &RemoteQueue, known: &Mutex<Known>, task: usize, stop: &CancellationToken) {
    loop {
        let stopped = stop.is_cancelled();
        let take = Take::groups(TASKS[task].0, 3).until(Instant::now() + Duration::from_millis(500));
        let lease = match queue.take("train", &take).await {
            Ok(Some(lease)) => lease,
            Err(QueueError::Deadline { .. }) if stopped => return,
            // The server was down, or had no rows, until the deadline of the take.
            Err(QueueError::Deadline { .. } | QueueError::Unreachable { .. }) => continue,
            other => panic!("{other:?}"),
        };
        let leased = Instant::now();
        let ids = values(lease.batches(), "id");
        {
            let mut known = known.lock();
            let acked: Vec<i64> =
                ids.iter().copied().filter(|id| known.acked[task].contains_key(id)).collect();
            known.given_after_ack.extend(acked);
            if TASKS[task].1.contains(&"reward") {
                let rewards = values(lease.batches(), "reward");
                let mixed = ids.iter().zip(rewards).filter(|(id, found)| reward(**id) != *found);
                known.mixed.extend(mixed.map(|(id, _)| *id));
            }
        }
        let outcome = lease.ack().await;
        let mut known = known.lock();
        match outcome {
            Ok(()) => ids.iter().for_each(|id| *known.acked[task].entry(*id).or_default() += 1),
            Err(error) if leased.elapsed() < LEASE / 2 => {
                known.refused.push(format!("{ids:?} after {:?}: {error}", leased.elapsed()));
            }
            // On a busy machine the lease may have expired. Its rows are then given again.
            Err(_) => {}
        }
    }
}

fn check(known: &Known, rounds: u32) {
    eprintln!("{} rows put in {rounds} rounds", known.put.len());
    assert!(known.put.len() > rounds as usize * 4, "only {} rows", known.put.len());
    assert_eq!(known.put, known.written, "columns that were not written");
    assert_eq!(known.given_after_ack, Vec::<i64>::new(), "given again after an acknowledged ack");
    assert_eq!(known.mixed, Vec::<i64>::new(), "another row's column");
    for (acked, (task, _)) in known.acked.iter().zip(TASKS) {
        assert!(acked.values().all(|count| *count == 1), "{task}: a lease was honoured twice");
        let lost: Vec<&i64> = known.put.iter().filter(|id| !acked.contains_key(id)).collect();
        assert!(lost.is_empty(), "{task}: lost: {lost:?}");
        let unknown: Vec<&i64> = acked.keys().filter(|id| !known.put.contains(id)).collect();
        assert!(unknown.is_empty(), "{task}: never put: {unknown:?}");
    }
    // Leases survive the death of the server, so its clients only have to wait.
    assert_eq!(known.refused, Vec::<String>::new(), "acks that were refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_server_loses_and_doubles_nothing() {
    let rounds: u32 = std::env::var("ROLLDOCK_KILL_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let address = rolldock_tests::free_address().to_string();
    // On a busy machine a server may be killed many times before it has answered a call.
    let config = || RemoteConfig { patience: PATIENCE, ..RemoteConfig::new(format!("http://{address}")) };
    let client = || RemoteQueue::new(config()).unwrap();
    let server = Mutex::new(Some(serve(&dir, &address)));
    let tasks = TASKS.map(|(name, columns)| TaskSpec {
        name: name.to_owned(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
    });
    let spec = PartitionSpec {
        lease_ms: LEASE.as_millis() as u64,
        tasks: tasks.to_vec(),
        ..PartitionSpec::new("train", ["train"], 512)
    };
    client().declare(spec).await.unwrap();

    let known = Mutex::new(Known::default());
    let stop = CancellationToken::new();
    let killing = async {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..rounds {
            tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
            let running = server.lock().take().unwrap();
            running.kill();
            *server.lock() = Some(serve(&dir, &address));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
    };
    let producers = [client(), client(), client()];
    let consumers = [client(), client(), client(), client()];
    let producing = producers.iter().enumerate();
    let producing = producing.map(|(number, queue)| produce(queue, &known, (number as i64) << 40, &stop));
    let consuming = consumers.iter().enumerate();
    let consuming = consuming.map(|(number, queue)| consume(queue, &known, number % 2, &stop));
    tokio::join!(killing, join_all(producing), join_all(consuming));
    // The first call consumes the rows that consumers gave back at the end. Some leases never reached a
    // consumer. They expire between the calls, so the second call consumes their rows.
    let rest = async || {
        tokio::join!(consume(&consumers[0], &known, 0, &stop), consume(&consumers[1], &known, 1, &stop));
    };
    rest().await;
    tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
    rest().await;
    check(&known.into_inner(), rounds);
    assert_eq!(client().status("train").await.unwrap().rows, 0);
}
