//! A salvage returns the rows of a damaged queue from before and after the damage, and lists the losses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rolldock_queue::{Loss, PartitionSpec, Put, QueueConfig, QueueError, Salvage, Take, TransferQueue};
use support::{Bytes, furnish, in_memory, restore, rows};

fn open(dir: &Path, segment_bytes: u64) -> TransferQueue {
    let dir = Some(dir.to_owned());
    TransferQueue::open(QueueConfig { dir, segment_bytes, ..QueueConfig::default() }).unwrap()
}

/// A declaration, six puts of two rows, and acks of the first two groups: nine frames.
async fn filled(dir: &Path) {
    let queue = open(dir, 1);
    let partition = queue.declare(PartitionSpec::new("p", ["score"], 64)).await.unwrap();
    for group in 0..6 {
        partition.put(Put::group(group.to_string(), rows(group * 2, 2, 8)), None).await.unwrap();
    }
    for _ in 0..2 {
        partition.take(&Take::groups("score", 1)).await.unwrap().unwrap().ack().await.unwrap();
    }
    queue.close();
}

/// The offsets of the starts and ends of all frames: the length of a body is in the first four bytes.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut at) = (Vec::new(), 17);
    while at < bytes.len() {
        let end = at + 12 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        frames.push((at, end));
        at = end;
    }
    frames
}

async fn salvaged(dir: &Path) -> (TransferQueue, Vec<Loss>) {
    let salvage = Salvage::read(dir).unwrap();
    let bytes = Bytes::default();
    salvage.snapshot(bytes.clone()).await.unwrap();
    let queue = in_memory();
    restore(&queue, &bytes.take()).await.unwrap();
    let report = queue.verify().await.unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    (queue, salvage.losses)
}

/// The ids of all rows that can be taken for `score`.
async fn ids(queue: &TransferQueue) -> BTreeSet<i64> {
    let Ok(partition) = queue.partition("p") else { return BTreeSet::new() };
    let lease = partition.take(&Take::rows("score", 100)).await.unwrap();
    let batches = lease.iter().flat_map(|lease| lease.batches());
    batches.flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// The ids of these groups.
fn of_groups(groups: impl IntoIterator<Item = i64>) -> BTreeSet<i64> {
    groups.into_iter().flat_map(|group| [group * 2, group * 2 + 1]).collect()
}

#[tokio::test]
async fn damage_in_one_frame_of_the_journal_loses_only_its_record() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let journal = dir.path().join("journal.log");
    let whole = std::fs::read(&journal).unwrap();
    let frames = frames(&whole);
    assert_eq!(frames.len(), 9);
    let (sound, losses) = salvaged(dir.path()).await;
    assert_eq!((ids(&sound).await, losses.as_slice()), (of_groups(2..6), &[][..]));
    for (number, (start, end)) in frames.iter().enumerate() {
        // The damage is in the length, in a checksum, or in the body.
        for at in [*start, start + 8, (start + end) / 2] {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&journal, &damaged).unwrap();
            let (queue, losses) = salvaged(dir.path()).await;
            let gap =
                Loss::Bytes { file: journal.clone(), offset: *start as u64, bytes: (end - start) as u64 };
            assert_eq!(losses[0], gap, "frame={number} at={at}");
            let words: Vec<String> = losses.iter().map(ToString::to_string).collect();
            let expected = match number {
                0 => {
                    let declared = &words[1];
                    assert!(declared.contains("partition=p: its declaration"), "{words:?}");
                    assert_eq!(
                        queue.partition("p").unwrap().spec().tasks[0].name,
                        "score",
                        "an ack names it"
                    );
                    of_groups(2..6)
                }
                // An ack of rows whose put is lost has no effect.
                1..7 => of_groups((2..6).filter(|group| *group != number as i64 - 1)),
                // The payload of acked rows was deleted, so these rows cannot be ready again.
                _ => {
                    assert!(words[1].contains("rows=2 cannot be read"), "{words:?}");
                    of_groups(2..6)
                }
            };
            assert_eq!(ids(&queue).await, expected, "frame={number} at={at}: {words:?}");
            assert_eq!(std::fs::read(&journal).unwrap(), damaged, "the directory is not changed");
        }
    }
}

#[tokio::test]
async fn a_damaged_chunk_costs_its_rows_and_a_missing_end_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let segment = dir.path().join("segment-00000003.arrow");
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let (queue, losses) = salvaged(dir.path()).await;
    assert!(matches!(losses.as_slice(), [Loss::Rows { rows: 2, .. }]), "{losses:?}");
    assert_eq!(ids(&queue).await, of_groups([2, 4, 5]));
    assert_eq!(queue.partition("p").unwrap().stats().dispositions.lost, 2);

    // The last put and both acks are cut off.
    let journal = dir.path().join("journal.log");
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..frames(&whole)[6].0]).unwrap();
    let (queue, losses) = salvaged(dir.path()).await;
    let words = losses.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(words.contains("with records=3 are gone"), "{words}");
    assert_eq!(ids(&queue).await, of_groups([2, 4]), "the payload of acked rows is gone");
    std::fs::remove_file(&journal).unwrap();
    assert!(matches!(Salvage::read(dir.path()), Err(QueueError::JournalMissing { .. })));
    let nothing = Salvage::read(&dir.path().join("nothing"));
    assert!(matches!(nothing, Err(QueueError::NoQueue { .. })), "{nothing:?}");
}

/// Rows in many states: open groups, columns of several groups, tokens, records and two partitions.
#[tokio::test]
async fn a_salvage_of_rows_in_many_states_can_always_be_restored() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), 64 << 20);
    furnish(&queue).await;
    let before = queue.inspect();
    queue.close();
    drop(queue);
    let (same, losses) = salvaged(dir.path()).await;
    assert_eq!(losses, []);
    for (left, right) in before.partitions.iter().zip(&same.inspect().partitions) {
        assert_eq!((left.rows, left.groups, &left.tasks), (right.rows, right.groups, &right.tasks));
    }
    let journal = dir.path().join("journal.log");
    let whole = std::fs::read(&journal).unwrap();
    for (start, end) in frames(&whole) {
        let mut damaged = whole.clone();
        damaged[start..end].fill(0xAA);
        std::fs::write(&journal, &damaged).unwrap();
        let (_, losses) = salvaged(dir.path()).await;
        assert!(!losses.is_empty(), "start={start}");
    }
}
