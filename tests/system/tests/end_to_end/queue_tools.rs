//! Tests of the commands for a queue, on a directory and on a server.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rolldock_queue::{PartitionSpec, Put, QueueConfig, ServiceConfig, TransferQueue, serve};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::support::Rolldock;

async fn furnish(queue: &TransferQueue) {
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in 0..6_i64 {
        let id: ArrayRef = Arc::new(Int64Array::from_iter_values(group * 4..group * 4 + 4));
        let word: ArrayRef = Arc::new(StringArray::from(vec!["a word or two ".repeat(50); 4]));
        let batch = RecordBatch::try_from_iter([("id", id), ("word", word)]).unwrap();
        partition.put(Put::group(group.to_string(), batch), None).await.unwrap();
    }
}

async fn directory() -> TempDir {
    let dir = TempDir::new().unwrap();
    let config = QueueConfig { dir: Some(dir.path().join("queue")), ..QueueConfig::default() };
    let queue = TransferQueue::open(config).unwrap();
    furnish(&queue).await;
    queue.close();
    dir
}

fn queue(command: &str) -> Rolldock {
    Rolldock::new(&["queue", command])
}

fn ids(exported: &str) -> Vec<i64> {
    let row = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_i64().unwrap();
    exported.lines().map(row).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_snapshot_of_a_directory_is_restored_verified_and_cleared() {
    let run = directory().await;
    let work = TempDir::new().unwrap();
    let (file, copy) = (work.path().join("queue.snapshot"), work.path().join("copy"));
    let written = queue("snapshot").arg(run.path()).arg(&file).succeeds().stdout;
    assert!(written.contains("queue.snapshot"), "{written}");
    assert_eq!(names(work.path()), ["queue.snapshot"]);

    let restored = queue("restore").arg(&file).arg(&copy).succeeds().stdout;
    assert!(restored.starts_with("1 partition, 24 rows"), "{restored}");
    let verified = queue("verify").arg(&copy).succeeds().stdout;
    assert!(verified.contains("1 partition, 24 rows; 1 chunk of"), "{verified}");
    let rows = queue("export").arg(&copy).arg("--format").arg("jsonl").succeeds().stdout;
    assert_eq!(ids(&rows), (0..24).collect::<Vec<_>>());
    let twice = queue("restore").arg(&file).arg(&copy).fails(1).stderr;
    assert!(twice.contains("partition=train is there already"), "{twice}");

    let look = queue("clear").arg(&copy).arg("--partition").arg("train").arg("--dry-run").succeeds().stdout;
    assert!(look.contains("24 rows in 6 groups"), "{look}");
    let cleared = queue("clear").arg(&copy).arg("--partition").arg("train").succeeds().stdout;
    assert!(cleared.contains("24 rows of partition train are freed"), "{cleared}");
    queue("clear").arg(&copy).arg("--partition").arg("train").arg("--remove").succeeds();
    let gone = queue("clear").arg(&copy).arg("--partition").arg("train").fails(1).stderr;
    assert!(gone.contains("unknown partition=train"), "{gone}");
    queue("restore").arg(&file).arg(&copy).succeeds();
}

#[tokio::test]
async fn damage_is_found_and_nothing_is_restored_from_it() {
    let run = directory().await;
    let work = TempDir::new().unwrap();
    let (file, copy) = (work.path().join("queue.snapshot"), work.path().join("copy"));
    queue("snapshot").arg(run.path()).arg(&file).succeeds();
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 1);
    fs::write(&file, &bytes).unwrap();
    let cut = queue("restore").arg(&file).arg(&copy).fails(1).stderr;
    assert!(cut.contains("the snapshot is not sound at offset=") && cut.contains("cut"), "{cut}");
    assert!(!copy.join("queue").exists());

    let segment = run.path().join("queue/segment-00000000.arrow");
    let mut payload = fs::read(&segment).unwrap();
    payload[500] ^= 1;
    fs::write(&segment, &payload).unwrap();
    let found = queue("verify").arg(run.path()).fails(1);
    assert!(found.stdout.contains("partition=train chunk=0: rows=4 cannot be read"), "{}", found.stdout);
    assert!(found.stderr.contains("1 problem"), "{}", found.stderr);
    queue("snapshot").arg(run.path()).arg(&file).fails(1);
    assert_eq!(fs::read(&file).unwrap(), bytes, "what was there stays");
    assert_eq!(names(work.path()), ["queue.snapshot"]);
}

#[tokio::test]
async fn a_damaged_chunk_costs_its_rows_and_no_more() {
    let run = directory().await;
    let work = TempDir::new().unwrap();
    let segment = run.path().join("queue/segment-00000000.arrow");
    let mut payload = fs::read(&segment).unwrap();
    payload[500] ^= 1;
    fs::write(&segment, &payload).unwrap();
    let sound: Vec<i64> = (4..24).collect();

    let whole = queue("export").arg(run.path()).arg("--format").arg("jsonl").fails(1).stderr;
    for words in ["--skip-damaged", "`rolldock queue verify "] {
        assert!(whole.contains(words), "{words} in {whole}");
    }
    let lines = queue("export").arg(run.path()).arg("--format").arg("jsonl").arg("--skip-damaged").succeeds();
    assert_eq!(ids(&lines.stdout), sound);
    assert!(lines.stderr.contains("rows are skipped in an export"), "{}", lines.stderr);
    let parquet = work.path().join("rows.parquet");
    let export = queue("export").arg(run.path()).arg("--format").arg("parquet").arg("--skip-damaged");
    let written = export.arg("--output").arg(&parquet).succeeds().stdout;
    assert!(written.contains("20 rows, without 4 damaged ones,"), "{written}");

    let file = work.path().join("rest.snapshot");
    let salvaged = queue("salvage").arg(run.path()).arg(&file).succeeds().stdout;
    for words in ["lost: partition=train chunk=0: rows=4 cannot be read", "1 partition, 20 rows"] {
        assert!(salvaged.contains(words), "{words} in {salvaged}");
    }
    let copy = work.path().join("copy");
    queue("restore").arg(&file).arg(&copy).succeeds();
    let rows = queue("export").arg(&copy).arg("--format").arg("jsonl").succeeds().stdout;
    assert_eq!(ids(&rows), sound);

    let consumed = Rolldock::new(&["consume"]).arg(run.path()).fails(1);
    assert!(consumed.stdout.contains("20 rows consumed; 0 rows are left"), "{}", consumed.stdout);
    for words in ["4 rows are lost", "`rolldock queue verify "] {
        assert!(consumed.stderr.contains(words), "{words} in {}", consumed.stderr);
    }
}

#[tokio::test]
async fn a_damaged_journal_is_salvaged_before_and_behind_the_damage() {
    let run = directory().await;
    let work = TempDir::new().unwrap();
    let journal = run.path().join("queue/journal.log");
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let refused = queue("inspect").arg(run.path()).fails(1).stderr;
    assert!(
        refused.contains("is corrupt at offset=") && refused.contains("`rolldock queue verify "),
        "{refused}"
    );
    let found = queue("verify").arg(run.path()).fails(1).stdout;
    assert!(found.contains("`rolldock queue salvage` reads what is left"), "{found}");
    let (file, copy) = (work.path().join("rest.snapshot"), work.path().join("copy"));
    let salvaged = queue("salvage").arg(run.path()).arg(&file).succeeds().stdout;
    for words in ["lost: file=", "cannot be read, with the puts and acks in them", "1 partition, 20 rows"] {
        assert!(salvaged.contains(words), "{words} in {salvaged}");
    }
    queue("restore").arg(&file).arg(&copy).succeeds();
    let rows = ids(&queue("export").arg(&copy).arg("--format").arg("jsonl").succeeds().stdout);
    assert!(rows.len() == 20 && rows.contains(&0) && rows.contains(&23), "{rows:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_accept_a_server_in_place_of_a_directory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = TransferQueue::open(QueueConfig::default()).unwrap();
    furnish(&served).await;
    let config = ServiceConfig { token: Some("secret".to_owned()), ..ServiceConfig::default() };
    let serving = serve(served.clone(), listener, config, CancellationToken::new());
    let _serving = AbortOnDropHandle::new(TaskTracker::new().spawn(serving));
    let tool = |command: &str| Rolldock::new(&["queue", command, "--token", "secret"]);

    let work = TempDir::new().unwrap();
    let (file, copy) = (work.path().join("queue.snapshot"), work.path().join("copy"));
    queue("verify").arg(&url).fails(1);
    tool("verify").arg(&url).succeeds();
    tool("snapshot").arg(&url).arg(&file).arg("--partition").arg("train").succeeds();
    queue("restore").arg(&file).arg(&copy).succeeds();
    let rows = tool("export").arg(&url).arg("--format").arg("jsonl").succeeds().stdout;
    assert_eq!(ids(&rows), (0..24).collect::<Vec<_>>());
    let arrow = work.path().join("rows.arrow");
    tool("export").arg(&url).arg("--format").arg("arrow").arg("--output").arg(&arrow).succeeds();
    assert!(fs::read(&arrow).unwrap().starts_with(b"ARROW1"));
    tool("clear").arg(&url).arg("--partition").arg("train").arg("--remove").succeeds();
    assert!(served.partitions().is_empty());
    tool("restore").arg(&file).arg(&url).succeeds();
    assert_eq!(served.partition("train").unwrap().stats().rows, 24);
}
