//! What goes on beside puts and takes while there are units: silence is noticed, freed rows are cleared, drained units are
//! emptied.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BLOBS, UnitStatus};
use crate::{Queue, QueueError, TransferQueue};

const PERIOD: Duration = Duration::from_millis(250);
/// Rows cleared by one call.
const CLEAR_MAX: usize = 4096;
/// Chunks moved in one turn.
const MOVE_MAX: usize = 64;

/// Keeps up with the units of `queue` until `end`. Cancel-safe.
pub(crate) async fn keep_up(queue: &TransferQueue, end: &CancellationToken) {
    while end.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        for unit in queue.units().silent(Instant::now()) {
            queue.unit_died(&unit).await;
        }
        clear_freed(queue).await;
        drain(queue).await;
    }
}

async fn clear_freed(queue: &TransferQueue) {
    for (unit, client, rows) in queue.units().take_freed() {
        for (done, some) in rows.chunks(CLEAR_MAX).enumerate() {
            match client.clear(BLOBS, some).await {
                Ok(()) => {}
                Err(error @ QueueError::StaleHandle { .. }) => {
                    tracing::warn!(%unit, %error, "a unit has forgotten rows before it was told to");
                }
                Err(error) => {
                    tracing::debug!(%unit, %error, "a unit is told later what it may forget");
                    queue.units().give_back_freed(&unit, rows[done * CLEAR_MAX..].to_vec());
                    break;
                }
            }
        }
    }
}

async fn drain(queue: &TransferQueue) {
    for unit in queue.units().draining() {
        let chunks = queue.units().chunks_of(&unit);
        if chunks.is_empty() {
            continue;
        }
        for chunk in chunks.into_iter().take(MOVE_MAX) {
            if let Err(error) = queue.move_chunk(chunk).await {
                tracing::warn!(%unit, %error, "a chunk stays where it is for now");
                break;
            }
        }
        let is_empty = queue.units().chunks_of(&unit).is_empty();
        let is_draining =
            queue.units().inspect().iter().any(|of| of.card.unit == unit && of.status == UnitStatus::Draining);
        if is_empty && is_draining {
            tracing::info!(%unit, "a storage unit is empty and may leave");
        }
    }
}
