//! The upkeep of a served queue: ending expired leases, checking whether silent storage units answer,
//! clearing freed rows on units, and emptying drained units.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::partition::Partition;
use crate::queue::TransferQueue;
use crate::units::UnitClient;

const PERIOD: Duration = Duration::from_millis(250);
/// The time within which a unit must answer. This time is longer than a short interruption of the network.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The maximum number of rows that one call clears.
const CLEAR_MAX: usize = 4096;
/// The maximum number of chunks of a drained unit that one round moves.
const MOVED_MAX: usize = 64;

impl TransferQueue {
    /// Runs the upkeep of leases and storage units until `end`. Cancel-safe.
    pub(crate) async fn keep_up(&self, end: &CancellationToken) {
        while end.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
            self.partitions().iter().for_each(Partition::end_expired_leases);
            let doubtful = self.units().take_doubtful(Instant::now());
            let asking =
                doubtful.into_iter().map(|(unit, client)| async move { (is_there(client).await, unit) });
            for (is_there, unit) in join_all(asking).await {
                if is_there {
                    self.units().heard(&unit);
                    self.unit_answers(&unit);
                } else {
                    self.unit_died(&unit).await;
                }
            }
            for (unit, chunks) in self.units().take_gone(Instant::now()) {
                self.unit_is_gone(&unit, &chunks).await;
            }
            for (unit, chunks) in self.units().draining(MOVED_MAX) {
                if let Err(error) = self.move_off(&chunks).await {
                    tracing::warn!(%unit, %error, "rows stay on a unit that is drained; they move later");
                }
            }
            clear_freed(self).await;
        }
    }
}

async fn is_there(client: Option<Arc<dyn UnitClient>>) -> bool {
    let Some(client) = client else { return false };
    tokio::time::timeout(ANSWER_MAX, client.is_there()).await.unwrap_or(false)
}

async fn clear_freed(queue: &TransferQueue) {
    for (unit, client, rows) in queue.units().take_freed() {
        for (done, some) in rows.chunks(CLEAR_MAX).enumerate() {
            // A repeated clear changes nothing, so the call needs no token.
            if let Err(error) = client.clear(some).await {
                tracing::debug!(%unit, %error, "a unit is told later which rows it may forget");
                queue.units().give_back_freed(&unit, rows[done * CLEAR_MAX..].to_vec());
                break;
            }
        }
    }
}
