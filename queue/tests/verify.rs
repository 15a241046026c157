//! `verify` finds and names damage, and reports no damage in a sound queue.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rolldock_queue::{
    Durability, PartitionSpec, Problem, Put, QueueConfig, QueueError, Take, TransferQueue, VerifyReport,
};

fn batch(first: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + 4));
    let words = StringArray::from_iter_values((first..first + 4).map(|id| format!("word {id} ").repeat(40)));
    RecordBatch::try_from_iter([("id", ids), ("word", Arc::new(words) as _)]).unwrap()
}

fn open(dir: &Path, segment_bytes: u64) -> TransferQueue {
    let config = QueueConfig {
        dir: Some(dir.to_owned()),
        durability: Durability::Os,
        segment_bytes,
        ..QueueConfig::default()
    };
    TransferQueue::open(config).unwrap()
}

/// A queue with ten puts in separate segments. Every third put has a column that was written later, and the
/// first put is acked.
async fn filled(dir: &Path) -> TransferQueue {
    let queue = open(dir, 1);
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in 0..10 {
        let rows = partition.put(Put::group(group.to_string(), batch(group * 4)), None).await.unwrap();
        if group % 3 == 0 {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![7; 4]));
            let more = RecordBatch::try_from_iter([("advantage", column)]).unwrap();
            partition.write_columns(&rows, more).await.unwrap();
        }
    }
    partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
    queue
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.extension() == Some("arrow".as_ref())).collect();
    segments.sort();
    segments
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn look(dir: &Path) -> VerifyReport {
    TransferQueue::verify_dir(dir).unwrap()
}

#[tokio::test]
async fn a_sound_queue_is_sound_open_closed_and_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    for report in [queue.verify().await.unwrap(), look(dir.path())] {
        assert!(report.is_sound(), "{report:?}");
        assert_eq!((report.partitions, report.rows, report.chunks), (1, 36, 12));
    }
    queue.close();
    assert!(look(dir.path()).is_sound());
    let memory = TransferQueue::open(QueueConfig::default()).unwrap();
    let partition = memory.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let rows = partition.put(Put::group("a", batch(0)), None).await.unwrap();
    partition.clear(&rows[1..]).await.unwrap();
    let report = memory.verify().await.unwrap();
    assert!(report.is_sound() && report.rows == 1, "{report:?}");
    let nothing = TransferQueue::verify_dir(&dir.path().join("nothing")).unwrap_err();
    assert!(matches!(nothing, QueueError::NoQueue { .. }));
}

#[tokio::test]
async fn every_flipped_byte_of_a_segment_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let path = segments(dir.path())[3].clone();
    let length = std::fs::metadata(&path).unwrap().len() as usize;
    for at in (0..length).step_by(97) {
        flip(&path, at);
        for report in [queue.verify().await.unwrap(), look(dir.path())] {
            let [Problem::Unreadable { partition, rows: 4, error, .. }] = report.problems.as_slice() else {
                panic!("at={at}: {report:?}");
            };
            assert!(partition == "train" && error.contains("checksum"), "{error}");
        }
        flip(&path, at);
    }
    assert!(look(dir.path()).is_sound());
}

#[tokio::test]
async fn a_missing_and_a_cut_segment_are_found_with_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let paths = segments(dir.path());
    std::fs::remove_file(&paths[2]).unwrap();
    let cut = std::fs::OpenOptions::new().write(true).open(&paths[5]).unwrap();
    cut.set_len(100).unwrap();
    for report in [queue.verify().await.unwrap(), look(dir.path())] {
        let missing =
            report.problems.iter().filter(|problem| problem.to_string().contains("payload are missing"));
        assert_eq!((missing.count(), report.problems.len()), (2, 2), "{report:?}");
    }
}

#[tokio::test]
async fn every_flipped_byte_of_the_journal_is_found() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await.close();
    let journal = dir.path().join("journal.log");
    let length = std::fs::metadata(&journal).unwrap().len() as usize;
    for at in (0..length).step_by(13).chain(length - 40..length) {
        let copy = copy(dir.path());
        flip(&copy.path().join("journal.log"), at);
        let report = look(copy.path());
        let found = report
            .problems
            .iter()
            .any(|problem| matches!(problem, Problem::Journal { .. } | Problem::JournalEnd { .. }));
        assert!(found, "at={at}: {report:?}");
    }
}

#[tokio::test]
async fn a_last_write_that_a_crash_cut_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let length = dir.path().join("journal.length");
    let noted_before = std::fs::read(&length).unwrap();
    queue.partition("train").unwrap().put(Put::group("last", batch(0)), None).await.unwrap();
    queue.close();
    // A process that dies may not have noted the length after its last write.
    std::fs::write(&length, noted_before).unwrap();
    let journal = dir.path().join("journal.log");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes.truncate(bytes.len() - 5);
    std::fs::write(&journal, &bytes).unwrap();
    let report = look(dir.path());
    assert!(report.is_sound() && report.unfinished_bytes > 0, "{report:?}");
    bytes.extend_from_slice(&[0; 5]);
    bytes.extend_from_slice(&[0; 4096]);
    std::fs::write(&journal, &bytes).unwrap();
    assert_eq!(look(dir.path()).problems.len(), 1, "zeros inside of a whole frame are no end of a file");
}

#[tokio::test]
async fn a_segment_that_no_row_refers_to_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let stray = dir.path().join("segment-00000000.arrow");
    assert!(!stray.exists(), "its rows were acked");
    std::fs::write(&stray, b"nothing").unwrap();
    for report in [queue.verify().await.unwrap(), look(dir.path())] {
        assert_eq!(report.problems, [Problem::Stray { file: stray.clone(), bytes: 7 }]);
    }
    queue.close();
    drop(queue);
    open(dir.path(), 1);
    assert!(!stray.exists() && look(dir.path()).is_sound());
}

#[tokio::test]
async fn the_newest_segment_is_found_if_no_row_has_referred_to_it_and_no_process_fills_it() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let newest = dir.path().join("segment-00009999.arrow");
    std::fs::write(&newest, b"nothing").unwrap();
    assert!(look(dir.path()).is_sound(), "the queue may be filling it");
    queue.close();
    drop(queue);
    let report = look(dir.path());
    assert_eq!(report.problems, [Problem::Stray { file: newest.clone(), bytes: 7 }]);
    open(dir.path(), 1);
    assert!(!newest.exists() && look(dir.path()).is_sound(), "it was set aside");
}

#[tokio::test]
async fn a_killed_process_leaves_a_sound_directory_although_all_rows_of_its_newest_segment_were_acked() {
    const JOURNAL_BYTES: u64 = 8 << 10;
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Os,
        journal_bytes: JOURNAL_BYTES,
        ..QueueConfig::default()
    };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let journal_bytes = || std::fs::metadata(dir.path().join("journal.log")).unwrap().len();
    // The first record of a journal tells how often the journal was rewritten.
    let first_record = || std::fs::read(dir.path().join("journal.log")).unwrap()[..64].to_vec();
    let mut rewrites = 0;
    for group in 0..200 {
        let before = first_record();
        partition.put(Put::group(group.to_string(), batch(group * 4)), None).await.unwrap();
        partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
        if journal_bytes() > JOURNAL_BYTES || first_record() != before {
            // The writer rewrites the journal before it takes the next change. After this change the copy has files of
            // one journal only.
            rewrites += 1;
            partition.announce(rewrites).await.unwrap();
            assert!(journal_bytes() < JOURNAL_BYTES / 4, "the next rewrite is far away");
        }
        // This is what a process that is killed now leaves.
        let left = copy(dir.path());
        let [segment] = segments(left.path()).try_into().unwrap();
        let report = look(left.path());
        assert!(report.is_sound(), "after group={group} and rewrites={rewrites}: {report:?}");
        open(left.path(), 1);
        let is_set_aside = segments(left.path()).iter().any(|file| *file != segment);
        assert!(!is_set_aside, "the journal has named the segment, after rewrites={rewrites}");
    }
    assert!(rewrites > 2, "the journal was rewritten only {rewrites} times while no row was live");
    queue.close();
}

#[expect(clippy::disallowed_methods, reason = "the test deletes a file while the directory is checked")]
#[tokio::test]
async fn a_file_that_another_process_is_about_to_delete_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await.close();
    let freed = dir.path().join("segment-00000000.arrow");
    std::fs::write(&freed, b"rows that were acked").unwrap();
    let looker = {
        let dir = dir.path().to_owned();
        tokio::task::spawn_blocking(move || look(&dir))
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::remove_file(&freed).unwrap();
    let report = looker.await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[expect(clippy::disallowed_methods, reason = "the test looks at the queue from a thread beside its writer")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_in_use_is_sound_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(dir.path().to_owned()),
        durability: Durability::Os,
        segment_bytes: 4096,
        journal_bytes: 4096,
        ..QueueConfig::default()
    };
    let queue = TransferQueue::open(config).unwrap();
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    let looker = {
        let dir = dir.path().to_owned();
        tokio::task::spawn_blocking(move || (0..40).map(|_| look(&dir)).collect::<Vec<_>>())
    };
    let mut group = 0;
    while !looker.is_finished() {
        partition.put(Put::group(group.to_string(), batch(group)), None).await.unwrap();
        if group >= 8 {
            partition.take(&Take::groups("train", 1)).await.unwrap().unwrap().ack().await.unwrap();
        }
        let report = if group % 64 == 0 { queue.verify().await.unwrap() } else { VerifyReport::default() };
        assert!(report.is_sound(), "{report:?}");
        group += 1;
    }
    let reports = looker.await.unwrap();
    let broken: Vec<_> = reports.iter().filter(|report| !report.is_sound()).collect();
    assert!(broken.is_empty(), "of 40 looks {}: {:?}", broken.len(), broken[0]);
}
