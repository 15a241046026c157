//! A queue in use is checked in slices, and wrong counts are still found.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};

use crate::partition::Table;
use crate::{Partition, PartitionSpec, Put, QueueConfig, Take, TaskSpec, TransferQueue};

fn column(name: &str, rows: i64) -> RecordBatch {
    let values: ArrayRef = match name {
        "id" => Arc::new(Int64Array::from_iter_values(0..rows)),
        _ => Arc::new(Float32Array::from_iter_values((0..rows).map(|row| row as f32))),
    };
    RecordBatch::try_from_iter([(name, values)]).unwrap()
}

/// Five groups of three rows. Three groups have the column that `score` needs, and rows are acked, leased and
/// cleared.
async fn furnished() -> (TransferQueue, Partition) {
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    let mut spec = PartitionSpec::new("p", ["train", "score"], 64);
    spec.tasks[1] = TaskSpec { columns: vec!["reward".to_owned()], ..spec.tasks[1].clone() };
    let partition = queue.declare(spec).await.unwrap();
    for group in 0..5 {
        let keys = (0..3).map(|row| format!("{group}/{row}")).collect();
        let put = Put { keys, ..Put::group(group.to_string(), column("id", 3)) };
        let rows = partition.put(put, None).await.unwrap();
        if group < 3 {
            partition.write_columns(&rows, column("reward", 3)).await.unwrap();
        }
        if group == 4 {
            partition.clear(&rows[..1]).await.unwrap();
        }
    }
    partition.take(&Take::rows("train", 4)).await.unwrap().unwrap().ack().await.unwrap();
    partition.take(&Take::groups("score", 1)).await.unwrap().unwrap().ack().await.unwrap();
    (queue, partition)
}

/// The problems that a check of the queue finds.
async fn problems(queue: &TransferQueue) -> Vec<String> {
    let problems = queue.verify().await.unwrap().problems;
    problems.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn wrong_counts_and_rows_of_a_queue_in_use_are_found() {
    let (queue, partition) = furnished().await;
    let _held = partition.take(&Take::rows("train", 5)).await.unwrap().unwrap();
    assert_eq!(problems(&queue).await, Vec::<String>::new());
    type Damage = fn(&mut Table);
    let damages: [(&str, Damage); 4] = [
        ("rows: counted 11, kept 12", |table| table.rows_live += 1),
        ("rows with column=reward: counted 5, kept 6", |table| {
            table.groups.get_mut(&1).unwrap().rows.truncate(2)
        }),
        ("for task=train: counted 1, kept 2", |table| table.groups.get_mut(&1).unwrap().rows.truncate(2)),
        ("another group than its own", |table| {
            let row = table.groups[&4].rows[0];
            table.groups.get_mut(&3).unwrap().rows[2] = row;
        }),
    ];
    for (expected, damage) in damages {
        let (queue, partition) = furnished().await;
        damage(&mut partition.shared.table.lock());
        let found = problems(&queue).await;
        assert!(found.iter().any(|found| found.contains(expected)), "{expected}: {found:?}");
    }
}
