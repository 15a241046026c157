//! Damaged files of a queue: the journal, segments, leases and snapshots.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use parking_lot::Mutex;
use rolldock_queue::{QueueConfig, Take, TransferQueue};

use super::{Damage, fill, open, served};

/// Checks that every row that can be taken was put.
async fn check_rows(queue: &TransferQueue) {
    for partition in queue.partitions() {
        let Ok(Some(lease)) = partition.take(&Take::rows("a", 64)).await else { continue };
        for batch in lease.batches() {
            let Some(ids) = batch.column_by_name("id").and_then(|ids| ids.as_primitive_opt::<Int64Type>())
            else {
                continue;
            };
            let names = batch["name"].as_string::<i32>();
            for row in 0..batch.num_rows() {
                assert_eq!(names.value(row), format!("n{}", ids.value(row)));
                assert!((0..24).contains(&ids.value(row)));
            }
        }
    }
}

/// Opens a directory many times, each time with different damage to one of its files.
async fn open_damaged(what: &'static str, file: &str, prepare: impl AsyncFn(&TransferQueue)) {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    fill(&queue).await;
    prepare(&queue).await;
    queue.close();
    drop(queue);
    let path = dir.path().join(file);
    let sound = std::fs::read(&path).unwrap();
    let mut damage = Damage::new(what);
    while damage.goes_on() {
        std::fs::write(&path, damage.of(&sound)).unwrap();
        if let Ok(queue) = TransferQueue::open_read_only(dir.path()) {
            check_rows(&queue).await;
            let _ = queue.verify().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_damaged_journal_is_an_error_or_what_was_put() {
    open_damaged("journal", "journal.log", async |_| {}).await;
}

#[tokio::test]
async fn a_damaged_segment_is_an_error_or_what_was_put() {
    open_damaged("segment", "segment-00000000.arrow", async |_| {}).await;
}

#[tokio::test]
async fn a_damaged_file_of_leases_only_gives_rows_again() {
    let hold = async |queue: &TransferQueue| {
        let (url, _served) = served(queue.clone()).await;
        let client = reqwest::Client::new();
        for task in ["a", "b"] {
            let take = client.post(format!("{url}/v1/partitions/p/take"));
            take.body(format!(r#"{{"task":"{task}","groups":1}}"#))
                .send()
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap();
        }
    };
    open_damaged("leases", "leases.log", hold).await;
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_damaged_snapshot_restores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    fill(&queue).await;
    let sink = Sink::default();
    queue.snapshot(None, sink.clone()).await.unwrap();
    let sound = std::mem::take(&mut *sink.0.lock());
    let mut damage = Damage::new("snapshot");
    while damage.goes_on() {
        let target = TransferQueue::open(QueueConfig::default()).unwrap();
        match target.restore(std::io::Cursor::new(damage.of(&sound))).await {
            Ok(_) => check_rows(&target).await,
            Err(_) => assert!(target.partitions().is_empty()),
        }
    }
}
