//! A producer, a scorer and a trainer in one process: the ten lines of the guide.
//!
//! `cargo run -p rolldock-queue --example queue`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Float32Array, RecordBatch, StringArray};
use rolldock_queue::{PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use tokio::time::Instant;

fn train(batches: &[RecordBatch]) {
    eprintln!("train on {} batches", batches.len());
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let prompts = Arc::new(StringArray::from(vec!["2 + 2", "2 + 3"]));
    let batch = RecordBatch::try_from_iter([("prompt", prompts as _)])?;
    let rewards =
        RecordBatch::try_from_iter([("reward", Arc::new(Float32Array::from(vec![1.0, 0.0])) as _)])?;
    // ANCHOR: lines
    let queue =
        TransferQueue::open(QueueConfig { dir: Some("runs/queue".into()), ..QueueConfig::default() })?;
    let partition = queue.declare(PartitionSpec::new("train", ["train"], 65_536)).await?;
    let rows = partition.put(Put::group("prompt-1", batch), None).await?;
    partition.write_columns(&rows, rewards).await?;
    partition.end_of_puts();
    let soon = Instant::now() + Duration::from_secs(60);
    while let Some(lease) = partition.take(&Take::groups("train", 8).until(soon)).await? {
        train(lease.batches());
        lease.ack().await?;
    }
    // ANCHOR_END: lines
    queue.close();
    Ok(())
}
