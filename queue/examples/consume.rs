//! A trainer's loop: take batches of whole groups, train on them, ack.
//!
//! `cargo run -p rolldock-queue --example consume -- runs/quickstart/queue`

use rolldock_queue::{QueueConfig, QueueError, Take, TransferQueue};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), QueueError> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "runs/quickstart/queue".to_owned());
    let queue = TransferQueue::open(QueueConfig { dir: Some(dir.into()), ..QueueConfig::default() })?;
    let partition = queue.partition("train")?;
    let columns = ["response_ids", "rollout_logprobs", "advantage"].map(str::to_owned).to_vec();
    let take = Take { columns: Some(columns), ..Take::groups("train", 8) };
    while let Some(lease) = partition.take(&take).await? {
        for batch in lease.batches() {
            eprintln!("train on {} rows of {} columns", batch.num_rows(), batch.num_columns());
        }
        // Ack after training: if the process dies before, the queue gives the rows out again.
        lease.ack().await?;
    }
    queue.close();
    Ok(())
}
