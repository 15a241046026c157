//! What a balancer knows: its servers, who waits for them, and what samples took lately. Nothing in here waits.

use std::collections::BTreeMap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::policy::{Candidate, RoutingPolicy};
use crate::server::Server;
use crate::{BalancerConfig, BalancerError, FleetSnapshot, Permit, Priority, ServerId};

/// What is left of earlier measurements of the fleet at each new one.
const MEAN_MEMORY: f64 = 0.99;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) weight: u32,
    pub(super) tokens: u32,
    pub(super) group: Option<u64>,
    pub(super) exclude: Vec<ServerId>,
    pub(super) grant: oneshot::Sender<Permit>,
}

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

#[derive(Debug)]
pub(super) struct State {
    /// In order of their ids.
    pub(super) servers: Vec<Server>,
    /// What policies see of each of them.
    pub(super) candidates: Vec<Candidate>,
    /// Whether a server has penalties, or asked to be left alone: what is seen of it changes with time.
    pub(super) unsettled: bool,
    pub(super) next_server: u32,
    /// Permits out of all servers.
    pub(super) in_use: u32,
    pub(super) waiters: BTreeMap<(Priority, u64), Waiter>,
    pub(super) next_waiter: u64,
    pub(super) policy: Box<dyn RoutingPolicy>,
    pub(super) rng: ChaCha8Rng,
    pub(super) means: Means,
    /// Weights that servers have to have to take permits, those that join included.
    pub(super) weights_required: Option<u64>,
    pub(super) closed: bool,
}

impl State {
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
        let server = &mut self.servers[index];
        let before = server.in_use;
        let result = change(server);
        self.in_use = self.in_use - before + server.in_use;
        self.look_at(config, index, Instant::now());
        Ok(result)
    }

    pub(super) fn look_at(&mut self, config: &BalancerConfig, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let penalty = server.penalty(now, config.penalty_half_life());
        self.unsettled |= server.opens_at(now).is_some() || penalty > 0.0;
        self.candidates[index] = server.candidate(penalty, self.means.speed(), self.means.tokens());
    }

    /// Brings what changes with time up to date.
    pub(super) fn settle(&mut self, config: &BalancerConfig) {
        if std::mem::take(&mut self.unsettled) {
            let now = Instant::now();
            (0..self.servers.len()).for_each(|index| self.look_at(config, index, now));
        }
    }

    /// When the next server that asked to be left alone may be asked again.
    pub(super) fn next_opening(&mut self) -> Option<Instant> {
        if !self.unsettled {
            return None;
        }
        let now = Instant::now();
        self.servers.iter_mut().filter_map(|server| server.opens_at(now)).min()
    }

    pub(super) fn largest_capacity(&self, config: &BalancerConfig) -> u32 {
        let largest = self.servers.iter().map(|server| server.capacity).max().unwrap_or(0);
        largest.min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// Expected tokens of a request; one that no server could have whole is charged what the largest has.
    pub(super) fn tokens_of(&self, weight: u32, expected: u32) -> u32 {
        let each = if expected > 0 { f64::from(expected) } else { self.means.tokens() };
        let tokens = (each * f64::from(weight)) as u32;
        if self.servers.iter().any(|server| server.tokens_max() >= tokens) {
            return tokens;
        }
        self.servers.iter().map(Server::tokens_max).max().unwrap_or(tokens)
    }

    /// Exclusion is a wish: it does not hold when nobody else is alive.
    pub(super) fn honoured<'a>(&self, exclude: &'a [ServerId], weight: u32) -> &'a [ServerId] {
        let other =
            |server: &Server| server.is_live() && server.capacity >= weight && !exclude.contains(&server.id);
        if exclude.is_empty() || self.servers.iter().any(other) { exclude } else { &[] }
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
