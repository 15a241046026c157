//! Exports: what they contain while other clients put and consume rows, and how much of a file is in memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rolldock_queue::{
    Durability, ExportFormat, Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue,
};
use tokio::task::JoinSet;

const FORMATS: [ExportFormat; 3] = [ExportFormat::Parquet, ExportFormat::Jsonl, ExportFormat::Arrow];

fn numbered(id: i64) -> Put {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![id]));
    Put::group(format!("g{id}"), RecordBatch::try_from_iter([("id", ids)]).unwrap())
}

async fn declared(config: QueueConfig) -> Partition {
    let queue = TransferQueue::open(config).unwrap();
    queue.declare(PartitionSpec::new("p", ["t"], 4_096)).await.unwrap()
}

/// A writer of Parquet keeps a row group in memory until the row group is complete.
#[tokio::test]
async fn a_parquet_file_has_row_groups_of_bounded_size() {
    let partition = declared(QueueConfig::default()).await;
    let mut rng = SmallRng::seed_from_u64(7);
    for group in 0..20 {
        let mut payload = vec![0; 8 << 20];
        rng.fill_bytes(&mut payload);
        let payload: ArrayRef = Arc::new(BinaryArray::from(vec![payload.as_slice()]));
        let batch = RecordBatch::try_from_iter([("payload", payload)]).unwrap();
        partition.put(Put::group(format!("g{group}"), batch), None).await.unwrap();
    }
    let mut file = Vec::new();
    assert_eq!(partition.export(ExportFormat::Parquet, &mut file).await.unwrap(), 20);
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap();
    let groups = reader.metadata().row_groups();
    assert_eq!(groups.iter().map(|group| group.num_rows()).sum::<i64>(), 20);
    let largest = groups.iter().map(|group| group.total_byte_size()).max().unwrap();
    assert!(largest < 80 << 20, "a row group of {largest} bytes");
}

/// Without durability a put returns before its rows are visible.
#[tokio::test]
async fn an_export_has_the_rows_of_every_put_that_has_returned() {
    let folder = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(folder.path().to_owned()),
        durability: Durability::None,
        ..QueueConfig::default()
    };
    let partition = declared(config).await;
    for id in 0..100 {
        partition.put(numbered(id), None).await.unwrap();
        let format = FORMATS[id as usize % 3];
        assert_eq!(partition.export(format, Vec::new()).await.unwrap(), id as usize + 1, "{format:?}");
    }
}

/// The columns of a file are known when an export begins, so a first put either is in the file or is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_during_the_first_put_has_its_row_or_none() {
    for number in 0..2_000 {
        let partition = declared(QueueConfig::default()).await;
        let mut putting = JoinSet::new();
        putting.spawn({
            let partition = partition.clone();
            async move { partition.put(numbered(1), None).await.unwrap() }
        });
        let exported = partition.export(FORMATS[number % 3], Vec::new()).await.unwrap();
        assert!(exported <= 1);
        putting.join_next().await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_consumed_meanwhile_do_not_end_an_export() {
    let folder = tempfile::tempdir().unwrap();
    let config = QueueConfig {
        dir: Some(folder.path().to_owned()),
        durability: Durability::Os,
        ..QueueConfig::default()
    };
    let partition = declared(config).await;
    let (is_over, consumed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut consumer = JoinSet::new();
    consumer.spawn({
        let (partition, is_over, consumed) = (partition.clone(), Arc::clone(&is_over), Arc::clone(&consumed));
        async move {
            let mut id = 0;
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..8 {
                    partition.put(numbered(id), None).await.unwrap();
                    id += 1;
                }
                while let Some(lease) = partition.take(&Take::groups("t", 1)).await.unwrap() {
                    lease.ack().await.unwrap();
                    consumed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    // On a busy machine the exports may be far ahead of the consumer.
    let mut number = 0;
    while number < 300 || consumed.load(Ordering::Relaxed) < 100 {
        assert!(consumer.try_join_next().is_none(), "the consumer has ended");
        partition.export(FORMATS[number % 3], Vec::new()).await.unwrap();
        partition.export_sound(FORMATS[number % 3], Vec::new()).await.unwrap();
        number += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    // A consumer that fails ends with an error here.
    consumer.join_next().await.unwrap().unwrap();
    let consumed = consumed.load(Ordering::Relaxed);
    assert!(consumed > 8, "expected rows that were consumed during the exports, found {consumed}");
}
