//! Faults that must not happen in a durable queue. Each test covers a fault that would lose, duplicate or
//! hide rows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float32Array, ListArray, RecordBatch, StringArray};
use rolldock_queue::{
    Durability, OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, Take, TaskSpec, TransferQueue,
};
use tokio::time::Instant;

fn samples(uid: &str, rows: usize) -> RecordBatch {
    let uids: ArrayRef = Arc::new(StringArray::from(vec![uid; rows]));
    let ids: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..rows).map(|row| Some((0..64).map(move |at| Some((row * 64 + at) as i32)))),
    ));
    let reward: ArrayRef = Arc::new(Float32Array::from(vec![1.0; rows]));
    RecordBatch::try_from_iter([("prompt_uid", uids), ("response_ids", ids), ("reward", reward)]).unwrap()
}

fn advantages(rows: usize) -> RecordBatch {
    let advantage: ArrayRef = Arc::new(Float32Array::from(vec![0.5; rows]));
    RecordBatch::try_from_iter([("advantage", advantage)]).unwrap()
}

fn open(dir: &Path) -> Result<TransferQueue, QueueError> {
    TransferQueue::open(QueueConfig {
        dir: Some(dir.to_owned()),
        durability: Durability::Os,
        ..QueueConfig::default()
    })
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(5))
}

fn groups(count: usize) -> Take {
    Take::groups("train", count)
}

async fn drain(partition: &Partition) -> Vec<String> {
    let mut taken = Vec::new();
    while let Some(lease) = partition.take(&groups(1)).await.unwrap() {
        taken.extend(lease.groups().iter().cloned());
        lease.ack().await.unwrap();
    }
    taken
}

/// The sequence of the quickstart: consume all steps but the last, close, open again, and consume the rest.
#[tokio::test]
async fn rows_put_after_an_ack_survive_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    partition.put(Put::group("a", samples("a", 2)), soon()).await.unwrap();
    assert_eq!(drain(&partition).await, ["a", "a"]);
    partition.put(Put::group("b", samples("b", 2)), soon()).await.unwrap();
    queue.close();
    drop((partition, queue));
    let queue = open(dir.path()).unwrap();
    assert_eq!(drain(&queue.partition("train").unwrap()).await, ["b", "b"]);
}

#[tokio::test]
async fn a_put_that_is_repeated_with_its_token_during_the_first_is_one_put() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let put = || Put { token: Some("t".to_owned()), ..Put::group("a", samples("a", 2)) };
    let (first, second) = tokio::join!(partition.put(put(), soon()), partition.put(put(), soon()));
    assert!(first.is_ok() || second.is_ok());
    assert_eq!(partition.stats().rows, 2, "first={first:?} second={second:?}");
}

#[tokio::test]
async fn two_concurrent_puts_never_make_a_group_larger_than_declared() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let put = || Put { group_size: 3, ..Put::group("a", samples("a", 2)) };
    let (first, second) = tokio::join!(partition.put(put(), soon()), partition.put(put(), soon()));
    assert!(first.is_ok() != second.is_ok(), "first={first:?} second={second:?}");
    assert_eq!(partition.stats().rows, 2);
}

#[tokio::test]
async fn two_concurrent_declarations_keep_the_rows_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let spec = PartitionSpec::new("train", ["train"], 64);
    let producer = async {
        let partition = queue.declare(spec.clone()).await.unwrap();
        partition.put(Put::group("a", samples("a", 2)), soon()).await.unwrap();
    };
    let consumer = async {
        tokio::task::yield_now().await;
        queue.declare(spec.clone()).await.unwrap();
    };
    tokio::join!(producer, consumer);
    queue.close();
    drop(queue);
    let queue = open(dir.path()).unwrap();
    assert_eq!(queue.partition("train").unwrap().stats().rows, 2);
}

/// The length of the magic bytes with which every journal begins.
const MAGIC_BYTES: usize = 17;

/// Puts three groups, closes, and returns the journal's bytes.
async fn written_journal(dir: &Path) -> Vec<u8> {
    let queue = open(dir).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in ["a", "b", "c"] {
        partition.put(Put::group(group, samples(group, 2)), soon()).await.unwrap();
    }
    queue.close();
    std::fs::read(dir.join("journal.log")).unwrap()
}

#[tokio::test]
async fn a_flipped_bit_before_the_last_record_is_an_error_and_never_a_shorter_queue() {
    let dir = tempfile::tempdir().unwrap();
    let sound = written_journal(dir.path()).await;
    let journal = dir.path().join("journal.log");
    let mut silent = Vec::new();
    // Only the first half is damaged, so at least one record follows the damage.
    for at in 0..sound.len() / 2 {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&journal, &damaged).unwrap();
        if let Ok(queue) = TransferQueue::open_read_only(dir.path()) {
            let rows = queue.partition("train").map_or(0, |partition| partition.stats().rows);
            silent.push((at, rows));
        }
    }
    assert!(silent.is_empty(), "damage at these offsets was passed over, leaving so many rows: {silent:?}");
}

#[tokio::test]
async fn a_tail_of_zeros_left_by_a_power_cut_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = written_journal(dir.path()).await;
    bytes.extend_from_slice(&[0; 4096]);
    std::fs::write(dir.path().join("journal.log"), &bytes).unwrap();
    let queue = open(dir.path()).unwrap();
    assert_eq!(queue.partition("train").unwrap().stats().rows, 6);
}

#[tokio::test]
async fn a_journal_cut_at_any_byte_opens_with_whole_puts() {
    let dir = tempfile::tempdir().unwrap();
    let sound = written_journal(dir.path()).await;
    let journal = dir.path().join("journal.log");
    // A process that dies leaves a journal that is longer than its noted length. Without the note, any cut is
    // accepted.
    std::fs::remove_file(dir.path().join("journal.length")).unwrap();
    let mut rows_before = 0;
    // A shorter journal lacks its magic bytes, and is refused because there are segments.
    for length in MAGIC_BYTES..=sound.len() {
        std::fs::write(&journal, &sound[..length]).unwrap();
        let queue = TransferQueue::open_read_only(dir.path()).unwrap();
        let rows = queue.partition("train").map_or(0, |partition| partition.stats().rows);
        assert!(
            rows.is_multiple_of(2) && rows >= rows_before,
            "length={length} rows={rows} before={rows_before}"
        );
        rows_before = rows;
    }
    assert_eq!(rows_before, 6);
}

#[tokio::test]
async fn the_end_of_puts_does_not_hide_rows_whose_columns_are_still_to_come() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let mut spec = PartitionSpec::new("train", ["train"], 64);
    spec.tasks = vec![TaskSpec { name: "train".to_owned(), columns: vec!["advantage".to_owned()] }];
    let partition = queue.declare(spec).await.unwrap();
    let rows = partition.put(Put::group("a", samples("a", 2)), soon()).await.unwrap();
    partition.end_of_puts();
    let take = Take { deadline: soon(), ..groups(1) };
    let estimator = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        partition.write_columns(&rows, advantages(2)).await.unwrap();
    };
    let (lease, ()) = tokio::join!(partition.take(&take), estimator);
    assert_eq!(lease.unwrap().map(|lease| lease.rows().len()), Some(2));
}

#[tokio::test]
async fn a_damaged_chunk_does_not_block_later_groups() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    partition.put(Put::group("a", samples("a", 2)), soon()).await.unwrap();
    partition.put(Put::group("b", samples("b", 2)), soon()).await.unwrap();
    let segment = dir.path().join("segment-00000000.arrow");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[400] ^= 0xff;
    std::fs::write(&segment, bytes).unwrap();
    assert!(matches!(partition.take(&groups(1)).await, Err(QueueError::Corrupt { .. })));
    let next = partition.take(&groups(1)).await.expect("the second group is sound");
    assert_eq!(next.map(|lease| lease.groups().to_vec()), Some(vec!["b".to_owned(); 2]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_oldest_never_drops_what_a_lease_holds() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path()).unwrap();
    let spec = PartitionSpec { on_full: OnFull::DropOldest, ..PartitionSpec::new("train", ["train"], 4) };
    let partition = queue.declare(spec).await.unwrap();
    let mut acked = 0;
    for round in 0..300 {
        let put = partition.put(Put::group(round.to_string(), samples("x", 2)), soon());
        let consume = async {
            match partition.take(&groups(1)).await {
                Ok(Some(lease)) => {
                    let rows = lease.rows().len() as u64;
                    tokio::task::yield_now().await;
                    lease.ack().await.map_or(0, |()| rows)
                }
                Ok(None) => 0,
                Err(error) => panic!("round={round}: {error}"),
            }
        };
        let (stored, consumed) = tokio::join!(put, consume);
        if !matches!(stored, Ok(_) | Err(QueueError::Full { .. })) {
            panic!("round={round}: {stored:?}");
        }
        acked += consumed;
    }
    assert_eq!(
        partition.stats().dispositions.acked,
        acked,
        "every acked row was acked, none was dropped meanwhile"
    );
}

#[tokio::test]
async fn an_export_of_nothing_is_a_file_that_readers_take() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let mut spec = PartitionSpec::new("train", ["train"], 64);
    spec.columns = vec![rolldock_queue::ColumnSpec::new("reward", arrow_schema::DataType::Float32)];
    let partition = queue.declare(spec).await.unwrap();
    let mut bytes = Vec::new();
    partition.export(rolldock_queue::ExportFormat::Parquet, &mut bytes).await.unwrap();
    assert!(bytes.starts_with(b"PAR1"), "length={}", bytes.len());
}

#[tokio::test]
async fn an_export_takes_rows_that_have_different_columns() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let rows = partition.put(Put::group("a", samples("a", 2)), soon()).await.unwrap();
    partition.put(Put::group("b", samples("b", 2)), soon()).await.unwrap();
    partition.write_columns(&rows, advantages(2)).await.unwrap();
    for format in [rolldock_queue::ExportFormat::Jsonl, rolldock_queue::ExportFormat::Parquet] {
        let written = partition.export(format, Vec::new()).await;
        assert!(matches!(written, Ok(4)), "{format:?}: {written:?}");
    }
}

#[tokio::test]
async fn clearing_part_of_a_put_gives_its_memory_back() {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 4096)).await.unwrap();
    let rows = partition.put(Put::group("a", samples("a", 2048)), soon()).await.unwrap();
    let full = queue.inspect().payload_bytes;
    partition.clear(&rows[64..]).await.unwrap();
    let left = queue.inspect().payload_bytes;
    assert!(left < full / 2, "of {full} bytes {left} stay for 64 of 2048 rows");
}

/// A segment must not count as empty if it is closed before the records of its chunks are written.
#[tokio::test]
async fn puts_that_are_made_durable_together_and_fill_segments_all_keep_their_payload() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        segment_bytes: 1,
        durability: Durability::Os,
        ..QueueConfig::default()
    };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 1024)).await.unwrap();
    let puts = (0..64).map(|group| partition.put(Put::group(group.to_string(), samples("x", 2)), soon()));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
    let mut taken = drain(&partition).await;
    taken.dedup();
    assert_eq!(taken.len(), 64);
    queue.close();
    let left = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("segment-"));
    assert!(left.count() <= 1, "segments whose rows are gone are gone");
}
