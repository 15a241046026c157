use std::sync::Arc;

use super::*;
use crate::partition::Partition;
use crate::plane::Plane;
use crate::record::{Dispositions, PutRecord};
use crate::store::segments;
use crate::{PartitionSpec, PartitionStats, RowHandle};

fn declare() -> Record {
    let spec = PartitionSpec::new("p", ["a"], 16);
    Record::Declare { spec, generation_floor: 0, dispositions: Dispositions::default() }
}

fn plane(dir: &std::path::Path) -> Plane {
    Plane::new(segments(dir, 1 << 20))
}

fn put() -> Record {
    Record::Put(PutRecord {
        partition: "p".to_owned(),
        group: "g".to_owned(),
        group_size: 1,
        group_gone: 0,
        in_parts: None,
        sample: None,
        policy_version: 0,
        priority: 0,
        lengths: Vec::new(),
        kib: 0,
        labels: Vec::new(),
        rows: vec![RowHandle { slot: 0, generation: 0 }],
        payload: PayloadRecord {
            chunk: ChunkId(0),
            note: None,
            columns: vec!["id".to_owned()],
            chunk_rows: Vec::new(),
        },
        token: None,
        words: Some("accepted".to_owned()),
    })
}

#[test]
fn a_second_declaration_keeps_what_was_put_under_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut replay = Replay::new(plane(dir.path()));
    for record in [declare(), put(), declare()] {
        replay.apply(record).unwrap();
    }
    let rows: Vec<usize> = replay.into_tables().map(|table| table.rows_live).collect();
    assert_eq!(rows, [1]);
}

#[test]
fn a_record_outlives_its_rows_and_a_rewriting_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path());
    let mut replay = Replay::new(plane.clone());
    let rows = vec![RowHandle { slot: 0, generation: 0 }];
    let ack = Record::Ack { partition: "p".to_owned(), task: "a".to_owned(), rows, lease: None };
    for record in [declare(), put(), ack] {
        replay.apply(record).unwrap();
    }
    let table = replay.into_tables().next().unwrap();
    let mut again = Replay::new(plane.clone());
    let groups: Vec<_> = table.groups.values().collect();
    let slice = Slice::of(&table, &groups, &|chunk| plane.note(chunk));
    for record in [declaration(&table)].into_iter().chain(slice.into_records()).chain(rest(&table)) {
        again.apply(record).unwrap();
    }
    let table = again.into_tables().next().unwrap();
    assert_eq!((table.rows_live, table.dispositions.acked), (0, 1));
    assert_eq!(table.records().iter().map(|(record, ())| record).collect::<Vec<_>>(), ["accepted"]);
}

/// A batch of consecutive numbers.
fn numbers(rows: usize) -> arrow_array::RecordBatch {
    let ids: arrow_array::ArrayRef = Arc::new(arrow_array::Int64Array::from_iter_values(0..rows as i64));
    arrow_array::RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

#[tokio::test]
async fn a_change_of_more_rows_than_fit_a_record_is_read_back() {
    use crate::row::RECORD_ROWS_MAX;
    use crate::{Put, QueueConfig, Take, TransferQueue};
    let dir = tempfile::tempdir().unwrap();
    let open =
        || TransferQueue::open(QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() });
    let queue = open().unwrap();
    let spec = PartitionSpec::new("p", ["a", "b"], 8 * RECORD_ROWS_MAX);
    let partition = queue.declare(spec.clone()).await.unwrap();
    let large = partition.put(Put::group("large", numbers(RECORD_ROWS_MAX + 1)), None).await;
    assert!(matches!(large, Err(QueueError::TooLarge { .. })), "{large:?}");
    for group in ["0", "1", "2"] {
        partition.put(Put::group(group, numbers(RECORD_ROWS_MAX)), None).await.unwrap();
    }
    let lease = partition.take(&Take::groups("a", 3)).await.unwrap().unwrap();
    let id = lease.id();
    lease.ack().await.unwrap();
    queue.close();
    drop((partition, queue));
    let queue = open().unwrap();
    let partition = queue.partition("p").unwrap();
    assert_eq!(partition.stats().tasks[0].acked_rows, 3 * RECORD_ROWS_MAX);
    assert_eq!(partition.ack_lease(id, 0).await, Ok(()), "a repeated ack is known");
    assert_eq!(partition.clear_all().await, Ok(3 * RECORD_ROWS_MAX));
    queue.close();
    drop((partition, queue));
    assert_eq!(open().unwrap().partition("p").unwrap().stats().rows, 0);
}

/// The counts of a partition, and the columns of the given rows.
async fn seen(partition: &Partition, rows: &[RowHandle]) -> (PartitionStats, Vec<Vec<i64>>) {
    use arrow_array::cast::AsArray;
    let mut columns = vec![Vec::new(); 3];
    for batch in partition.get(rows, None).await.unwrap() {
        for (column, seen) in batch.columns().iter().zip(&mut columns) {
            seen.extend(column.as_primitive::<arrow_array::types::Int64Type>().values().iter());
        }
    }
    (partition.stats(), columns)
}

fn column(name: &str, rows: usize) -> arrow_array::RecordBatch {
    let numbers = Arc::clone(numbers(rows).column(0));
    arrow_array::RecordBatch::try_from_iter([(name, numbers)]).unwrap()
}

/// In unit tests a slice has two rows.
#[tokio::test]
async fn a_journal_rewritten_in_slices_restores_the_table() {
    use crate::{Put, QueueConfig, Take, TransferQueue};
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let config = QueueConfig { dir: Some(dir.path().to_owned()), ..QueueConfig::default() };
        // The journal is rewritten after almost every entry.
        TransferQueue::open(QueueConfig { journal_bytes: 1, ..config }).unwrap()
    };
    let queue = open();
    let partition = queue.declare(PartitionSpec::new("p", ["a", "b"], 100)).await.unwrap();
    let mut rows = Vec::new();
    for group in 0..7 {
        let put = Put { group_size: 3, ..Put::group(group.to_string(), numbers(group % 3 + 1)) };
        rows.extend(partition.put(put, None).await.unwrap());
    }
    // Add columns to rows of many groups in one call, and then to some rows again.
    partition.write_columns(&rows, column("more", rows.len())).await.unwrap();
    partition.write_columns(&rows[2..9], column("most", 7)).await.unwrap();
    // Replace values of some rows, including all values of their put.
    partition.overwrite_columns(&rows[1..8], column("more", 7)).await.unwrap();
    partition.overwrite_columns(&rows[3..6], column("id", 3)).await.unwrap();
    partition.take(&Take::rows("a", 5)).await.unwrap().unwrap().ack().await.unwrap();
    for _ in 0..20 {
        partition.announce(partition.stats().policy_version + 1).await.unwrap();
    }
    // The rows of one read must have the same columns.
    let (first, last) = (&rows[2..9], &rows[9..]);
    let before = (seen(&partition, first).await, seen(&partition, last).await);
    queue.close();
    drop((partition, queue));
    let queue = open();
    let partition = queue.partition("p").unwrap();
    let after = (seen(&partition, first).await, seen(&partition, last).await);
    let bare = |(stats, columns): (PartitionStats, Vec<Vec<i64>>)| {
        (stats.tasks, stats.columns, stats.policy_version, columns)
    };
    assert_eq!(bare(before.0), bare(after.0));
    assert_eq!(bare(before.1), bare(after.1));
    assert!(std::fs::metadata(dir.path().join("journal.log")).unwrap().len() < 16 << 10);
}
