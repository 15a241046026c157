//! `rolldock consume`

use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, RecordBatch};
use rolldock_process::{plural, queue_folder, said, say};
use rolldock_queue::{Lease, Queue, QueueConfig, QueueError, Take, TransferQueue};
use rolldock_scope::blocking;
use tokio::time::Instant;

use crate::args::ConsumeArgs;
use crate::queue::{CONSUME_PATIENCE, remote};

/// `rolldock consume`: takes batches from a queue, prints a summary of each, and acks them.
pub async fn run(args: ConsumeArgs) -> anyhow::Result<()> {
    if let Some(server) = remote(&args.source, args.token.as_deref(), CONSUME_PATIENCE)? {
        return consume(server.as_ref(), &args).await;
    }
    let folder = queue_folder(args.source.as_ref());
    anyhow::ensure!(folder.exists(), "{} holds no queue; expected a run's directory", args.source);
    let config = QueueConfig { dir: Some(folder), ..QueueConfig::default() };
    let queue = blocking("queue open", move || TransferQueue::open(config)).await??;
    let consumed = consume(&queue, &args).await;
    blocking("queue close", move || queue.close()).await?;
    consumed
}

async fn consume(queue: &dyn Queue, args: &ConsumeArgs) -> anyhow::Result<()> {
    let take = Take::groups(&args.task, args.groups)
        .held_by(format!("rolldock consume, process {}", std::process::id()));
    let wait = Duration::from_secs(args.wait);
    let mut lost = Lost::new(queue, &args.partition).await?;
    let mut batches = 0;
    let mut rows = 0;
    // Leases that are returned at the end. If they were returned earlier, the next take would get their rows
    // again.
    let mut left = Vec::new();
    while batches < args.max_batches.unwrap_or(u64::MAX) {
        let deadline = (!wait.is_zero()).then(|| Instant::now() + wait);
        let lease = match queue.take(&args.partition, &Take { deadline, ..take.clone() }).await {
            Ok(Some(lease)) => lease,
            Ok(None) | Err(QueueError::Deadline { .. }) => break,
            Err(error @ QueueError::Corrupt { .. }) => {
                lost.count(error).await?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if !said(&describe(batches + 1, &lease)) {
            // Nobody has seen this batch, so its rows stay in the queue.
            lease.nack().await?;
            break;
        }
        batches += 1;
        rows += lease.rows().len();
        if args.leave {
            left.push(lease);
        } else {
            lease.ack().await?;
        }
    }
    for lease in left {
        lease.nack().await?;
    }
    let word = if args.leave { "seen and left" } else { "consumed" };
    let remaining = queue.status(&args.partition).await?.rows;
    let are = if remaining == 1 { "is" } else { "are" };
    let (batches, rows) = (plural(batches, "batch"), plural(rows as u64, "row"));
    let remaining = plural(remaining as u64, "row");
    say(&format!("{batches}, {rows} {word}; {remaining} {are} left"));
    let lost_rows = lost.rows();
    anyhow::ensure!(lost_rows == 0, "{lost_rows} rows are lost, because their payload is damaged");
    Ok(())
}

/// The rows of a partition that are lost while it is consumed. A take of damaged rows fails, and the queue
/// then marks these rows as lost, so that the next take gets other rows.
struct Lost<'a> {
    queue: &'a dyn Queue,
    partition: &'a str,
    before: u64,
    now: u64,
}

impl<'a> Lost<'a> {
    async fn new(queue: &'a dyn Queue, partition: &'a str) -> anyhow::Result<Self> {
        let before = queue.status(partition).await?.dispositions.lost;
        Ok(Self { queue, partition, before, now: before })
    }

    /// Counts the rows of a take that failed with `error`. If the queue has not marked any of them as lost,
    /// returns the error, because the next take would fail too.
    async fn count(&mut self, error: QueueError) -> anyhow::Result<()> {
        let now = self.queue.status(self.partition).await?.dispositions.lost;
        if now == self.now {
            return Err(error.into());
        }
        tracing::error!(rows = now - self.now, %error, "rows are lost");
        self.now = now;
        Ok(())
    }

    fn rows(&self) -> u64 {
        self.now - self.before
    }
}

fn mean(batches: &[RecordBatch], column: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut count = 0_usize;
    for batch in batches {
        let values = batch.column_by_name(column)?.as_primitive_opt::<Float32Type>()?;
        sum += values.iter().flatten().map(f64::from).sum::<f64>();
        count += values.len();
    }
    (count > 0).then(|| sum / count as f64)
}

fn tokens(batches: &[RecordBatch]) -> Option<usize> {
    let lengths = batches.iter().map(|batch| {
        let lists = batch.column_by_name("response_ids")?.as_list_opt::<i32>()?;
        Some((0..lists.len()).map(|row| lists.value_length(row) as usize).sum::<usize>())
    });
    lengths.sum()
}

fn describe(number: u64, lease: &Lease) -> String {
    let batches = lease.batches();
    let mut groups: Vec<&String> = lease.groups().iter().collect();
    groups.dedup();
    let (groups, rows) = (plural(groups.len() as u64, "group"), plural(lease.rows().len() as u64, "row"));
    let mut words = vec![format!("batch {number}: {groups}, {rows}")];
    words.extend(tokens(batches).map(|tokens| format!("{tokens} response tokens")));
    words.extend(mean(batches, "reward").map(|reward| format!("mean reward {reward:.3}")));
    words.extend(mean(batches, "acc").map(|acc| format!("mean accuracy {acc:.3}")));
    words.join(", ")
}
