//! One server as the balancer sees it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::breaker::{Breaker, Health};
use crate::gate::{Gate, Hold};
use crate::metered::ServerMetrics;
use crate::permit::Life;
use crate::policy::Candidate;
use crate::snapshot::Outcomes;
use crate::speed::Speed;
use crate::{BalancerConfig, EngineLoad, Outcome, ServerSnapshot, ServerSpec};

/// Names a server for as long as the balancer lives; never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ServerId(pub u32);

/// A life of a server: raised when it dies, so that what is left of the old one cannot touch the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Epoch(pub u64);

/// What a server is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// Takes permits.
    Active,
    /// Finishes what it has and takes no more.
    Draining,
    /// Paused by its owner (a weight update, say): takes no more until it is resumed, and cannot stall.
    Paused,
    /// Suspect after failures, or back from the dead: takes one request at a time, after a while, until one succeeds. What
    /// it has runs on.
    Probing,
    /// Takes nothing; its permits are revoked.
    Dead,
}

impl ServerState {
    /// Whether requests may be sent to it, now or when it is resumed.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Active | Self::Probing | Self::Paused)
    }

    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Paused => "paused",
            Self::Probing => "probing",
            Self::Dead => "dead",
        }
    }
}

/// What its operator wants of a server, whatever becomes of it: it outlives the server's deaths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminState {
    /// It takes what it can.
    #[default]
    Active,
    /// It finishes what it has and takes no more.
    Draining,
    /// It takes no more until it is resumed.
    Paused,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) life: Arc<Life>,
    pub(crate) capacity: u32,
    capacity_tokens: Option<u32>,
    pub(crate) admin: AdminState,
    pub(crate) breaker: Breaker,
    pub(crate) in_use: u32,
    /// Permits out above the capacity, since that was lowered; only ever returned.
    overhang: u32,
    /// Expected tokens of the permits out.
    tokens: u64,
    /// Samples that others had there when it was looked at.
    foreign: u32,
    granted_total: u64,
    outcomes: Outcomes,
    gate: Gate,
    speed: Speed,
    /// When something else than a permit changes what it takes, as of the last look.
    pub(crate) opens_at: Option<Instant>,
    /// Whether it is on the list of those that change with time.
    pub(crate) is_unsettled: bool,
    metrics: ServerMetrics,
}

impl Server {
    /// With `weights_required` it takes no permits until it has them.
    pub(crate) fn new(id: ServerId, spec: ServerSpec, weights_required: Option<u64>) -> Self {
        let gate = Gate { required: weights_required, ..Gate::default() };
        let life = Life {
            server: id,
            epoch: Epoch(0),
            name: spec.name.into(),
            url: spec.url.map(Into::into),
            end: CancellationToken::new(),
        };
        let metrics = ServerMetrics::of(&life.name);
        metrics.places(0, spec.capacity);
        let server = Self {
            id,
            life: Arc::new(life),
            capacity: spec.capacity,
            capacity_tokens: spec.capacity_tokens,
            admin: AdminState::Active,
            breaker: Breaker::new(Instant::now()),
            in_use: 0,
            overhang: 0,
            tokens: 0,
            foreign: 0,
            granted_total: 0,
            outcomes: Outcomes::default(),
            gate,
            speed: Speed::default(),
            opens_at: None,
            is_unsettled: false,
            metrics,
        };
        server.metrics.state(server.state(), Epoch(0));
        server
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.life.name
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.life.epoch
    }

    /// The most expected tokens that a request may have.
    pub(crate) fn tokens_max(&self) -> u32 {
        self.capacity_tokens.unwrap_or(u32::MAX)
    }

    /// Samples that it takes now.
    fn free(&self) -> u32 {
        if self.is_open() { self.capacity.saturating_sub(self.in_use) } else { 0 }
    }

    /// Whether nothing but its places keeps it from a permit.
    pub(crate) fn is_open(&self) -> bool {
        self.admin == AdminState::Active && self.breaker.is_open() && self.gate.hold().is_none()
    }

    /// Whether waiting for this server makes sense.
    pub(crate) fn is_live(&self) -> bool {
        self.breaker.health() != Health::Dead && self.admin != AdminState::Draining
    }

    /// Whether it could have a request at all, with as many places as it has.
    pub(crate) fn could_hold(&self, weight: u32, tokens: u32) -> bool {
        self.capacity >= weight && self.tokens_max() >= tokens
    }

    /// What policies see; `mean_speed` and `mean_tokens` are the fleet's.
    pub(crate) fn candidate(&self, penalty: f64, mean_speed: f64, mean_tokens: f64) -> Candidate {
        let load = f64::from(self.in_use) / f64::from(self.capacity.max(1)) + penalty;
        let work = self.tokens as f64 + f64::from(self.foreign) * mean_tokens;
        let free_tokens = self.tokens_max().saturating_sub(u32::try_from(self.tokens).unwrap_or(u32::MAX));
        Candidate {
            server: self.id,
            free: self.free(),
            free_tokens,
            in_use: self.in_use,
            load: load as f32,
            work: (work * (1.0 + penalty)) as f32,
            speed: (self.speed.get().unwrap_or(mean_speed) / (1.0 + penalty)) as f32,
            is_live: self.is_live(),
        }
    }

    /// Grants a permit; says its number.
    pub(crate) fn grant(&mut self, weight: u32, tokens: u32, now: Instant, config: &BalancerConfig) -> u64 {
        self.in_use += weight;
        self.tokens += u64::from(tokens);
        self.granted_total += 1;
        self.breaker.granted(self.granted_total, now, config);
        self.metrics.places(self.in_use, self.capacity);
        self.granted_total
    }

    /// Takes back a permit of this life.
    pub(crate) fn give_back(&mut self, weight: u32, tokens: u32) {
        self.in_use -= weight;
        self.tokens -= u64::from(tokens);
        self.overhang = self.overhang.min(self.in_use.saturating_sub(self.capacity));
        self.metrics.places(self.in_use, self.capacity);
    }

    /// Counts what a request of this or an earlier life has decoded for nobody. An engine does not say how far a request
    /// came that is cancelled: its age and the server's measured speed do.
    pub(crate) fn waste(&mut self, outcome: &Outcome, weight: u32, took: Duration) {
        if !matches!(outcome, Outcome::Cancelled | Outcome::Fault) {
            return;
        }
        let speed = self.speed.get().unwrap_or(0.0);
        let tokens = (speed * took.as_secs_f64() * f64::from(weight)) as u64;
        self.outcomes.tokens_wasted += tokens;
        self.metrics.wasted(tokens);
    }

    pub(crate) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.overhang = self.in_use.saturating_sub(capacity);
        self.metrics.places(self.in_use, capacity);
    }

    /// What the engine says of itself: samples that it has beyond those of our permits, of which `ours` were out when it was
    /// asked, are others'. Since ours are counted when they are sent and not when they are seen there, a picture that is old
    /// herds nobody.
    pub(crate) fn observe(&mut self, load: &EngineLoad, ours: u32) {
        let there = u32::try_from(load.running.saturating_add(load.waiting)).unwrap_or(u32::MAX);
        self.foreign = there.saturating_sub(ours).min(self.capacity);
    }

    pub(crate) fn set_admin(&mut self, admin: AdminState) {
        self.changes_state(|server| server.admin = admin);
    }

    /// Changes what is known of its health.
    pub(crate) fn heed<T>(&mut self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        self.changes_state(|server| change(&mut server.breaker))
    }

    pub(crate) fn set_gate(&mut self, change: impl FnOnce(&mut Gate)) {
        self.changes_state(|server| change(&mut server.gate));
    }

    fn changes_state<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.state();
        let result = change(self);
        let after = self.state();
        if before != after {
            self.metrics.state(after, self.epoch());
        }
        result
    }

    /// As others see it: one whose weights keep it out is paused.
    pub(crate) fn state(&self) -> ServerState {
        match (self.breaker.health(), self.admin) {
            (Health::Dead, _) => ServerState::Dead,
            (_, AdminState::Draining) => ServerState::Draining,
            (_, AdminState::Paused) => ServerState::Paused,
            _ if self.gate.hold().is_some() => ServerState::Paused,
            (Health::Probing, AdminState::Active) => ServerState::Probing,
            (Health::Well, AdminState::Active) => ServerState::Active,
        }
    }

    /// What keeps it out, unless something else does.
    fn hold(&self) -> Option<Hold> {
        let is_wanted = self.breaker.health() != Health::Dead && self.admin == AdminState::Active;
        self.gate.hold().filter(|hold| is_wanted || *hold == Hold::Updating)
    }

    /// Counts the outcome of a request of this life, of `weight` samples and with the number `permit`; the return value says
    /// why the server is suspect if it has become so.
    pub(crate) fn record(
        &mut self,
        outcome: &Outcome,
        (weight, permit): (u32, u64),
        took: Duration,
        now: Instant,
        config: &BalancerConfig,
    ) -> Option<Arc<str>> {
        self.metrics.outcome(outcome, took);
        match outcome {
            Outcome::Success { tokens } => {
                self.outcomes.success += 1;
                self.outcomes.tokens += tokens;
                self.speed.record(*tokens, took.as_secs_f64() * f64::from(weight));
            }
            Outcome::ClientError => self.outcomes.client_error += 1,
            Outcome::Cancelled => self.outcomes.cancelled += 1,
            Outcome::Backpressure { .. } => self.outcomes.backpressure += 1,
            Outcome::Fault => self.outcomes.fault += 1,
        }
        let permits = self.granted_total;
        self.heed(|breaker| breaker.record(outcome, (permit, permits), now, config))
    }

    /// Ends this life: whatever permits are out no longer count.
    pub(crate) fn die(&mut self, reason: Arc<str>, config: &BalancerConfig) {
        self.in_use = 0;
        self.tokens = 0;
        self.overhang = 0;
        self.foreign = 0;
        let Life { server, epoch, ref name, ref url, .. } = *self.life;
        let next = Life {
            server,
            epoch: Epoch(epoch.0 + 1),
            name: Arc::clone(name),
            url: url.clone(),
            end: CancellationToken::new(),
        };
        std::mem::replace(&mut self.life, Arc::new(next)).end.cancel();
        let permits = self.granted_total;
        self.changes_state(|server| {
            server.gate.forget_weights();
            server.breaker.die(reason, permits, Instant::now(), config);
        });
        self.metrics.places(0, self.capacity);
    }

    /// Back on trial.
    pub(crate) fn revive(&mut self) {
        let permits = self.granted_total;
        self.heed(|breaker| breaker.revive(permits));
    }

    /// It has left the fleet.
    pub(crate) fn leave(self) -> Arc<Life> {
        self.life.end.cancel();
        self.metrics.gone();
        self.life
    }

    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            id: self.id,
            name: Arc::clone(self.name()),
            url: self.life.url.clone(),
            state: self.state(),
            admin_state: self.admin,
            reason: self.breaker.reason().cloned().or_else(|| self.gate.words()),
            hold: self.hold(),
            weights_version: self.gate.weights,
            epoch: self.epoch(),
            capacity: self.capacity,
            in_use: self.in_use,
            overhang: self.overhang,
            expected_tokens: self.tokens,
            foreign: self.foreign,
            tokens_per_second: self.speed.get(),
            granted_total: self.granted_total,
            outcomes: self.outcomes.clone(),
        }
    }
}
