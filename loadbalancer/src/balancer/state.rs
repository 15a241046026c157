//! What a balancer knows: its servers, who waits for them, and what samples took lately. Nothing in here waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::grants::Answer;
use crate::policy::{Candidate, RoutingPolicy};
use crate::server::{AdminState, Server};
use crate::{BalancerConfig, BalancerError, FleetSnapshot, Priority, ServerId};

/// What is left of earlier measurements of the fleet at each new one.
const MEAN_MEMORY: f64 = 0.99;
/// More names of servers that have left are not remembered.
const DEPARTED_MAX: usize = 1 << 12;
/// Penalties are looked at no more often, however many permits are asked for.
const SETTLE_GRAIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) weight: u32,
    pub(super) tokens: u32,
    pub(super) group: Option<u64>,
    pub(super) exclude: Vec<ServerId>,
    pub(super) grant: oneshot::Sender<Answer>,
}

/// In order of their turn.
pub(super) type WaiterKey = (Priority, u64);

/// What samples took lately, over all servers.
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

    /// Tokens of a sample.
    pub(super) fn tokens(&self) -> f64 {
        if self.samples > 0.0 { self.tokens / self.samples } else { 1.0 }
    }

    /// Tokens a second of a sample.
    pub(super) fn speed(&self) -> f64 {
        if self.seconds > 0.0 && self.tokens > 0.0 { self.tokens / self.seconds } else { 1.0 }
    }
}

/// What somebody has to be told of after a change.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The fleet looks different.
    pub(super) of_fleet: bool,
    /// A server opens at another time.
    pub(super) of_openings: bool,
}

#[derive(Debug)]
pub(super) struct State {
    /// In order of their ids.
    pub(super) servers: Vec<Server>,
    /// What policies see of each of them.
    pub(super) candidates: Vec<Candidate>,
    /// Servers that are seen differently as time passes: they have penalties, or are left alone for a while.
    unsettled: Vec<ServerId>,
    /// None of them is, before.
    settles_at: Instant,
    pub(super) next_server: u32,
    /// Permits out of all servers.
    pub(super) in_use: u32,
    pub(super) waiters: BTreeMap<WaiterKey, Waiter>,
    pub(super) next_waiter: u64,
    /// How many wait, as others were last told.
    pub(super) waiting_shown: usize,
    pub(super) policy: Box<dyn RoutingPolicy>,
    pub(super) rng: ChaCha8Rng,
    pub(super) means: Means,
    /// Servers may be given so many places, where somebody finds out how many they should have; 0 where nobody does.
    pub(super) capacity_ceiling: u32,
    /// Weights that servers have to have to take permits, those that join included.
    pub(super) weights_required: Option<u64>,
    pub(super) news: News,
    /// Names of servers that have left and not come back.
    departed: BTreeSet<Arc<str>>,
    pub(super) closed: bool,
}

impl State {
    pub(super) fn new(policy: Box<dyn RoutingPolicy>, rng: ChaCha8Rng) -> Self {
        Self {
            servers: Vec::new(),
            candidates: Vec::new(),
            unsettled: Vec::new(),
            settles_at: Instant::now(),
            next_server: 0,
            in_use: 0,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            waiting_shown: 0,
            policy,
            rng,
            means: Means::default(),
            capacity_ceiling: 0,
            weights_required: None,
            news: News::default(),
            departed: BTreeSet::new(),
            closed: false,
        }
    }

    pub(super) fn insert(&mut self, server: Server) {
        self.departed.remove(server.name());
        self.candidates.push(server.candidate(0.0, self.means.speed(), self.means.tokens()));
        self.servers.push(server);
        self.news.of_fleet = true;
    }

    pub(super) fn take_out(&mut self, index: usize) -> Server {
        let server = self.servers.remove(index);
        self.candidates.remove(index);
        self.in_use -= server.in_use;
        if self.departed.len() < DEPARTED_MAX {
            self.departed.insert(Arc::clone(server.name()));
        }
        self.news.of_fleet = true;
        server
    }

    pub(super) fn departed(&self) -> &BTreeSet<Arc<str>> {
        &self.departed
    }

    pub(super) fn index(&self, id: ServerId) -> Option<usize> {
        self.servers.binary_search_by_key(&id, |server| server.id).ok()
    }

    /// The one way to change a server: what policies see changes with it.
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
        let looks = |server: &Server| {
            let is_empty = server.admin != AdminState::Active && server.in_use == 0;
            (server.state(), server.admin, server.capacity, is_empty)
        };
        let server = &mut self.servers[index];
        let (in_use, before) = (server.in_use, looks(server));
        let result = change(server);
        self.in_use = self.in_use - in_use + server.in_use;
        self.news.of_fleet |= before != looks(server);
        self.look_at(config, index, now);
        result
    }

    pub(super) fn look_at(&mut self, config: &BalancerConfig, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let opens_at = server.breaker.settle(now);
        let penalty = server.breaker.penalty(now, config.penalty_half_life());
        self.news.of_openings |= server.opens_at != opens_at;
        server.opens_at = opens_at;
        self.candidates[index] = server.candidate(penalty, self.means.speed(), self.means.tokens());
        if opens_at.is_none() && penalty == 0.0 {
            return;
        }
        let next = now + SETTLE_GRAIN;
        self.settles_at = self.settles_at.min(opens_at.unwrap_or(next).min(next));
        if !std::mem::replace(&mut server.is_unsettled, true) {
            self.unsettled.push(server.id);
        }
    }

    /// Brings what changes with time up to date.
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
                self.look_at(config, index, now);
            }
        }
    }

    /// When the next server that is left alone may be asked again.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        let unsettled = self.unsettled.iter().filter_map(|id| self.index(*id));
        unsettled.filter_map(|index| self.servers[index].opens_at).min()
    }

    /// The heaviest request that a server of the fleet could have, dead ones included: they may come back.
    pub(super) fn heaviest(&self, config: &BalancerConfig) -> u32 {
        let places = self.servers.iter().map(|server| server.capacity.max(self.capacity_ceiling));
        places.max().unwrap_or(0).min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// The same of those that live, and if none does, of all.
    pub(super) fn largest_capacity(&self, config: &BalancerConfig) -> u32 {
        let living = self.servers.iter().filter(|server| server.is_live()).map(|server| server.capacity);
        let largest = living.max().or_else(|| self.servers.iter().map(|server| server.capacity).max());
        largest.unwrap_or(0).min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// Expected tokens of a request.
    pub(super) fn tokens_of(&self, weight: u32, expected: u32) -> u32 {
        let each = if expected > 0 { f64::from(expected) } else { self.means.tokens() };
        self.chargeable(weight, (each * f64::from(weight)) as u32)
    }

    /// A request that no server could have whole is charged what the largest that has enough places has.
    pub(super) fn chargeable(&self, weight: u32, tokens: u32) -> u32 {
        let has_places = |server: &&Server| server.capacity.max(self.capacity_ceiling) >= weight;
        if self.servers.iter().filter(has_places).any(|server| server.tokens_max() >= tokens) {
            return tokens;
        }
        self.servers.iter().filter(has_places).map(Server::tokens_max).max().unwrap_or(tokens)
    }

    /// Exclusion is a wish: it does not hold when nobody else could be asked.
    pub(super) fn honours(&self, exclude: &[ServerId], weight: u32) -> bool {
        let other = |server: &Server| {
            let may_be_asked = server.is_live() && !server.breaker.is_cooling();
            may_be_asked && server.capacity >= weight && !exclude.contains(&server.id)
        };
        exclude.is_empty() || self.servers.iter().any(other)
    }

    /// After the fleet has become smaller: tells those whom no server could ever serve.
    pub(super) fn dismiss_hopeless(&mut self, config: &BalancerConfig) {
        let largest = self.heaviest(config);
        if self.servers.is_empty() || self.waiters.is_empty() {
            return;
        }
        let hopeless = self.waiters.iter().filter(|(_, waiter)| waiter.weight > largest).map(|(key, _)| *key);
        for key in hopeless.collect::<Vec<_>>() {
            if let Some(Waiter { weight, grant, .. }) = self.waiters.remove(&key) {
                // It may have gone.
                let _ = grant.send(Err(BalancerError::TooHeavy { weight, largest }));
            }
        }
        let mut waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters.values_mut() {
            waiter.tokens = self.chargeable(waiter.weight, waiter.tokens);
        }
        self.waiters = waiters;
    }

    pub(super) fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            servers: self.servers.iter().map(Server::snapshot).collect(),
            waiting: self.waiters.len(),
            weights_required: self.weights_required,
        }
    }
}

pub(super) fn unknown(id: ServerId) -> BalancerError {
    BalancerError::UnknownServer { server: id.0.to_string() }
}
