//! Granting and taking back, under the lock.

use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::serving::Pass;
use super::state::State;
use crate::policy::Ask;
use crate::{BalancerConfig, BalancerError, Outcome, Permit, invariants};

/// What somebody who waits is told in the end.
pub(super) type Answer = Result<Permit, BalancerError>;

/// What the clones of a balancer and its permits share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) config: BalancerConfig,
    pub(super) state: Mutex<State>,
    /// A server has another state or other places, joins, leaves, or has nothing left.
    pub(super) changed: Notify,
    /// A server opens at another time.
    pub(super) openings: Notify,
    /// One of those who wait looks when servers open that were left alone for a while.
    pub(super) timekeeper: Semaphore,
    pub(super) waiting: Gauge,
}

impl Shared {
    pub(crate) fn give_back(self: &Arc<Self>, permit: &Permit) {
        let Permit { life, weight, number, tokens, granted_at, outcome, .. } = permit;
        let now = Instant::now();
        let took = now.saturating_duration_since(*granted_at);
        self.update(|state| {
            if let Outcome::Success { tokens } = outcome {
                state.means.record(*weight, *tokens, took);
            }
            // It may have left.
            let Some(index) = state.index(life.server) else { return };
            state.change_at(&self.config, index, now, |server| {
                server.waste(outcome, *weight, took);
                if server.epoch() != life.epoch {
                    return;
                }
                server.give_back(*weight, *tokens);
                if let Some(reason) = server.record(outcome, (*weight, *number), took, now, &self.config) {
                    let in_use = server.in_use;
                    tracing::warn!(server = %server.name(), %reason, in_use, "server is left alone");
                }
            });
        });
    }

    /// Changes the state and serves who waits. Permits that nobody takes are dropped outside the lock.
    pub(super) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, untaken, news) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            let untaken =
                if state.waiters.is_empty() { Vec::new() } else { Pass::begin(self, &mut state).run() };
            let waiting = state.waiters.len();
            if std::mem::replace(&mut state.waiting_shown, waiting) != waiting {
                self.waiting.set(waiting as f64);
            }
            debug_assert_eq!(invariants::within_capacity(&state.snapshot()), Ok(()));
            (result, untaken, std::mem::take(&mut state.news))
        };
        drop(untaken);
        if news.of_fleet {
            self.changed.notify_waiters();
        }
        if news.of_openings {
            self.openings.notify_waiters();
        }
        result
    }

    pub(super) fn try_grant(self: &Arc<Self>, state: &mut State, ask: &Ask<'_>) -> Option<Permit> {
        if ask.weight > self.room(state) {
            return None;
        }
        let State { policy, candidates, rng, .. } = state;
        let index = policy.pick(ask, candidates, rng)?;
        // A policy of somebody else's may err.
        candidates.get(index).filter(|candidate| ask.fits(candidate))?;
        let now = Instant::now();
        let (life, number) = state.change_at(&self.config, index, now, |server| {
            let number = server.grant(ask.weight, ask.tokens, now, &self.config);
            (Arc::clone(&server.life), number)
        });
        Some(Permit {
            shared: Arc::clone(self),
            life,
            weight: ask.weight,
            number,
            tokens: ask.tokens,
            granted_at: now,
            outcome: Outcome::Cancelled,
        })
    }

    /// What is left of the fleet's own bound.
    pub(super) fn room(&self, state: &State) -> u32 {
        self.config.capacity_total.unwrap_or(u32::MAX).saturating_sub(state.in_use)
    }
}
