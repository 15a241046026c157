//! Checks of a store through queues, with the calls of producers and consumers.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use tokio::time::Instant;

use super::{Failure, Subject, batch, ensure, ids};
use crate::config::{PartitionSpec, QueueConfig};
use crate::error::{ErrorClass, QueueError};
use crate::partition::Partition;
use crate::put::Put;
use crate::queue::TransferQueue;
use crate::row::RowHandle;
use crate::take::Take;

const PARTITION: &str = "p";
const TASKS: [&str; 2] = ["a", "b"];
const GROUPS: i64 = 24;
const GROUP_ROWS: i64 = 4;
/// The time for which a failed call is repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs all checks. `dir` need not exist.
pub(super) async fn run(subject: &dyn Subject, dir: &Path) -> Result<(), Failure> {
    each_row_is_taken_once(subject, &dir.join("once")).await?;
    a_snapshot_has_what_is_freed_while_it_is_read(subject, &dir.join("snapshot")).await?;
    if subject.open().capabilities().outlives_process {
        rows_outlive_an_end_and_a_kill(subject, &dir.join("kill")).await?;
    }
    Ok(())
}

fn open(subject: &dyn Subject, dir: &Path) -> Result<TransferQueue, QueueError> {
    let store = subject.open();
    let dir = store.capabilities().outlives_process.then(|| dir.to_owned());
    // The journal is rewritten often, so that the store is asked for its notes.
    TransferQueue::open_with(QueueConfig { dir, journal_bytes: 4 << 10, ..QueueConfig::default() }, store)
}

/// Repeats a call until it succeeds, fails with an error that is not retryable, or has failed for `PATIENCE`.
async fn patiently<T>(mut call: impl AsyncFnMut() -> Result<T, QueueError>) -> Result<T, QueueError> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Err(error) if error.class() == ErrorClass::Retryable && Instant::now() < give_up => {
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn put(partition: &Partition, group: i64) -> Result<Vec<RowHandle>, QueueError> {
    let first = group * GROUP_ROWS;
    let token = Some(format!("token {group}"));
    let put = Put { token, ..Put::group(format!("g{group}"), batch(first..first + GROUP_ROWS)?) };
    patiently(async || partition.put(put.clone(), None).await).await
}

async fn declared(queue: &TransferQueue) -> Result<Partition, QueueError> {
    queue.declare(PartitionSpec::new(PARTITION, TASKS, 10_000)).await
}

/// Takes and acks all rows that are ready for a task. Returns their ids in the order of delivery.
async fn consume(partition: &Partition, task: &str, groups: usize) -> Result<Vec<i64>, QueueError> {
    let mut consumed = Vec::new();
    loop {
        let lease = patiently(async || partition.take(&Take::groups(task, groups)).await).await?;
        let Some(lease) = lease else { return Ok(consumed) };
        consumed.extend(lease.batches().iter().flat_map(ids));
        lease.ack().await?;
    }
}

fn once(check: &'static str, found: Vec<i64>, expected: impl Iterator<Item = i64>) -> Result<(), Failure> {
    let (count, found): (usize, BTreeSet<i64>) = (found.len(), found.into_iter().collect());
    let expected: BTreeSet<i64> = expected.collect();
    ensure(check, count == found.len() && found == expected, || {
        let missing: Vec<_> = expected.difference(&found).collect();
        let (found, expected) = (count, expected.len());
        format!("expected rows={expected}, each once; found rows={found}, missing ids {missing:?}")
    })
}

async fn each_row_is_taken_once(subject: &dyn Subject, dir: &Path) -> Result<(), Failure> {
    const CHECK: &str =
        "each row is given to each task once, with all of its columns, and its payload is freed";
    let failed = |error: QueueError| Failure::new(CHECK, error);
    let queue = open(subject, dir).map_err(failed)?;
    let partition = declared(&queue).await.map_err(failed)?;
    for group in 0..GROUPS {
        let rows = put(&partition, group).await.map_err(failed)?;
        let numbers = Int64Array::from_iter_values((0..GROUP_ROWS).map(|row| -row));
        let more = RecordBatch::try_from_iter([("more", Arc::new(numbers) as ArrayRef)]);
        let more = more.map_err(|error| failed(error.into()))?;
        patiently(async || partition.write_columns(&rows, more.clone()).await).await.map_err(failed)?;
    }
    let all = GROUPS * GROUP_ROWS;
    once(CHECK, consume(&partition, TASKS[0], 5).await.map_err(failed)?, 0..all)?;
    let take = Take { columns: Some(vec!["more".to_owned(), "id".to_owned()]), ..Take::groups(TASKS[1], 1) };
    let lease = patiently(async || partition.take(&take).await).await.map_err(failed)?;
    let lease = lease.ok_or_else(|| Failure::new(CHECK, "expected a ready group, found none"))?;
    let columns = lease.batches().first().map_or(0, RecordBatch::num_columns);
    ensure(CHECK, columns == 2, || format!("expected the 2 columns that were asked for, found {columns}"))?;
    lease.ack().await.map_err(failed)?;
    once(CHECK, consume(&partition, TASKS[1], 3).await.map_err(failed)?, GROUP_ROWS..all)?;
    let bytes = queue.inspect().payload_bytes;
    ensure(CHECK, bytes == 0, || format!("expected payload_bytes=0 of no row, found {bytes}"))?;
    queue.close();
    Ok(())
}

async fn a_snapshot_has_what_is_freed_while_it_is_read(
    subject: &dyn Subject,
    dir: &Path,
) -> Result<(), Failure> {
    const CHECK: &str = "a snapshot has the rows of its moment, though they are freed while it is read";
    let failed = |error: QueueError| Failure::new(CHECK, error);
    let queue = open(subject, dir).map_err(failed)?;
    let partition = declared(&queue).await.map_err(failed)?;
    for group in 0..GROUPS {
        put(&partition, group).await.map_err(failed)?;
    }
    let mut snapshot = queue.begin_snapshot(None).await.map_err(failed)?;
    partition.clear_all().await.map_err(failed)?;
    let reading = crate::tasks::blocking("conformance read", move || {
        let mut bytes = Vec::new();
        while let Some(piece) = snapshot.next_piece()? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    });
    let bytes = reading.await.map_err(|error| Failure::new(CHECK, error))?.map_err(failed)?;
    let restored = TransferQueue::open(QueueConfig::default()).map_err(failed)?;
    restored.restore(Cursor::new(bytes)).await.map_err(failed)?;
    let rows = restored.partition(PARTITION).map_err(failed)?;
    once(CHECK, consume(&rows, TASKS[0], 5).await.map_err(failed)?, 0..GROUPS * GROUP_ROWS)?;
    queue.close();
    Ok(())
}

async fn rows_outlive_an_end_and_a_kill(subject: &dyn Subject, dir: &Path) -> Result<(), Failure> {
    const CHECK: &str = "after an end and after a kill, exactly the rows whose put has returned exist";
    let failed = |error: QueueError| Failure::new(CHECK, error);
    for life in 0..3 {
        let queue = open(subject, dir).map_err(failed)?;
        let partition = declared(&queue).await.map_err(failed)?;
        for group in life * GROUPS..(life + 1) * GROUPS {
            put(&partition, group).await.map_err(failed)?;
        }
        // This put is in progress when the process dies, so it is unknown whether it takes effect.
        let first = 1_000_000 + life * GROUP_ROWS;
        let last = Put::group("never", batch(first..first + GROUP_ROWS).map_err(failed)?);
        let _ = tokio::time::timeout(Duration::from_micros(1), partition.put(last, None)).await;
        let groups = Take::groups(TASKS[0], 2);
        let lease = patiently(async || partition.take(&groups).await).await.map_err(failed)?;
        if let Some(lease) = lease {
            lease.ack().await.map_err(failed)?;
        }
        if life == 1 {
            queue.close();
        }
    }
    let queue = open(subject, dir).map_err(failed)?;
    let partition = queue.partition(PARTITION).map_err(failed)?;
    let all = 3 * GROUPS * GROUP_ROWS;
    let known = |found: Vec<i64>| found.into_iter().filter(|id| *id < 1_000_000).collect::<Vec<_>>();
    let all_of_b = known(consume(&partition, TASKS[1], 7).await.map_err(failed)?);
    once(CHECK, all_of_b, 0..all)?;
    let left_of_a = known(consume(&partition, TASKS[0], 7).await.map_err(failed)?);
    once(CHECK, left_of_a, 3 * 2 * GROUP_ROWS..all)?;
    queue.close();
    Ok(())
}
