//! Leases expire, whether or not a client calls.
//!
//! There is no timer for each lease. Instead, every call that depends on leases first ends the expired
//! leases. A call that waits for a change also checks again at the time of the next expiry. A server ends
//! expired leases in its upkeep as well, so that their ends are logged and recorded even while no client
//! calls.

use tokio::time::Instant;

use super::{Partition, Shared, Table};

impl Shared {
    /// Ends the leases that have expired, wakes the calls that may proceed, and then calls `act`. Must not be
    /// called under the table's lock.
    pub(super) fn after_expiry<T>(&self, act: impl FnOnce(&mut Table, Instant) -> T) -> T {
        let (outcome, ended) = {
            let mut table = self.table.lock();
            let now = Instant::now();
            let ended = table.expire(now);
            if ended > 0 {
                self.tell(&mut table);
            }
            (act(&mut table, now), ended)
        };
        if ended > 0 {
            self.record_ends();
        }
        outcome
    }
}

impl Partition {
    /// Ends the leases that have expired.
    pub(crate) fn end_expired_leases(&self) {
        self.shared.after_expiry(|_, _| ());
    }
}
