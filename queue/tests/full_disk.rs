//! Tests a full disk: the queue returns a clear error and never a wrong row, and works again when the disk
//! has space.
//!
//! A limit on the size of the process's files simulates the disk. A write beyond the limit fails after a part
//! of the data has been written, as on a full disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Command;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rolldock_queue::{
    Durability, Partition, PartitionSpec, Put, QueueConfig, QueueError, RowHandle, Take, TransferQueue,
};
use support::rows;

/// The environment variable that tells the child the directory of the queue.
const DIR: &str = "ROLLDOCK_TEST_FULL_DISK_DIR";
/// The maximum size of a file, in blocks of `ulimit -f` (512 or 1024 bytes).
const LIMIT_BLOCKS: usize = 256;

fn open(dir: &Path) -> TransferQueue {
    let dir = Some(dir.to_owned());
    TransferQueue::open(QueueConfig { dir, durability: Durability::Os, ..QueueConfig::default() }).unwrap()
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec()).collect()
}

async fn all_ids(partition: &Partition) -> Vec<i64> {
    let lease = partition.take(&Take::rows("train", 65_536)).await.unwrap();
    let mut ids = lease.as_ref().map_or_else(Vec::new, |lease| ids(lease.batches()));
    ids.sort_unstable();
    ids
}

/// Runs in a process with the limit on file sizes. Writes the acknowledged ids into a file.
#[tokio::test]
#[ignore = "the child of the test below"]
async fn puts_on_a_full_disk() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let queue = open(Path::new(&dir));
    let partition = queue.partition("train").unwrap();
    let full = |outcome: Result<Vec<RowHandle>, QueueError>| {
        let Err(QueueError::Io { reason, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(reason.contains("File too large"), "{reason}");
    };
    // A payload that does not fit leaves nothing behind, so smaller payloads still fit.
    full(partition.put(Put::group("huge", rows(1_000_000, 64, 2048)), None).await);
    let mut acknowledged = Vec::new();
    let mut failures = 0;
    for number in 0..20_000_i64 {
        // Because of the long group names and tokens, the journal fills faster than the segments.
        let group = format!("{number:0>64}");
        let put = Put { token: Some(format!("{number:0>512}")), ..Put::group(group, rows(number, 1, 4)) };
        match partition.put(put, None).await {
            Ok(handles) => {
                assert_eq!(ids(&partition.get(&handles, None).await.unwrap()), [number]);
                acknowledged.push(number);
            }
            failure => {
                full(failure);
                failures += 1;
                if failures > 8 {
                    break;
                }
            }
        }
    }
    assert!(failures > 8 && acknowledged.len() > 50, "failures={failures}, acks={}", acknowledged.len());
    assert_eq!(partition.stats().rows, acknowledged.len(), "a failed put leaves no rows");
    assert_eq!(all_ids(&partition).await, acknowledged);
    let words: Vec<String> = acknowledged.iter().map(i64::to_string).collect();
    std::fs::write(Path::new(&dir).join("acknowledged"), words.join(" ")).unwrap();
    // The queue is not closed, because acknowledged rows must survive without a close.
    std::mem::forget((partition, queue));
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_and_never_a_wrong_row_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    {
        let queue = open(dir.path());
        queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await.unwrap();
        queue.close();
    }
    // The shell counts blocks of 512 or 1024 bytes. The child ignores the signal for the limit, because a
    // full disk sends no signal.
    let script = format!(
        "trap '' XFSZ; ulimit -f {LIMIT_BLOCKS} && exec \"$0\" --exact puts_on_a_full_disk --ignored"
    );
    let child = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    let words = std::fs::read_to_string(dir.path().join("acknowledged")).unwrap();
    let acknowledged: Vec<i64> = words.split(' ').map(|id| id.parse().unwrap()).collect();

    let queue = open(dir.path());
    let partition = queue.partition("train").unwrap();
    assert_eq!(all_ids(&partition).await, acknowledged);
    partition.put(Put::group("huge", rows(1_000_000, 64, 2048)), None).await.unwrap();
    assert_eq!(partition.stats().rows, acknowledged.len() + 64);
    assert!(queue.verify().await.unwrap().is_sound());
}
