//! Measures how a snapshot delays takes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use rolldock::scope::Scope;
use rolldock_bench_figures::{Bar, Figure};
use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use tokio::time::Instant;

/// The longest allowed time of a take in milliseconds, for a queue of any size. A take may wait for a slice
/// of rows or for another thread.
const LONGEST_MS: f64 = 100.0;

/// The time of the longest take until `is_over` returns true, in milliseconds, and the number of takes.
async fn longest(partition: &Partition, is_over: impl Fn() -> bool) -> anyhow::Result<(f64, usize)> {
    let take = Take::rows("train", 1);
    let (mut longest, mut count) = (0.0_f64, 0);
    while !is_over() {
        let started = Instant::now();
        let lease = partition.take(&take).await?.context("nothing to take")?;
        longest = longest.max(started.elapsed().as_secs_f64() * 1e3);
        count += 1;
        lease.nack().await?;
        // The loop never waits, so without this call the snapshot's task would not run.
        tokio::task::yield_now().await;
    }
    Ok((longest, count))
}

/// Measures takes during a snapshot of the worst case: each row has its own put, group and record.
pub(super) async fn longest_take(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rows = if quick { 100_000 } else { 1_000_000 };
    let queue = TransferQueue::open(QueueConfig::default())?;
    let partition = queue.declare(PartitionSpec::new("train", ["train"], rows)).await?;
    let reward: ArrayRef = Arc::new(Float32Array::from_iter_values([1.0]));
    let row = RecordBatch::try_from_iter([("reward", reward)])?;
    for group in 0..rows {
        partition.put(Put::group(format!("group {group}"), row.clone()), None).await?;
    }
    // The first take creates the structures that takes of single rows need.
    partition.take(&Take::rows("train", 1)).await?.context("nothing to take")?.nack().await?;
    let until = Instant::now() + Duration::from_secs(1);
    let (alone, _) = longest(&partition, || Instant::now() >= until).await?;
    let scope = Scope::new();
    let writing = scope.spawn("snapshot", async move { queue.snapshot(None, std::io::sink()).await });
    let started = Instant::now();
    let (during, takes) = longest(&partition, || writing.is_finished()).await?;
    let took = started.elapsed().as_secs_f64();
    let counts = writing.await??;
    anyhow::ensure!(counts.rows == rows as u64, "{} rows of {rows}", counts.rows);
    anyhow::ensure!(takes > 0, "expected a take during the snapshot, found none");
    let what = format!("a snapshot of {rows} rows that were put one by one");
    Ok(vec![
        Figure::new(format!("{what}: the longest take meanwhile"), during, "ms")
            .against_named("with no snapshot", alone)
            .bar(Bar::AtMost(LONGEST_MS)),
        Figure::new(format!("{what}: time"), took, "s"),
    ])
}
