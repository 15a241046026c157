//! The metrics of a queue, through the `metrics` facade. The program that serves the queue owns the exporter,
//! and updates the metrics at each request for the metrics page. The values are counts that the tables
//! maintain, so the cost does not depend on the number of rows.

use metrics::{counter, gauge};

use crate::partition::Partition;
use crate::queue::TransferQueue;
use crate::record::Dispositions;
use crate::stats::TaskStats;

impl TransferQueue {
    /// Sets the metrics of the queue in the current recorder: rows, bytes, the age of the oldest row, leases,
    /// and the lag of each task.
    pub fn meter(&self) {
        gauge!("rolldock_queue_payload_bytes").set(self.payload_bytes() as f64);
        self.partitions().iter().for_each(meter_partition);
    }
}

fn meter_partition(partition: &Partition) {
    let (name, stats) = (partition.name().to_owned(), partition.stats());
    let oldest_s = partition.oldest_age().map_or(0.0, |age| age.as_secs_f64());
    gauge!("rolldock_queue_rows", "partition" => name.clone()).set(stats.rows as f64);
    gauge!("rolldock_queue_capacity_rows", "partition" => name.clone()).set(stats.capacity_rows as f64);
    gauge!("rolldock_queue_groups", "partition" => name.clone()).set(stats.groups as f64);
    gauge!("rolldock_queue_oldest_row_seconds", "partition" => name.clone()).set(oldest_s);
    gauge!("rolldock_queue_leases", "partition" => name.clone()).set(stats.leases as f64);
    gauge!("rolldock_queue_policy_version", "partition" => name.clone()).set(stats.policy_version as f64);
    for (fate, rows) in by_fate(stats.dispositions) {
        counter!("rolldock_queue_gone_rows_total", "partition" => name.clone(), "fate" => fate)
            .absolute(rows);
    }
    for task in &stats.tasks {
        meter_task(&name, task);
    }
}

fn meter_task(partition: &str, task: &TaskStats) {
    let TaskStats { incomplete_rows, ready_rows, leased_rows, away_rows, acked_rows, .. } = *task;
    let labels = || [("partition", partition.to_owned()), ("task", task.task.clone())];
    // The task has not acked these rows yet.
    let lag = incomplete_rows + ready_rows + leased_rows + away_rows;
    gauge!("rolldock_queue_task_lag_rows", &labels()).set(lag as f64);
    let by_state = [
        ("incomplete", incomplete_rows),
        ("ready", ready_rows),
        ("leased", leased_rows),
        ("away", away_rows),
        ("acked", acked_rows),
    ];
    for (state, rows) in by_state {
        let [partition, task] = labels();
        let labels = [partition, task, ("state", state.to_owned())];
        gauge!("rolldock_queue_task_rows", &labels).set(rows as f64);
    }
}

fn by_fate(gone: Dispositions) -> [(&'static str, u64); 5] {
    let Dispositions { acked, dropped, cleared, lost, stale } = gone;
    [("acked", acked), ("dropped", dropped), ("cleared", cleared), ("lost", lost), ("stale", stale)]
}
