//! A trajectory that many calls share.

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Live;
use crate::config::Spec;

/// A trajectory.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) number: u64,
    /// Differs between processes, so that ids of requests are unique over restarts.
    pub(crate) life: u64,
    pub(crate) spec: Spec,
    pub(crate) live: Mutex<Live>,
    /// Cancelled at the end. Calls in flight stop then.
    pub(crate) ended: CancellationToken,
    /// Notified whenever a call ends.
    pub(super) released: Notify,
}

impl One {
    pub(super) fn new(number: u64, life: u64, spec: Spec, live: Live) -> Self {
        Self {
            number,
            life,
            spec,
            live: Mutex::new(live),
            ended: CancellationToken::new(),
            released: Notify::new(),
        }
    }

    /// Waits until no call with this body is in flight. Cancel-safe.
    pub(crate) async fn until_quiet(&self, body: u128) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if !self.live.lock().has_in_flight(body) {
                return;
            }
            released.await;
        }
    }
}
