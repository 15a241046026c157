//! One damaged chunk costs only its own rows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/served_units.rs"]
mod served_units;

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use rolldock_queue::{
    ExportFormat, Exported, PartitionSpec, Put, Queue, QueueConfig, QueueError, Take, TransferQueue,
};
use served_units::{Server, batch, served, spec, until_live};

fn open(dir: &Path) -> TransferQueue {
    // Each put has its own segment.
    let config = QueueConfig { dir: Some(dir.to_owned()), segment_bytes: 1, ..QueueConfig::default() };
    TransferQueue::open(config).unwrap()
}

/// Five groups of two rows. The columns of the last group are in two chunks.
async fn filled(dir: &Path) -> TransferQueue {
    let queue = open(dir);
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 64)).await.unwrap();
    for group in 0..5 {
        let rows = partition.put(Put::group(group.to_string(), batch(group * 2, 2)), None).await.unwrap();
        if group == 4 {
            partition.write_columns(&rows, served_units::names(2)).await.unwrap();
        }
    }
    queue
}

/// Flips a bit in the payload of a segment.
fn damage(dir: &Path, segment: u64) {
    let path = dir.join(format!("segment-{segment:08}.arrow"));
    let mut bytes = std::fs::read(&path).unwrap();
    // This offset is not in padding, whether the segment has one chunk or four.
    let at = bytes.len() / 3;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// The ids of exported lines.
fn ids_of_lines(lines: &[u8]) -> Vec<i64> {
    let lines = std::str::from_utf8(lines).unwrap().lines();
    lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_i64().unwrap())
        .collect()
}

/// Takes everything. Returns the ids, and the number of takes that failed because of damage.
async fn drain(queue: &dyn Queue) -> (Vec<i64>, usize) {
    let (mut taken, mut failures) = (Vec::new(), 0);
    loop {
        match queue.take("train", &Take::groups("train", 2)).await {
            Ok(None) => return (taken, failures),
            Ok(Some(lease)) => {
                taken.extend(ids(lease.batches()));
                lease.ack().await.unwrap();
            }
            Err(QueueError::Corrupt { .. }) if failures < 10 => failures += 1,
            Err(error) => panic!("failures={failures}: {error}"),
        }
    }
}

#[tokio::test]
async fn an_export_can_leave_out_exactly_the_damaged_rows() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    let partition = queue.partition("train").unwrap();
    let sound = partition.export_sound(ExportFormat::Jsonl, Vec::new()).await.unwrap();
    assert_eq!(sound, Exported { rows: 10, skipped_rows: 0 });
    // This damages the rows of one group and the added columns of another group.
    damage(dir.path(), 1);
    damage(dir.path(), 5);
    let error = partition.export(ExportFormat::Jsonl, Vec::new()).await.unwrap_err().to_string();
    let advice = format!("`rolldock queue verify {}`", dir.path().display());
    assert!(error.contains("checksum") && error.contains(&advice), "{error}");
    for format in [ExportFormat::Jsonl, ExportFormat::Parquet, ExportFormat::Arrow] {
        let mut file = Vec::new();
        let exported = partition.export_sound(format, &mut file).await.unwrap();
        assert_eq!(exported, Exported { rows: 6, skipped_rows: 4 }, "{format:?}");
        if format == ExportFormat::Jsonl {
            assert_eq!(ids_of_lines(&file), [0, 1, 4, 5, 6, 7]);
        }
    }
    assert_eq!(partition.stats().rows, 10, "an export consumes and loses nothing");
}

#[tokio::test]
async fn takes_continue_after_a_damaged_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let queue = filled(dir.path()).await;
    damage(dir.path(), 0);
    damage(dir.path(), 3);
    assert_eq!(drain(&queue).await, (vec![2, 3, 4, 5, 8, 9], 2));
    let stats = queue.partition("train").unwrap().stats();
    assert_eq!((stats.rows, stats.dispositions.lost, stats.dispositions.acked), (0, 4, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_from_units_continue_after_a_damaged_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let controller = served(None).await;
    let _unit = Server::unit(&controller, Some(dir.path().to_owned())).await;
    let client = controller.client();
    until_live(&client, 1).await;
    client.declare(spec()).await.unwrap();
    for group in 0..4 {
        client.put("train", Put::group(group.to_string(), batch(group * 2, 2)), None).await.unwrap();
    }
    assert_eq!(controller.queue.inspect().payload_bytes, 0, "the rows lie on the unit");
    damage(dir.path(), 0);
    // All rows are in one segment, and the damage is in one chunk of this segment.
    let (taken, failures) = drain(&client).await;
    assert_eq!((taken.len(), failures), (6, 1), "{taken:?}");
    assert_eq!(client.status("train").await.unwrap().dispositions.lost, 2);
    // The export over HTTP is empty too, because no rows are left.
    let mut lines = Vec::new();
    client.export_sound("train", ExportFormat::Jsonl, &mut lines).await.unwrap();
    assert!(lines.is_empty(), "all rows were taken or lost");
}
