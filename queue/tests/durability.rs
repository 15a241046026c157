//! Checks the content of a queue after a reopening, after a cut of its journal at any offset, after the
//! corruption of bytes, and after long use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::Seek;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, Int32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rolldock_queue::{
    Durability, ExportFormat, PartitionSpec, Put, QueueConfig, QueueError, RowHandle, Take, TransferQueue,
    invariants,
};

fn batch(first: i32, rows: usize) -> RecordBatch {
    let ids = Int32Array::from_iter_values(first..first + rows as i32);
    let mut lists = ListBuilder::new(UInt32Builder::new());
    for row in 0..rows {
        lists.values().append_slice(&vec![7; row + 1]);
        lists.append(true);
    }
    let lists = lists.finish();
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int32, false),
        Field::new("tokens", lists.data_type().clone(), false),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids), Arc::new(lists)]).unwrap()
}

fn open(dir: &Path) -> TransferQueue {
    open_with(dir, QueueConfig::default())
}

fn open_with(dir: &Path, config: QueueConfig) -> TransferQueue {
    let config = QueueConfig { dir: Some(dir.to_owned()), durability: Durability::Os, ..config };
    TransferQueue::open(config).unwrap()
}

fn spec(capacity: usize) -> PartitionSpec {
    PartitionSpec::new("p", ["a", "b"], capacity)
}

async fn ids(queue: &TransferQueue, task: &str) -> Vec<i32> {
    let partition = queue.partition("p").unwrap();
    let mut ids = Vec::new();
    let mut leases = Vec::new();
    while let Some(lease) = partition.take(&Take::rows(task, 3)).await.unwrap() {
        for batch in lease.batches() {
            ids.extend(batch.column_by_name("id").unwrap().as_primitive::<Int32Type>().values());
        }
        leases.push(lease);
    }
    ids
}

#[tokio::test]
async fn unacked_rows_are_there_again_and_leases_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let partition = queue.declare(spec(100)).await.unwrap();
    for group in 0..5 {
        partition.put(Put::group(format!("g{group}"), batch(group * 4, 4)), None).await.unwrap();
    }
    partition.take(&Take::groups("a", 2)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::groups("b", 1)).await.unwrap().unwrap().ack().await.unwrap();
    let held = partition.take(&Take::groups("a", 1)).await.unwrap().unwrap();
    let handle = held.rows()[0];
    std::mem::forget(held);
    queue.close();
    drop((partition, queue));

    let again = open(dir.path());
    assert_eq!(
        ids(&again, "a").await,
        (8..20).collect::<Vec<_>>(),
        "two groups acked, the leased one is back"
    );
    assert_eq!(ids(&again, "b").await, (4..20).collect::<Vec<_>>());
    let inspection = again.partition("p").unwrap().inspect();
    assert_eq!(inspection.rows, 16, "the group that both acked is freed");
    invariants::rows_accounted(&inspection).unwrap();
    assert_eq!(inspection.columns.len(), 2, "types are known again");
    again.partition("p").unwrap().clear(&[handle]).await.unwrap();
    let stale = again.partition("p").unwrap().clear(&[handle]).await.unwrap_err();
    assert!(matches!(stale, QueueError::StaleHandle { .. }), "{stale}");
}

#[tokio::test]
async fn a_journal_cut_anywhere_opens_to_a_prefix_of_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let partition = queue.declare(spec(100)).await.unwrap();
    for group in 0..4 {
        partition.put(Put::group(format!("g{group}"), batch(group * 2, 2)), None).await.unwrap();
    }
    partition.take(&Take::groups("a", 1)).await.unwrap().unwrap().ack().await.unwrap();
    queue.close();
    drop((partition, queue));
    let whole = fs::read(dir.path().join("journal.log")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    // If there are segments, a journal without its first 17 bytes is refused.
    for cut in 17..=whole.len() {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        fs::write(copy.path().join("journal.log"), &whole[..cut]).unwrap();
        // A process that dies leaves a journal that is longer than its noted length. Without the note, any
        // cut is accepted.
        fs::remove_file(copy.path().join("journal.length")).unwrap();
        let queue = open(copy.path());
        let Ok(partition) = queue.partition("p") else { continue };
        let rows = ids(&queue, "a").await;
        let acked = 8 - rows.len() == 2 && rows.first() == Some(&2);
        let expected: Vec<i32> = if acked { (2..8).collect() } else { (0..rows.len() as i32).collect() };
        assert_eq!(rows, expected, "cut={cut}");
        assert_eq!(rows.len() % 2, 0, "a put is whole or not there; cut={cut}");
        seen.insert((rows.len(), acked));
        // Records that are written after the cut can be read.
        partition.put(Put::group("new", batch(100, 1)), None).await.unwrap();
        queue.close();
        drop((partition, queue));
        assert!(ids(&open(copy.path()), "b").await.contains(&100), "cut={cut}");
    }
    assert_eq!(seen.len(), 6, "0, 2, 4, 6 and 8 rows, and 6 after the ack: {seen:?}");
}

#[tokio::test]
async fn the_error_of_corrupt_bytes_names_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let partition = queue.declare(spec(100)).await.unwrap();
    for group in 0..3 {
        partition.put(Put::group(format!("g{group}"), batch(group, 1)), None).await.unwrap();
    }
    queue.close();
    drop((partition, queue));
    let segment = dir.path().join("segment-00000000.arrow");
    let mut payload = fs::read(&segment).unwrap();
    let last = payload.len() - 20;
    payload[last] ^= 1;
    fs::write(&segment, &payload).unwrap();
    {
        let queue = open(dir.path());
        let error = queue.partition("p").unwrap().take(&Take::groups("a", 3)).await.unwrap_err().to_string();
        assert!(error.contains("segment-00000000.arrow") && error.contains("checksum"), "{error}");
        assert_eq!(
            queue.partition("p").unwrap().ready_groups("a").unwrap(),
            2,
            "the sound ones are given back"
        );
    }
    let journal = dir.path().join("journal.log");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[60] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let error = TransferQueue::open(config).unwrap_err().to_string();
    assert!(error.contains("journal.log is corrupt at offset="), "{error}");
}

#[tokio::test]
async fn one_process_at_a_time_and_readers_may_look() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    queue.declare(spec(10)).await.unwrap().put(Put::group("g", batch(0, 2)), None).await.unwrap();
    let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
    let error = TransferQueue::open(config).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    let reader = TransferQueue::open_read_only(dir.path()).unwrap();
    let partition = reader.partition("p").unwrap();
    assert_eq!(partition.stats().rows, 2);
    let refused = partition.put(Put::group("h", batch(0, 1)), None).await.unwrap_err();
    assert!(matches!(refused, QueueError::ReadOnly), "{refused}");
    let nowhere = TransferQueue::open_read_only(&dir.path().join("nothing")).unwrap_err();
    assert!(matches!(nowhere, QueueError::NoQueue { .. }), "{nowhere}");
}

#[tokio::test]
async fn a_long_used_queue_keeps_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let small = QueueConfig { segment_bytes: 4096, journal_bytes: 4096, ..QueueConfig::default() };
    let queue = open_with(dir.path(), small);
    let partition = queue.declare(spec(64)).await.unwrap();
    for group in 0..400 {
        let put =
            Put { token: Some(format!("t{group}")), ..Put::group(format!("g{group}"), batch(group * 2, 2)) };
        partition.put(put, None).await.unwrap();
        if group >= 4 {
            for task in ["a", "b"] {
                partition.take(&Take::groups(task, 1)).await.unwrap().unwrap().ack().await.unwrap();
            }
        }
    }
    // The first row of this group is cleared, the second stays, and the third is put after the restart.
    let two = partition.put(Put { group_size: 3, ..Put::group("open", batch(900, 2)) }, None).await.unwrap();
    partition.clear(&two[..1]).await.unwrap();
    queue.close();
    drop((partition, queue));
    let files: u64 =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(files < 80_000, "400 puts came and went, {files} bytes are left");

    let queue = open(dir.path());
    let partition = queue.partition("p").unwrap();
    assert_eq!(partition.stats().rows, 9);
    assert_eq!(ids(&queue, "a").await, [792, 793, 794, 795, 796, 797, 798, 799, 901]);
    let repeated = Put { token: Some("t0".into()), ..Put::group("again", batch(0, 2)) };
    partition.put(repeated, None).await.unwrap();
    assert_eq!(partition.stats().rows, 9, "the token of a put long gone is remembered");
    partition.put(Put { group_size: 3, ..Put::group("open", batch(902, 1)) }, None).await.unwrap();
    assert_eq!(partition.ready_groups("b").unwrap(), 5, "the open group is whole now");
}

#[tokio::test]
async fn a_few_rows_that_stay_keep_no_other_rows_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let small = QueueConfig { segment_bytes: 16 << 10, journal_bytes: 4096, ..QueueConfig::default() };
    let queue = open_with(dir.path(), small.clone());
    let passing = queue.declare(spec(64)).await.unwrap();
    let staying = queue.declare(PartitionSpec::new("stays", ["a"], 1000)).await.unwrap();
    let mut kept = Vec::new();
    for group in 0..400 {
        passing.put(Put::group(format!("g{group}"), batch(group, 8)), None).await.unwrap();
        for task in ["a", "b"] {
            passing.take(&Take::groups(task, 1)).await.unwrap().unwrap().ack().await.unwrap();
        }
        if group % 8 == 0 {
            // Six of the eight rows of each put are cleared, and two stay.
            let rows = staying.put(Put::group(format!("s{group}"), batch(group, 8)), None).await.unwrap();
            staying.clear(&rows[..6]).await.unwrap();
            kept.extend_from_slice(&rows[6..]);
        }
    }
    let bytes = || segment_bytes(dir.path());
    // A chunk of two such rows has about 1 KiB, and 50 chunks stay. Segments that are not worth emptying may
    // use twice as much space, and the open segment is not included.
    assert!(bytes() < 120 << 10, "{} bytes for {} rows", bytes(), kept.len());
    let expected: Vec<i32> = (0..400).step_by(8).flat_map(|group| [group + 6, group + 7]).collect();
    let found = |batches: Vec<RecordBatch>| -> Vec<i32> {
        batches.iter().flat_map(|batch| batch["id"].as_primitive::<Int32Type>().values().to_vec()).collect()
    };
    assert_eq!(found(staying.get(&kept, None).await.unwrap()), expected);
    assert!(queue.verify().await.unwrap().is_sound());
    queue.close();
    drop((passing, staying, queue));

    let queue = open_with(dir.path(), small);
    let staying = queue.partition("stays").unwrap();
    assert_eq!(found(staying.get(&kept, None).await.unwrap()), expected);
    assert_eq!(queue.verify().await.unwrap().problems, []);
    staying.clear_all().await.unwrap();
    queue.close();
    assert!(bytes() < 40 << 10, "{} bytes for no row", bytes());
}

fn segment_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let segments = files.filter(|file| file.file_name().to_str().unwrap().starts_with("segment-"));
    segments.map(|file| file.metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn rows_that_go_before_and_after_a_restart_are_counted_together() {
    const PUTS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let config = QueueConfig { segment_bytes: 64 << 10, journal_bytes: 1024, ..QueueConfig::default() };
    let queue = open_with(dir.path(), config.clone());
    let partition = queue.declare(spec(PUTS * 8)).await.unwrap();
    let ids: Arc<dyn Array> = Arc::new(Int32Array::from_iter_values(0..8));
    let text = arrow_array::StringArray::from_iter_values((0..8).map(|row| row.to_string().repeat(1024)));
    let wide = RecordBatch::try_from_iter([("id", ids), ("text", Arc::new(text) as _)]).unwrap();
    let mut puts = Vec::new();
    for group in 0..PUTS {
        puts.push(partition.put(Put::group(group.to_string(), wide.clone()), None).await.unwrap());
    }
    for rows in &puts {
        partition.clear(&rows[..3]).await.unwrap();
    }
    queue.close();
    drop((partition, queue));
    // The journal has been rewritten, and no longer has records of the removed rows.
    let queue = open_with(dir.path(), config);
    let partition = queue.partition("p").unwrap();
    for rows in &puts {
        partition.clear(&rows[3..5]).await.unwrap();
    }
    for _ in 0..100 {
        // The writer of the journal empties at most one segment per turn.
        partition.announce(partition.stats().policy_version + 1).await.unwrap();
    }
    let live = PUTS as u64 * 3 * 1024;
    let held = segment_bytes(dir.path());
    assert!(held < live * 2, "{held} bytes for {live}");
    assert!(queue.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn exports_hold_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let partition = queue.declare(spec(10)).await.unwrap();
    partition.put(Put::group("g", batch(0, 2)), None).await.unwrap();
    partition.put(Put::group("h", batch(2, 1)), None).await.unwrap();
    let mut lines = Vec::new();
    assert_eq!(partition.export(ExportFormat::Jsonl, &mut lines).await.unwrap(), 3);
    let text = String::from_utf8(lines).unwrap();
    assert_eq!(text.lines().nth(1), Some(r#"{"id":1,"tokens":[7,7]}"#));
    let mut file = Vec::new();
    assert_eq!(partition.export(ExportFormat::Parquet, &mut file).await.unwrap(), 3);
    assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
}

/// The columns of an exported Parquet file.
async fn exported_columns(queue: &TransferQueue) -> Vec<String> {
    let mut file = Vec::new();
    assert_eq!(queue.partition("p").unwrap().export(ExportFormat::Parquet, &mut file).await.unwrap(), 0);
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap();
    reader.schema().fields().iter().map(|field| field.name().clone()).collect()
}

#[tokio::test]
async fn an_empty_partition_keeps_its_columns_and_exports_them() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path());
    let partition = queue.declare(spec(10)).await.unwrap();
    let rows = partition.put(Put::group("g", batch(0, 2)), None).await.unwrap();
    let reward = Arc::new(Int32Array::from(vec![1, 2]));
    partition
        .write_columns(&rows, RecordBatch::try_from_iter([("reward", reward as _)]).unwrap())
        .await
        .unwrap();
    partition.clear_all().await.unwrap();
    let columns = ["id", "reward", "tokens"];
    assert_eq!(exported_columns(&queue).await, columns);
    let mut snapshot = tempfile::tempfile().unwrap();
    queue.snapshot(None, snapshot.try_clone().unwrap()).await.unwrap();
    queue.close();
    drop((partition, queue));
    assert_eq!(exported_columns(&TransferQueue::open_read_only(dir.path()).unwrap()).await, columns);
    // At each opening the journal is longer than its limit, so it is rewritten.
    for _ in 0..2 {
        let config = QueueConfig { journal_bytes: 1, ..QueueConfig::default() };
        let queue = open_with(dir.path(), config);
        assert_eq!(exported_columns(&queue).await, columns);
        queue.partition("p").unwrap().announce(1).await.unwrap();
        queue.close();
    }
    let restored = TransferQueue::open(QueueConfig::default()).unwrap();
    snapshot.rewind().unwrap();
    restored.restore(snapshot).await.unwrap();
    assert_eq!(exported_columns(&restored).await, columns);
    let text = RecordBatch::try_from_iter([("id", Arc::new(StringArray::from(vec!["x"])) as _)]).unwrap();
    let refused = restored.partition("p").unwrap().put(Put::group("g", text), None).await;
    assert!(matches!(refused, Err(QueueError::WrongType { .. })), "{refused:?}");
}

/// The handle of the first row in each of three lives of a queue. Nothing of a life reaches the next one.
async fn handles_of_lives_that_are_lost(durability: Durability, has_dir: bool) -> Vec<RowHandle> {
    let empty = tempfile::tempdir().unwrap();
    let config = |dir: &Path| QueueConfig {
        dir: has_dir.then(|| dir.to_owned()),
        durability,
        ..QueueConfig::default()
    };
    if has_dir {
        TransferQueue::open(config(empty.path())).unwrap().declare(spec(10)).await.unwrap();
    }
    let mut handles = Vec::new();
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(empty.path()).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        let queue = TransferQueue::open(config(dir.path())).unwrap();
        let partition = queue.declare(spec(10)).await.unwrap();
        handles.extend(partition.put(Put::group("g", batch(0, 1)), None).await.unwrap());
    }
    handles
}

#[tokio::test]
async fn a_new_row_does_not_get_the_handle_of_a_lost_row() {
    for (durability, has_dir) in [
        (Durability::None, true),
        (Durability::Os, true),
        (Durability::None, false),
        (Durability::Fsync, false),
    ] {
        let handles = handles_of_lives_that_are_lost(durability, has_dir).await;
        // Generations are random, so two lives may begin with the same one.
        assert!(handles.iter().any(|handle| *handle != handles[0]), "{durability:?} {has_dir}: {handles:?}");
    }
}
