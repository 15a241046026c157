//! The balancer's state behind its lock, and the notifications that follow a change of it.

use std::sync::atomic::AtomicU64;

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::grant::Grant;
use super::serve::Pass;
use super::state::State;
use crate::outcome::{Outcome, Unanswered};
use crate::{BalancerConfig, invariants};

/// The data that the clones of a balancer and its permits share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: BalancerConfig,
    pub(super) state: Mutex<State>,
    /// Notified when a server changes its state or its number of places, joins, leaves, or has finished its
    /// last request.
    pub(super) changed: Notify,
    /// Notified when the time at which a server opens has changed.
    pub(super) openings: Notify,
    /// The task of one waiting request holds this semaphore, and waits for the times at which servers open.
    pub(super) timekeeper: Semaphore,
    pub(super) waiting: Gauge,
    /// Tokens that servers have generated for probes.
    pub(super) probe_tokens: AtomicU64,
}

impl Shared {
    /// Takes back the places of a grant and counts the outcome of its request.
    pub(super) fn take_back(&self, grant: &Grant, outcome: &Outcome, unanswered: Option<Unanswered>) {
        let Grant { life, weight, number, tokens, granted_at } = grant;
        let now = Instant::now();
        let took = now.saturating_duration_since(*granted_at);
        self.update(|state| {
            if let Outcome::Success { tokens } = outcome {
                state.means.record(*weight, *tokens, took);
            }
            // The server may have left the fleet.
            let Some(index) = state.index(life.server) else { return };
            state.change_at(&self.config, index, now, |server| {
                server.count_unanswered(outcome, unanswered, *weight, *granted_at);
                if server.epoch() != life.epoch {
                    return;
                }
                server.take_back(*weight, *tokens);
                if let Some(reason) = server.record(outcome, (*weight, *number), took, now, &self.config) {
                    let in_use = server.in_use;
                    tracing::warn!(server = %server.name(), %reason, in_use, "server is suspect");
                }
            });
        });
    }

    /// Changes the state, then serves the waiting requests and sends the notifications that are due.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, changes) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            if !state.waiters.is_empty() {
                Pass::begin(&self.config, &mut state).run();
            }
            let waiting = state.waiters.len();
            if std::mem::replace(&mut state.waiting_shown, waiting) != waiting {
                self.waiting.set(waiting as f64);
            }
            debug_assert_eq!(invariants::within_capacity(&state.snapshot()), Ok(()));
            (result, std::mem::take(&mut state.changes))
        };
        if changes.of_fleet {
            self.changed.notify_waiters();
        }
        if changes.of_openings {
            self.openings.notify_waiters();
        }
        result
    }
}
