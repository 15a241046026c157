//! A balancer's state: its servers, the waiting requests, and the mean length and speed of recent samples. No
//! function in this module waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use super::grant::Grant;
use super::server::Server;
use super::waiting::{Waiter, WaitingList};
use crate::policy::{Ask, Candidates, RoutingPolicy};
use crate::server::{AdminState, ServerId};
use crate::snapshot::FleetSnapshot;
use crate::{BalancerConfig, BalancerError, Priority};

/// Factor on the earlier measurements of the fleet at each new measurement.
const MEAN_MEMORY: f64 = 0.99;
/// Maximum number of names of departed servers that are remembered.
const DEPARTED_MAX: usize = 1 << 12;
/// The number of samples of a group that one server should get in a row, for each token that they share, multiplied by
/// the mean number of generated tokens of a sample. Samples of like length fill and empty one server's cache at the same
/// time. The longer the prompt that they share, the more of them are worth it.
const IN_A_ROW: f64 = 56.0;
/// The least number of shared tokens, relative to the mean number of generated tokens of a sample, for which a sample
/// does not leave the server of its group. A whole group of usual size is then kept together.
const SHARED_MIN: f64 = 0.25;
/// Shortest time between two updates of the penalties, however many permits are asked for.
const SETTLE_GRAIN: Duration = Duration::from_millis(10);

/// Means over recent samples of all servers.
#[derive(Debug, Default)]
pub(super) struct Means {
    samples: f64,
    tokens: f64,
    seconds: f64,
}

impl Means {
    pub(super) fn record(&mut self, samples: u32, tokens: u64, took: Duration) {
        self.samples = self.samples * MEAN_MEMORY + f64::from(samples);
        self.tokens = self.tokens * MEAN_MEMORY + tokens as f64;
        self.seconds = self.seconds * MEAN_MEMORY + took.as_secs_f64() * f64::from(samples);
    }

    /// Mean number of tokens of a sample.
    pub(super) fn tokens(&self) -> f64 {
        if self.samples > 0.0 { self.tokens / self.samples } else { 1.0 }
    }

    /// Mean number of tokens per second of a sample.
    pub(super) fn speed(&self) -> f64 {
        if self.seconds > 0.0 && self.tokens > 0.0 { self.tokens / self.seconds } else { 1.0 }
    }
}

/// Which notifications a change of the state calls for.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// A server has changed its state or its number of places, joined, left or finished its last request.
    pub(super) of_fleet: bool,
    /// The time at which a server opens has changed.
    pub(super) of_openings: bool,
}

#[derive(Debug)]
pub(super) struct State {
    /// The servers in order of their ids.
    pub(super) servers: Vec<Server>,
    /// The servers as policies see them, in the same order.
    pub(super) candidates: Candidates,
    /// Servers whose candidates change as time passes: they have a penalty, or open at a later time.
    unsettled: Vec<ServerId>,
    /// No candidate has to be updated before this time.
    settles_at: Instant,
    pub(super) next_server: u32,
    /// Places that permits hold, over all servers.
    pub(super) in_use: u32,
    pub(super) waiters: WaitingList,
    /// Number of waiting requests that the gauge shows.
    pub(super) waiting_shown: usize,
    pub(super) policy: Box<dyn RoutingPolicy>,
    pub(super) rng: ChaCha8Rng,
    pub(super) means: Means,
    /// Maximum capacity of a server if capacities are found by trying; 0 if they are fixed.
    pub(super) capacity_ceiling: u32,
    /// The weight version that a server needs before permits are granted on it. This also holds for servers
    /// that join.
    pub(super) weights_required: Option<u64>,
    pub(super) changes: Changes,
    /// Names of servers that have left the fleet and have not rejoined.
    departed: BTreeSet<Arc<str>>,
    pub(super) closed: bool,
}

impl State {
    pub(super) fn new(policy: Box<dyn RoutingPolicy>, rng: ChaCha8Rng) -> Self {
        Self {
            servers: Vec::new(),
            candidates: Candidates::default(),
            unsettled: Vec::new(),
            settles_at: Instant::now(),
            next_server: 0,
            in_use: 0,
            waiters: WaitingList::new(policy.keeps_groups()),
            waiting_shown: 0,
            policy,
            rng,
            means: Means::default(),
            capacity_ceiling: 0,
            weights_required: None,
            changes: Changes::default(),
            departed: BTreeSet::new(),
            closed: false,
        }
    }

    pub(super) fn insert(&mut self, server: Server) {
        self.departed.remove(server.name());
        self.candidates.push(server.candidate(0.0, self.means.speed(), self.means.tokens()));
        self.servers.push(server);
        self.changes.of_fleet = true;
    }

    pub(super) fn take_out(&mut self, index: usize) -> Server {
        let server = self.servers.remove(index);
        self.candidates.remove(index);
        self.in_use -= server.in_use;
        self.waiters.forget(server.id);
        if self.departed.len() < DEPARTED_MAX {
            self.departed.insert(Arc::clone(server.name()));
        }
        self.changes.of_fleet = true;
        server
    }

    pub(super) fn departed(&self) -> &BTreeSet<Arc<str>> {
        &self.departed
    }

    pub(super) fn index(&self, id: ServerId) -> Option<usize> {
        self.servers.binary_search_by_key(&id, |server| server.id).ok()
    }

    /// Changes a server, and then updates its candidate, which policies see. Every change of a server goes
    /// through this function.
    pub(super) fn change<T>(
        &mut self,
        config: &BalancerConfig,
        id: ServerId,
        change: impl FnOnce(&mut Server) -> T,
    ) -> Result<T, BalancerError> {
        let index = self.index(id).ok_or_else(|| unknown(id))?;
        Ok(self.change_at(config, index, Instant::now(), change))
    }

    pub(super) fn change_at<T>(
        &mut self,
        config: &BalancerConfig,
        index: usize,
        now: Instant,
        change: impl FnOnce(&mut Server) -> T,
    ) -> T {
        let visible = |server: &Server| {
            let is_empty = server.admin != AdminState::Active && server.in_use == 0;
            (server.state(), server.admin, server.capacity, is_empty)
        };
        let server = &mut self.servers[index];
        let (in_use, before) = (server.in_use, visible(server));
        let result = change(server);
        self.in_use = self.in_use - in_use + server.in_use;
        self.changes.of_fleet |= before != visible(server);
        self.refresh(config, index, now);
        result
    }

    /// Updates a server's candidate, as of `now`.
    pub(super) fn refresh(&mut self, config: &BalancerConfig, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let opens_at = server.breaker.settle(now);
        let penalty = server.breaker.penalty(now, config.penalty_half_life());
        self.changes.of_openings |= server.opens_at != opens_at;
        server.opens_at = opens_at;
        let candidate = server.candidate(penalty, self.means.speed(), self.means.tokens());
        self.candidates.update(index, candidate);
        if opens_at.is_none() && penalty == 0.0 {
            return;
        }
        let next = now + SETTLE_GRAIN;
        self.settles_at = self.settles_at.min(opens_at.unwrap_or(next).min(next));
        if !std::mem::replace(&mut server.is_unsettled, true) {
            self.unsettled.push(server.id);
        }
    }

    /// Updates the candidates that change as time passes.
    pub(super) fn settle(&mut self, config: &BalancerConfig) {
        if self.unsettled.is_empty() {
            return;
        }
        let now = Instant::now();
        if now < self.settles_at {
            return;
        }
        self.settles_at = now + SETTLE_GRAIN;
        for id in std::mem::take(&mut self.unsettled) {
            if let Some(index) = self.index(id) {
                self.servers[index].is_unsettled = false;
                self.refresh(config, index, now);
            }
        }
    }

    /// The time at which the next closed server opens.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        let unsettled = self.unsettled.iter().filter_map(|id| self.index(*id));
        unsettled.filter_map(|index| self.servers[index].opens_at).min()
    }

    /// The weight of the heaviest request that a server of the fleet could hold. Dead servers count, since
    /// they may return.
    pub(super) fn heaviest(&self, config: &BalancerConfig) -> u32 {
        let places = self.servers.iter().map(|server| server.capacity.max(self.capacity_ceiling));
        places.max().unwrap_or(0).min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// Capacity of the largest live server, or of the largest server if none is live.
    pub(super) fn largest_capacity(&self, config: &BalancerConfig) -> u32 {
        let living = self.servers.iter().filter(|server| server.is_live()).map(|server| server.capacity);
        let largest = living.max().or_else(|| self.servers.iter().map(|server| server.capacity).max());
        largest.unwrap_or(0).min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// Number of samples of a group that one server should get in a row if they share this number of tokens; all of them
    /// if the number is not known. 0 if it does not pay, or as long as the length of a sample is not known.
    pub(super) fn in_a_row(&self, shared_tokens: Option<u32>) -> u32 {
        let Some(shared) = shared_tokens else { return u32::MAX };
        if self.means.samples <= 0.0 {
            return 0;
        }
        let samples = (IN_A_ROW * f64::from(shared) / self.means.tokens()).round();
        // The conversion saturates. One sample shares its prompt with no other.
        if samples < 2.0 { 0 } else { samples as u32 }
    }

    /// The least number of shared tokens for which a sample stays on its group's server; `None` until the length of a
    /// sample is known.
    fn kept_tokens_min(&self) -> Option<f64> {
        (self.means.samples > 0.0).then(|| SHARED_MIN * self.means.tokens())
    }

    /// Expected tokens of a request of `weight` samples, each of which takes `expected` tokens (0: unknown).
    pub(super) fn tokens_of(&self, weight: u32, expected: u32) -> u32 {
        let each = if expected > 0 { f64::from(expected) } else { self.means.tokens() };
        self.chargeable(weight, (each * f64::from(weight)) as u32)
    }

    /// The number of tokens that is charged for a request: `tokens`, but at most the largest token limit of
    /// all servers that have `weight` places.
    pub(super) fn chargeable(&self, weight: u32, tokens: u32) -> u32 {
        let has_places = |server: &&Server| server.capacity.max(self.capacity_ceiling) >= weight;
        if self.servers.iter().filter(has_places).any(|server| server.tokens_max() >= tokens) {
            return tokens;
        }
        self.servers.iter().filter(has_places).map(Server::tokens_max).max().unwrap_or(tokens)
    }

    /// Whether a request's exclusions are respected. They are ignored if no other server could be asked.
    pub(super) fn honours(&self, exclude: &[ServerId], weight: u32) -> bool {
        let other = |server: &Server| {
            let may_be_asked = server.is_live() && !server.breaker.is_cooling();
            may_be_asked && server.capacity >= weight && !exclude.contains(&server.id)
        };
        exclude.is_empty() || self.servers.iter().any(other)
    }

    /// Fails the waiting requests that no server could ever hold. Called after the fleet has become smaller.
    pub(super) fn dismiss_hopeless(&mut self, config: &BalancerConfig) {
        let largest = self.heaviest(config);
        if self.servers.is_empty() || self.waiters.is_empty() {
            return;
        }
        let hopeless = self.waiters.iter().filter(|(_, waiter)| waiter.weight > largest).map(|(key, _)| *key);
        for key in hopeless.collect::<Vec<_>>() {
            if let Some(Waiter { weight, answer, .. }) = self.waiters.remove(&key) {
                let sent = answer.send(Err(BalancerError::TooHeavy { weight, largest }));
                debug_assert!(sent.is_ok(), "a request leaves the list before it stops listening");
            }
        }
        let mut waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters.values_mut() {
            waiter.tokens = self.chargeable(waiter.weight, waiter.tokens);
        }
        self.waiters = waiters;
    }

    /// Grants places to a request if there is room for it.
    pub(super) fn try_grant(&mut self, config: &BalancerConfig, ask: &Ask<'_>) -> Option<Grant> {
        if ask.weight > self.room(config) {
            return None;
        }
        let Self { policy, candidates, rng, .. } = self;
        let index = policy.pick(ask, candidates, rng)?;
        self.grant_at(config, index, ask)
    }

    /// Grants places on the server of this index if there is room for the request.
    pub(super) fn grant_at(&mut self, config: &BalancerConfig, index: usize, ask: &Ask<'_>) -> Option<Grant> {
        // The policy may be the caller's own and return a wrong index.
        let candidate = self.candidates.get(index).filter(|candidate| ask.fits(candidate))?;
        if ask.weight > self.room(config) {
            return None;
        }
        self.waiters.settle(ask, candidate.server);
        let now = Instant::now();
        let (life, number) = self.change_at(config, index, now, |server| {
            let number = server.grant(ask.weight, ask.tokens, now, config);
            (Arc::clone(&server.life), number)
        });
        Some(Grant { life, weight: ask.weight, number, tokens: ask.tokens, granted_at: now })
    }

    /// Number of further samples that the bound on the whole fleet allows.
    pub(super) fn room(&self, config: &BalancerConfig) -> u32 {
        config.capacity_total.unwrap_or(u32::MAX).saturating_sub(self.in_use)
    }

    /// Whether a further request of this priority would wait, for a permit or on every open server.
    pub(super) fn is_full(&self, priority: Priority) -> bool {
        let mut open = self.servers.iter().filter(|server| server.is_open());
        self.waiters.next(None).is_some_and(|(first, _)| first <= priority)
            || open.all(Server::is_engine_full)
    }

    pub(super) fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            servers: self.servers.iter().map(Server::snapshot).collect(),
            waiting: self.waiters.len(),
            weights_required: self.weights_required,
            kept_tokens_min: self.kept_tokens_min(),
        }
    }
}

pub(super) fn unknown(id: ServerId) -> BalancerError {
    BalancerError::UnknownServer { server: id.0.to_string() }
}
