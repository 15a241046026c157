//! A directory whose journal is missing, empty or cut within its first line is refused, and no file in it is
//! deleted. If the journal belongs to another queue, the segments that it does not name are set aside and not
//! deleted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rolldock_queue::{
    PartitionSpec, Put, QueueConfig, QueueError, RemoteConfig, RemoteQueue, Take, TransferQueue, UnitConfig,
    holds_queue, run_unit,
};
use support::rows;
use tokio_util::sync::CancellationToken;

/// The first bytes of a journal.
const MAGIC: &[u8] = b"ROLLDOCK-QUEUE-3\n";

fn config(dir: &Path) -> QueueConfig {
    // Each put has its own segment.
    QueueConfig { dir: Some(dir.to_owned()), segment_bytes: 1, ..QueueConfig::default() }
}

/// Fills a queue with four puts, and acks the first put.
async fn fill(dir: &Path) {
    let queue = TransferQueue::open(config(dir)).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in 0..4 {
        partition.put(Put::group(group.to_string(), rows(group * 2, 2, 8)), None).await.unwrap();
    }
    partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    queue.close();
}

/// The contents of all files of a directory. The lock file is left out, because it names the process that
/// holds the lock.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files =
        files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()));
    files.filter(|(name, _)| name != "LOCK").collect()
}

/// The contents of the segments without their names. Renamed segments are included.
fn segments(dir: &Path) -> Vec<Vec<u8>> {
    let files = contents(dir).into_iter().filter(|(name, _)| name.ends_with(".arrow"));
    let mut segments: Vec<Vec<u8>> = files.map(|(_, bytes)| bytes).collect();
    segments.sort_unstable();
    segments
}

#[tokio::test]
async fn a_directory_without_its_journal_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let journal = dir.path().join("journal.log");
    for left in [None, Some(0), Some(1), Some(MAGIC.len() - 1)] {
        match left {
            None => std::fs::remove_file(&journal).unwrap(),
            Some(length) => std::fs::write(&journal, &MAGIC[..length]).unwrap(),
        }
        let before = contents(dir.path());
        for refused in [
            TransferQueue::open(config(dir.path())).map(drop),
            TransferQueue::open_read_only(dir.path()).map(drop),
            TransferQueue::verify_dir(dir.path()).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, QueueError::JournalMissing { .. }), "left={left:?}: {error}");
            let error = error.to_string();
            for word in ["journal.log is missing or empty", "segment-0000000", "put it back"] {
                assert!(error.contains(word), "left={left:?}: {word} in {error}");
            }
        }
        assert_eq!(contents(dir.path()), before, "left={left:?}");
    }
    assert!(holds_queue(dir.path()), "the directory is recognised as a queue's even without its journal");
}

#[tokio::test]
async fn a_directory_in_which_a_first_opening_died_is_new() {
    for files in
        [&["LOCK"][..], &["LOCK", "journal.log"], &["LOCK", "journal.log", "journal.new", "leases.new"]]
    {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(dir.path().join(file), b"").unwrap();
        }
        let queue = TransferQueue::open(config(dir.path())).unwrap();
        assert!(queue.partitions().is_empty());
    }
}

#[tokio::test]
async fn segments_that_another_journal_does_not_name_are_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let segments_before = segments(dir.path());
    assert_eq!(segments_before.len(), 3, "the segment of acked rows is deleted");
    // This is the journal of another queue without records.
    std::fs::write(dir.path().join("journal.log"), MAGIC).unwrap();
    for file in ["leases.log", "journal.length"] {
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    for opening in 0..2 {
        let queue = TransferQueue::open(config(dir.path())).unwrap();
        assert!(queue.partitions().is_empty(), "opening={opening}");
        queue.close();
        drop(queue);
        assert_eq!(segments(dir.path()), segments_before, "opening={opening}");
        assert!(TransferQueue::verify_dir(dir.path()).unwrap().is_sound(), "opening={opening}");
        // The next opening finds empty segments with the numbers of the segments that were set aside.
        for number in 0..4 {
            std::fs::write(dir.path().join(format!("segment-{number:08}.arrow")), b"").unwrap();
        }
        let empty = TransferQueue::open(config(dir.path())).unwrap();
        empty.close();
        for (name, bytes) in contents(dir.path()) {
            if bytes.is_empty() {
                std::fs::remove_file(dir.path().join(name)).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_unit_whose_name_is_lost_keeps_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TransferQueue::open(config(dir.path())).unwrap();
    let unit = async |queue: &TransferQueue| {
        // Nothing listens at this address. A unit without a controller repeats its calls until it ends.
        let config = RemoteConfig { patience: Duration::ZERO, ..RemoteConfig::new("http://127.0.0.1:9") };
        let controller = RemoteQueue::new(config).unwrap();
        let end = CancellationToken::new();
        end.cancel();
        run_unit(queue, Some(dir.path()), UnitConfig::new(controller, "http://127.0.0.1:9"), &end).await
    };
    unit(&queue).await.unwrap();
    let name = std::fs::read_to_string(dir.path().join("unit-id")).unwrap();
    assert_eq!(name.len(), 16);
    std::fs::write(dir.path().join("unit-id"), b"").unwrap();
    unit(&queue).await.expect("without rows the unit gets a new name");
    let blobs = queue.partition("_blobs").unwrap();
    blobs.put(Put::group("blob", rows(0, 2, 8)), None).await.unwrap();
    for is_there in [true, false] {
        match is_there {
            true => std::fs::write(dir.path().join("unit-id"), b"").unwrap(),
            false => std::fs::remove_file(dir.path().join("unit-id")).unwrap(),
        }
        let refused = unit(&queue).await.unwrap_err().to_string();
        assert!(refused.contains("unit-id") && refused.contains("rows=2"), "{refused}");
        assert_eq!(blobs.stats().rows, 2);
    }
}
