//! What goes on beside puts and takes while there are units: silence is noticed, freed rows are cleared, drained units are
//! emptied.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::BLOBS;
use crate::{Queue, QueueError, TransferQueue};

const PERIOD: Duration = Duration::from_millis(250);
/// Rows cleared by one call.
const CLEAR_MAX: usize = 4096;
/// Chunks moved between two looks at the units.
const MOVED_MAX: usize = 64;

/// Keeps up with the units of `queue` until `end`. Cancel-safe.
pub(crate) async fn keep_up(queue: &TransferQueue, end: &CancellationToken) {
    while end.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        for unit in queue.units().silent(Instant::now()) {
            queue.unit_died(&unit).await;
        }
        for (unit, client) in queue.units().take_suspects() {
            match client {
                Some(client) if client.status(BLOBS).await.is_ok() => {
                    queue.units().absolve(&unit);
                    queue.unit_answers(&unit);
                }
                _ => queue.unit_died(&unit).await,
            }
        }
        for (unit, chunks) in queue.units().draining(MOVED_MAX) {
            if let Err(error) = queue.move_off(&chunks).await {
                tracing::warn!(%unit, %error, "rows stay on a unit that is drained; they move later");
            }
        }
        clear_freed(queue).await;
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
