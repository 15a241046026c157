//! What goes on beside puts and takes while there are units: silence is noticed, freed rows are cleared, drained units are
//! emptied.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::BLOBS;
use crate::{Queue, RemoteQueue, TransferQueue};

const PERIOD: Duration = Duration::from_millis(250);
/// How long a unit may take to say that it is there: longer than a network blinks.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Rows cleared by one call.
const CLEAR_MAX: usize = 4096;
/// Chunks moved between two looks at the units.
const MOVED_MAX: usize = 64;

/// Keeps up with the units of `queue` until `end`. Cancel-safe.
pub(crate) async fn keep_up(queue: &TransferQueue, end: &CancellationToken) {
    while end.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        let doubtful = queue.units().take_doubtful(Instant::now());
        let asking = doubtful.into_iter().map(|(unit, client)| async move { (is_there(client).await, unit) });
        for (is_there, unit) in join_all(asking).await {
            if is_there {
                queue.units().heard(&unit);
                queue.unit_answers(&unit);
            } else {
                queue.unit_died(&unit).await;
            }
        }
        for (unit, chunks) in queue.units().take_gone(Instant::now()) {
            queue.unit_is_gone(&unit, &chunks).await;
        }
        for (unit, chunks) in queue.units().draining(MOVED_MAX) {
            if let Err(error) = queue.move_off(&chunks).await {
                tracing::warn!(%unit, %error, "rows stay on a unit that is drained; they move later");
            }
        }
        clear_freed(queue).await;
    }
}

async fn is_there(client: Option<RemoteQueue>) -> bool {
    let Some(client) = client else { return false };
    tokio::time::timeout(ANSWER_MAX, client.status(BLOBS)).await.is_ok_and(|status| status.is_ok())
}

async fn clear_freed(queue: &TransferQueue) {
    for (unit, client, rows) in queue.units().take_freed() {
        for (done, some) in rows.chunks(CLEAR_MAX).enumerate() {
            // Repeating it changes nothing, so it needs no token.
            if let Err(error) = client.clear_those_there(BLOBS, some).await {
                tracing::debug!(%unit, %error, "a unit is told later what it may forget");
                queue.units().give_back_freed(&unit, rows[done * CLEAR_MAX..].to_vec());
                break;
            }
        }
    }
}
