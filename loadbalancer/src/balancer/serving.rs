//! A pass over those who wait, whenever there may be room: in order, and as many as fit.
//!
//! Who fits nowhere keeps one server: the one that is nearest to having room. The others are for whoever comes behind, so
//! that a heavy request empties one server and not the fleet; and since what a kept server has only ends, its turn comes.
//!
//! # Invariants
//! - The first who waits and could be served loses no place to anybody behind.
//! - A pass looks at the whole fleet a bounded number of times beyond what it grants, and at a bounded number of those who
//!   fit nowhere.

use std::sync::Arc;

use tokio::time::Instant;

use super::grants::{Answer, Shared};
use super::state::{State, WaiterKey};
use crate::policy::Ask;
use crate::server::AdminState;
use crate::{Permit, ServerId};

/// Servers that are kept at a time, each for another of those who fit nowhere.
const KEPT_MAX: usize = 8;
/// Looks at the whole fleet for those who fit nowhere.
const LOOKS_MAX: usize = 16;
/// Those who fit nowhere and are passed over. Who stands behind them has its turn when one of them has.
const PASSED_OVER_MAX: usize = 256;

/// What was found to fit nowhere in this pass: whatever asks for as much does not fit either.
struct Misfit {
    weight: u32,
    tokens: u32,
    exclude: Vec<ServerId>,
}

impl Misfit {
    fn is_less_than(&self, weight: u32, tokens: u32, exclude: &[ServerId]) -> bool {
        let excludes_no_more = || self.exclude.iter().all(|id| exclude.contains(id));
        self.weight <= weight && self.tokens <= tokens && excludes_no_more()
    }
}

/// What could be done for somebody who fits nowhere.
enum Hope {
    /// This server is nearest to having room.
    Nearest(usize),
    /// This one is, once it has more places than now.
    Raised(usize),
    /// It has to wait for a server that takes nothing at the moment, or that is kept for somebody else.
    Later,
    /// Nobody behind can have anything either.
    NobodyHasRoom,
}

/// See the module's documentation.
pub(super) struct Pass<'a> {
    shared: &'a Arc<Shared>,
    state: &'a mut State,
    kept: Vec<usize>,
    misfits: Vec<Misfit>,
    looks: usize,
    passed_over: usize,
    untaken: Vec<Answer>,
}

impl<'a> Pass<'a> {
    pub(super) fn begin(shared: &'a Arc<Shared>, state: &'a mut State) -> Self {
        state.settle(&shared.config);
        let (kept, misfits, untaken) = (Vec::new(), Vec::new(), Vec::new());
        Self { shared, state, kept, misfits, looks: 0, passed_over: 0, untaken }
    }

    /// Permits that nobody takes any more are the caller's to drop, outside the lock.
    pub(super) fn run(mut self) -> Vec<Answer> {
        let mut next = self.state.waiters.keys().next().copied();
        while let Some(key) = next {
            if !self.serve(key) {
                break;
            }
            let later = (std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded);
            next = self.state.waiters.range(later).next().map(|(key, _)| *key);
        }
        let now = Instant::now();
        for index in self.kept {
            self.state.look_at(&self.shared.config, index, now);
        }
        self.untaken
    }

    /// Says whether those behind may have something.
    fn serve(&mut self, key: WaiterKey) -> bool {
        let Some(waiter) = self.state.waiters.get_mut(&key) else { return true };
        let (weight, tokens, group) = (waiter.weight, waiter.tokens, waiter.group);
        // Given back below: looking for a server needs the whole state.
        let exclude = std::mem::take(&mut waiter.exclude);
        let avoid: &[ServerId] = if self.state.honours(&exclude, weight) { &exclude } else { &[] };
        let ask = Ask { weight, tokens, group, avoid };
        let (granted, goes_on) = self.grant(&ask);
        let Some(permit) = granted else {
            if let Some(waiter) = self.state.waiters.get_mut(&key) {
                waiter.exclude = exclude;
            }
            self.passed_over += 1;
            return goes_on && self.passed_over < PASSED_OVER_MAX;
        };
        if let Some(waiter) = self.state.waiters.remove(&key)
            && let Err(untaken) = waiter.grant.send(Ok(permit))
        {
            self.untaken.push(untaken);
        }
        true
    }

    /// A permit, or what is to be done without; and whether those behind may have something.
    fn grant(&mut self, ask: &Ask<'_>) -> (Option<Permit>, bool) {
        let Ask { weight, tokens, avoid, .. } = *ask;
        let is_misfit = self.misfits.iter().any(|misfit| misfit.is_less_than(weight, tokens, avoid));
        if is_misfit && self.looks >= KEPT_MAX {
            return (None, true);
        }
        if !is_misfit {
            if self.looks >= LOOKS_MAX {
                return (None, false);
            }
            if let Some(permit) = self.shared.try_grant(self.state, ask) {
                return (Some(permit), true);
            }
            self.misfits.push(Misfit { weight, tokens, exclude: avoid.to_vec() });
        }
        self.looks += 1;
        match self.hope(ask) {
            // Others' requests end one by one: who is lighter would have every place of the fleet's before it.
            Hope::Nearest(_) | Hope::Raised(_) if weight > self.shared.room(self.state) => {
                return (None, false);
            }
            Hope::Nearest(index) => self.keep(index),
            Hope::Raised(index) => {
                let now = Instant::now();
                self.state.change_at(&self.shared.config, index, now, |server| server.set_capacity(weight));
                if let Some(permit) = self.shared.try_grant(self.state, ask) {
                    return (Some(permit), true);
                }
                self.keep(index);
            }
            Hope::Later => {}
            Hope::NobodyHasRoom => return (None, false),
        }
        (None, true)
    }

    /// Whoever comes behind sees no room there.
    fn keep(&mut self, index: usize) {
        if self.kept.len() < KEPT_MAX {
            self.state.candidates[index].free = 0;
            self.kept.push(index);
        }
    }

    fn hope(&self, ask: &Ask<'_>) -> Hope {
        let Ask { weight, tokens, avoid, .. } = *ask;
        let ceiling = self.state.capacity_ceiling;
        let mut nearest: Option<(u32, usize)> = None;
        let mut roomiest: Option<(u32, usize)> = None;
        let (mut has_room, mut has_holder) = (false, false);
        for (index, candidate) in self.state.candidates.iter().enumerate() {
            has_room |= candidate.free > 0;
            let server = &self.state.servers[index];
            if !candidate.is_live || avoid.contains(&server.id) {
                continue;
            }
            let holds = server.could_hold(weight, tokens);
            // One that its operator has paused may stay so.
            has_holder |= holds && server.admin == AdminState::Active;
            if !server.is_open() || self.kept.contains(&index) {
                continue;
            }
            let better = |best: Option<(u32, usize)>| best.is_none_or(|(free, _)| candidate.free > free);
            if holds && better(nearest) {
                nearest = Some((candidate.free, index));
            }
            let may_hold = ceiling >= weight && server.tokens_max() >= tokens;
            if may_hold && better(roomiest) {
                roomiest = Some((candidate.free, index));
            }
        }
        match (nearest, roomiest) {
            (None, Some((_, index))) if !has_holder => Hope::Raised(index),
            _ if !has_room => Hope::NobodyHasRoom,
            (Some((_, index)), _) => Hope::Nearest(index),
            _ => Hope::Later,
        }
    }
}
