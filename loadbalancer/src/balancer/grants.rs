//! Granting and taking back, under the lock.

use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::State;
use crate::policy::Ask;
use crate::{BalancerConfig, Outcome, Permit, ServerId, invariants};

/// What the clones of a balancer and its permits share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) config: BalancerConfig,
    pub(super) state: Mutex<State>,
    /// A server has fewer permits out, or another state.
    pub(super) changed: Notify,
    /// A server asked to be left alone for a while.
    pub(super) closings: Notify,
    pub(super) waiting: Gauge,
}

impl Shared {
    pub(crate) fn give_back(self: &Arc<Self>, permit: &Permit) {
        let Permit { life, weight, tokens, granted_at, outcome, .. } = permit;
        let now = Instant::now();
        let took = now.saturating_duration_since(*granted_at);
        let closes = matches!(outcome, Outcome::Backpressure { retry_after: Some(_) });
        self.update(|state| {
            if let Outcome::Success { tokens } = outcome {
                state.means.record(*weight, *tokens, took);
            }
            // It may have left.
            let _ = state.change(&self.config, life.server, |server| {
                server.waste(outcome, *weight, took);
                if server.epoch() != life.epoch {
                    return;
                }
                server.give_back(*weight, *tokens);
                if let Some(reason) = server.record(outcome, *weight, took, now, &self.config) {
                    tracing::warn!(server = %server.name(), %reason, "server is dead");
                    server.die(reason);
                }
            });
        });
        if closes {
            self.closings.notify_waiters();
        }
    }

    /// Changes the state and serves who waits. Permits that nobody takes are dropped outside the lock.
    pub(super) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, untaken) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            let untaken = if state.waiters.is_empty() { Vec::new() } else { self.serve(&mut state) };
            debug_assert_eq!(invariants::within_capacity(&state.snapshot()), Ok(()));
            (result, untaken)
        };
        drop(untaken);
        self.changed.notify_waiters();
        result
    }

    /// Grants what can be granted, in order. A waiter that fits nowhere keeps the servers that it could use: whoever
    /// comes after it may only have the others.
    pub(super) fn serve(self: &Arc<Self>, state: &mut State) -> Vec<Permit> {
        let mut untaken = Vec::new();
        let mut kept: Vec<ServerId> = Vec::new();
        let mut cursor = None;
        loop {
            let next = match cursor {
                None => state.waiters.iter().next(),
                Some(after) => {
                    let later = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
                    state.waiters.range(later).next()
                }
            };
            let Some((key, waiter)) = next.map(|(key, waiter)| (*key, waiter)) else { break };
            cursor = Some(key);
            let (weight, tokens, group) = (waiter.weight, waiter.tokens, waiter.group);
            let exclude = state.honoured(&waiter.exclude, weight).to_vec();
            let avoid: Vec<ServerId> = exclude.iter().chain(&kept).copied().collect();
            match self.try_grant(state, &Ask { weight, tokens, group, avoid: &avoid }) {
                Some(permit) => {
                    let Some(waiter) = state.waiters.remove(&key) else { continue };
                    if let Err(permit) = waiter.grant.send(permit) {
                        untaken.push(permit);
                    }
                }
                None => {
                    let could_use = state.servers.iter().filter(|server| !exclude.contains(&server.id));
                    kept.extend(could_use.map(|server| server.id));
                    if state.servers.iter().all(|server| kept.contains(&server.id)) {
                        break;
                    }
                }
            }
        }
        self.waiting.set(state.waiters.len() as f64);
        untaken
    }

    pub(super) fn try_grant(self: &Arc<Self>, state: &mut State, ask: &Ask<'_>) -> Option<Permit> {
        let room = self.config.capacity_total.unwrap_or(u32::MAX) - state.in_use;
        if ask.weight > room {
            return None;
        }
        state.settle(&self.config);
        let State { policy, candidates, rng, .. } = state;
        let index = policy.pick(ask, candidates, rng)?;
        // A policy of somebody else's may err.
        let id = candidates.get(index).filter(|candidate| ask.fits(candidate))?.server;
        let life = state.change(&self.config, id, |server| {
            server.grant(ask.weight, ask.tokens);
            Arc::clone(&server.life)
        });
        Some(Permit {
            shared: Arc::clone(self),
            life: life.ok()?,
            weight: ask.weight,
            tokens: ask.tokens,
            granted_at: Instant::now(),
            outcome: Outcome::Cancelled,
        })
    }
}
