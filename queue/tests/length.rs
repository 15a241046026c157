//! The noted length shows whether the end of a journal is missing. The queue never mistakes a crash for such
//! a loss.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rolldock_queue::{Durability, PartitionSpec, Problem, Put, QueueConfig, QueueError, Take, TransferQueue};
use support::rows;

/// The longest time that a test waits for a note, which is due after half a second.
const PATIENCE: Duration = Duration::from_secs(120);

fn open(dir: &Path, durability: Durability, journal_bytes: u64) -> Result<TransferQueue, QueueError> {
    let dir = Some(dir.to_owned());
    TransferQueue::open(QueueConfig { dir, durability, journal_bytes, ..QueueConfig::default() })
}

fn reopen(dir: &Path) -> Result<TransferQueue, QueueError> {
    open(dir, Durability::Os, 8 << 20)
}

fn journal(dir: &Path) -> PathBuf {
    dir.join("journal.log")
}

fn note(dir: &Path) -> PathBuf {
    dir.join("journal.length")
}

fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    // The note is copied before the journal, because the journal is written before the note.
    for file in ["journal.length", "journal.log", "leases.log", "segment-00000000.arrow"] {
        std::fs::copy(from.join(file), copy.path().join(file)).unwrap();
    }
    copy
}

async fn put(queue: &TransferQueue, group: i64) {
    let partition = queue.partition("train").unwrap();
    partition.put(Put::group(group.to_string(), rows(group * 2, 2, 8)), None).await.unwrap();
}

/// Fills a queue with three puts, and acks the first put.
async fn fill(dir: &Path) -> TransferQueue {
    let queue = open(dir, Durability::Os, 8 << 20).unwrap();
    queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in 0..3 {
        put(&queue, group).await;
    }
    let lease = queue.partition("train").unwrap().take(&Take::groups("train", 1)).await.unwrap();
    lease.unwrap().ack().await.unwrap();
    queue
}

/// The offsets of the ends of all frames: the length of a frame's body is in its first four bytes.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let (mut ends, mut at) = (vec![17], 17);
    while at < bytes.len() {
        at += 12 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        ends.push(at);
    }
    ends
}

#[tokio::test]
async fn a_journal_whose_end_is_missing_is_refused_with_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await.close();
    let whole = std::fs::read(journal(dir.path())).unwrap();
    let ends = ends(&whole);
    assert_eq!((ends.len(), ends.last()), (6, Some(&whole.len())), "a declaration, three puts and an ack");
    // The frame of the first put has the types of its columns too.
    for (end, records) in ends.iter().zip([6, 5, 3, 2, 1]) {
        let missing = whole.len() - end;
        for cut in [*end, end + 1] {
            std::fs::write(journal(dir.path()), &whole[..cut]).unwrap();
            let words =
                format!("ends after bytes={end}: its last bytes={missing} with records={records} are gone");
            for refused in [reopen(dir.path()), TransferQueue::open_read_only(dir.path())] {
                let error = refused.unwrap_err();
                assert!(matches!(error, QueueError::JournalCut { .. }), "{error}");
                let error = error.to_string();
                assert!(error.contains(&words) && error.contains("journal.length"), "cut={cut}: {error}");
            }
            let report = TransferQueue::verify_dir(dir.path()).unwrap();
            let cut_short = |problem: &&Problem| matches!(problem, Problem::JournalCut { .. });
            let found = report.problems.iter().find(cut_short).map(ToString::to_string);
            assert!(found.is_some_and(|found| found.contains(&words)), "cut={cut}: {report:?}");
            assert_eq!(
                std::fs::metadata(journal(dir.path())).unwrap().len(),
                cut as u64,
                "nothing is changed"
            );
        }
    }
    // The user accepts the loss, so the acked rows are ready again.
    std::fs::remove_file(note(dir.path())).unwrap();
    assert_eq!(reopen(dir.path()).unwrap().partition("train").unwrap().stats().rows, 6);
    assert!(note(dir.path()).exists());
}

#[tokio::test]
async fn a_journal_that_is_ahead_of_its_note_opens_with_all_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = fill(dir.path()).await;
    let noted = std::fs::read(note(dir.path())).unwrap();
    for group in 3..6 {
        put(&queue, group).await;
    }
    queue.close();
    drop(queue);
    for noted in [Some(noted), None] {
        match noted {
            Some(noted) => std::fs::write(note(dir.path()), noted).unwrap(),
            None => std::fs::remove_file(note(dir.path())).unwrap(),
        }
        let report = TransferQueue::verify_dir(dir.path()).unwrap();
        assert!(report.is_sound() && report.rows == 10, "{report:?}");
        let queue = reopen(dir.path()).unwrap();
        assert_eq!(queue.partition("train").unwrap().stats().rows, 10);
        queue.close();
    }
}

#[tokio::test]
async fn an_idle_queue_has_its_whole_length_noted_soon() {
    for durability in [Durability::Os, Durability::Fsync] {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path(), durability, 8 << 20).unwrap();
        queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
        put(&queue, 0).await;
        let length = std::fs::metadata(journal(dir.path())).unwrap().len();
        let words = format!("\"written\":{{\"bytes\":{length},");
        let noted = async {
            while !String::from_utf8_lossy(&std::fs::read(note(dir.path())).unwrap()).contains(&words) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, noted).await.unwrap();
        // The process dies now, and the last byte of its journal is lost.
        let copy = copy(dir.path());
        assert_eq!(reopen(copy.path()).unwrap().partition("train").unwrap().stats().rows, 2);
        let mut bytes = std::fs::read(journal(dir.path())).unwrap();
        bytes.pop();
        std::fs::write(journal(copy.path()), bytes).unwrap();
        let error = reopen(copy.path()).unwrap_err();
        assert!(
            matches!(error, QueueError::JournalCut { records_missing: 2, .. }),
            "{durability:?}: {error}"
        );
    }
}

#[tokio::test]
async fn a_death_at_any_moment_beside_rewrites_is_never_taken_for_a_missing_end() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), Durability::Os, 256).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let mut earlier: Option<Vec<u8>> = None;
    let (mut shorter, mut length) = (0, 0);
    for group in 0..40 {
        put(&queue, group).await;
        if group >= 2 {
            partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
        }
        let length_before =
            std::mem::replace(&mut length, std::fs::metadata(journal(dir.path())).unwrap().len());
        shorter += usize::from(length < length_before);
        let copy = copy(dir.path());
        let survivor = reopen(copy.path()).unwrap();
        let rows = survivor.partition("train").unwrap().stats().rows;
        assert_eq!(rows, partition.stats().rows, "group={group}");
        assert!(survivor.verify().await.unwrap().is_sound(), "group={group}");
        if group == 1 {
            earlier = Some(std::fs::read(journal(dir.path())).unwrap());
        }
    }
    assert!(shorter > 2, "the journal was rewritten {shorter} times");
    queue.close();
    drop((partition, queue));
    // The journal is replaced by its content before the rewrites, as by a backup.
    std::fs::write(journal(dir.path()), earlier.unwrap()).unwrap();
    let error = reopen(dir.path()).unwrap_err().to_string();
    assert!(error.contains("this is an earlier journal"), "{error}");
}

#[tokio::test]
async fn a_damaged_note_is_found_and_keeps_no_queue_from_opening() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await.close();
    std::fs::write(note(dir.path()), b"no note").unwrap();
    let report = TransferQueue::verify_dir(dir.path()).unwrap();
    assert!(matches!(report.problems.as_slice(), [Problem::Length { .. }]), "{report:?}");
    let queue = reopen(dir.path()).unwrap();
    assert_eq!(queue.partition("train").unwrap().stats().rows, 4);
    assert!(queue.verify().await.unwrap().is_sound());
}
