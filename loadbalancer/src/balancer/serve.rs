//! A pass over the waiting requests. It is made whenever there may be room, and serves the requests in order.
//!
//! A request that fits nowhere reserves the server that is nearest to having room for it. All other servers
//! are free for the requests behind it, so a heavy request empties one server and not the fleet. A reserved
//! server takes no other request, so the waiting request gets its places in the end.
//!
//! If the policy keeps groups together, a server with room first serves the groups that run on it, and then begins
//! groups that run nowhere yet. Such a request may be served before the first one, but only within a bound.
//!
//! # Invariants
//! - No request takes a place from the first waiting request that could be served, except requests within the bound of
//!   [`next_at`](super::waiting::WaitingList::next_at), for the sake of their groups.
//! - Apart from the permits that it grants, a pass does bounded work. It searches the whole fleet a bounded
//!   number of times, and considers a bounded number of requests that fit nowhere.

use tokio::time::Instant;

use super::grant::Grant;
use super::state::State;
use super::waiting::{Waiter, WaiterKey};
use crate::BalancerConfig;
use crate::policy::Ask;
use crate::server::{AdminState, ServerId};

/// Maximum number of servers that a pass reserves. Each of them is reserved for a different request that fits
/// nowhere.
const RESERVED_MAX: usize = 8;
/// Maximum number of searches of the whole fleet that a pass makes for requests that fit nowhere.
const LOOKS_MAX: usize = 16;
/// Maximum number of requests that a pass skips because they fit nowhere. A request behind them is considered
/// when one of them has been served.
const PASSED_OVER_MAX: usize = 256;

/// A demand that fitted nowhere in this pass. A request that demands at least as much does not fit either.
struct Misfit {
    weight: u32,
    tokens: u32,
    exclude: Vec<ServerId>,
}

impl Misfit {
    fn is_at_most(&self, weight: u32, tokens: u32, exclude: &[ServerId]) -> bool {
        let excludes_no_more = || self.exclude.iter().all(|id| exclude.contains(id));
        self.weight <= weight && self.tokens <= tokens && excludes_no_more()
    }
}

/// What can be done for a request that fits nowhere.
enum Prospect {
    /// The server of this index is nearest to having room.
    Nearest(usize),
    /// The server of this index is nearest to having room, once its capacity is raised.
    Raised(usize),
    /// The request has to wait for a server that takes nothing at the moment, or that is reserved for another
    /// request.
    Later,
    /// The fleet is full, so no later request can be served either.
    FleetIsFull,
}

/// Why a request got no places.
enum Unplaced {
    /// There is no room for this request. Requests behind it may find room.
    NoRoom,
    /// The pass ends: there is no room for this request or any request behind it, or the pass has searched
    /// the fleet as often as it may.
    EndOfPass,
}

/// One pass over the waiting requests, under the lock.
pub(super) struct Pass<'a> {
    config: &'a BalancerConfig,
    state: &'a mut State,
    reserved: Vec<usize>,
    misfits: Vec<Misfit>,
    looks: usize,
    passed_over: usize,
}

impl<'a> Pass<'a> {
    pub(super) fn begin(config: &'a BalancerConfig, state: &'a mut State) -> Self {
        state.settle(config);
        Self { config, state, reserved: Vec::new(), misfits: Vec::new(), looks: 0, passed_over: 0 }
    }

    pub(super) fn run(mut self) {
        if self.state.policy.keeps_groups() {
            self.serve_at_home();
        }
        let mut next = self.state.waiters.next(None);
        while let Some(key) = next {
            if !self.serve(key) {
                break;
            }
            next = self.state.waiters.next(Some(key));
        }
        let now = Instant::now();
        for index in self.reserved {
            self.state.refresh(self.config, index, now);
        }
    }

    /// Fills the free places of each server with requests of its own groups, and of groups without a server.
    fn serve_at_home(&mut self) {
        let servers = self.state.servers.len();
        for index in 0..servers {
            while let Some(candidate) = self.state.candidates.get(index).filter(|server| server.free > 0) {
                let Some(key) = self.state.waiters.next_at(candidate.server, servers) else { break };
                let at_home = |pass: &mut Self, ask: &Ask<'_>| {
                    pass.state.grant_at(pass.config, index, ask).ok_or(Unplaced::NoRoom)
                };
                if self.answer(key, at_home).is_err() {
                    break;
                }
            }
        }
    }

    /// Serves one waiting request if there is room. Returns whether the pass continues.
    fn serve(&mut self, key: WaiterKey) -> bool {
        let Err(unplaced) = self.answer(key, Self::place) else { return true };
        self.passed_over += 1;
        matches!(unplaced, Unplaced::NoRoom) && self.passed_over < PASSED_OVER_MAX
    }

    /// Looks for places for a waiting request. If there are any, the request gets them and leaves the list.
    fn answer(
        &mut self,
        key: WaiterKey,
        place: impl FnOnce(&mut Self, &Ask<'_>) -> Result<Grant, Unplaced>,
    ) -> Result<(), Unplaced> {
        let waiter = self.state.waiters.get_mut(&key).ok_or(Unplaced::NoRoom)?;
        let Waiter { weight, tokens, group, in_a_row, .. } = *waiter;
        // The list of excluded servers is put back below. It is taken out because the search for a server borrows the
        // whole state.
        let exclude = std::mem::take(&mut waiter.exclude);
        let avoid: &[ServerId] = if self.state.honours(&exclude, weight) { &exclude } else { &[] };
        let home = self.state.waiters.server_of(group);
        let placed = place(self, &Ask { weight, tokens, group, home, in_a_row, avoid });
        if let (Err(_), Some(waiter)) = (&placed, self.state.waiters.get_mut(&key)) {
            waiter.exclude = exclude;
        }
        let grant = placed?;
        if let Some(waiter) = self.state.waiters.remove(&key) {
            let sent = waiter.answer.send(Ok(grant));
            debug_assert!(sent.is_ok(), "a request leaves the list before it stops listening");
        }
        Ok(())
    }

    fn place(&mut self, ask: &Ask<'_>) -> Result<Grant, Unplaced> {
        let Ask { weight, tokens, avoid, .. } = *ask;
        let is_misfit = self.misfits.iter().any(|misfit| misfit.is_at_most(weight, tokens, avoid));
        if is_misfit && self.looks >= RESERVED_MAX {
            return Err(Unplaced::NoRoom);
        }
        if !is_misfit {
            if self.looks >= LOOKS_MAX {
                return Err(Unplaced::EndOfPass);
            }
            if let Some(grant) = self.state.try_grant(self.config, ask) {
                return Ok(grant);
            }
            self.misfits.push(Misfit { weight, tokens, exclude: avoid.to_vec() });
        }
        self.looks += 1;
        match self.prospect(ask) {
            // The bound on the whole fleet is reached. Requests end one by one, so lighter requests would
            // take every free place before this request could have enough places.
            Prospect::Nearest(_) | Prospect::Raised(_) if weight > self.state.room(self.config) => {
                return Err(Unplaced::EndOfPass);
            }
            Prospect::Nearest(index) => self.reserve(index),
            Prospect::Raised(index) => {
                let now = Instant::now();
                self.state.change_at(self.config, index, now, |server| server.set_capacity(weight));
                if let Some(grant) = self.state.try_grant(self.config, ask) {
                    return Ok(grant);
                }
                self.reserve(index);
            }
            Prospect::Later => {}
            Prospect::FleetIsFull => return Err(Unplaced::EndOfPass),
        }
        Err(Unplaced::NoRoom)
    }

    /// Hides a server's room from later requests.
    fn reserve(&mut self, index: usize) {
        if self.reserved.len() < RESERVED_MAX {
            self.state.candidates.hide_room(index);
            self.reserved.push(index);
        }
    }

    fn prospect(&self, ask: &Ask<'_>) -> Prospect {
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
            // A server that an operator has paused does not count, because the server may stay paused.
            has_holder |= holds && server.admin == AdminState::Active;
            if !server.is_open() || self.reserved.contains(&index) {
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
            (None, Some((_, index))) if !has_holder => Prospect::Raised(index),
            _ if !has_room => Prospect::FleetIsFull,
            (Some((_, index)), _) => Prospect::Nearest(index),
            _ => Prospect::Later,
        }
    }
}
