//! One server as the balancer sees it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
    /// Back from the dead: takes one request at a time until one succeeds.
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

/// Backpressure adds this much load share at once, on top of what is left of earlier penalties.
const PENALTY: f64 = 0.5;
const PENALTY_MAX: f64 = 8.0;
/// What is left of it is not worth counting.
const PENALTY_MIN: f64 = 1e-3;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) life: Arc<Life>,
    pub(crate) capacity: u32,
    capacity_tokens: Option<u32>,
    pub(crate) state: ServerState,
    pub(crate) in_use: u32,
    /// Permits out above the capacity, since that was lowered; only ever returned.
    overhang: u32,
    /// Expected tokens of the permits out.
    tokens: u64,
    /// Samples that others had there when it was looked at.
    foreign: u32,
    granted_total: u64,
    outcomes: Outcomes,
    reason: Option<Arc<str>>,
    gate: Gate,
    faults_in_row: u32,
    /// The last answers, the newest in the lowest bit; 1 is a fault.
    history: u64,
    history_length: u32,
    speed: Speed,
    penalty: f64,
    penalty_at: Instant,
    /// It asked to be left alone until then.
    closed_until: Option<Instant>,
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
            state: ServerState::Active,
            in_use: 0,
            overhang: 0,
            tokens: 0,
            foreign: 0,
            granted_total: 0,
            outcomes: Outcomes::default(),
            reason: None,
            gate,
            faults_in_row: 0,
            history: 0,
            history_length: 0,
            speed: Speed::default(),
            penalty: 0.0,
            penalty_at: Instant::now(),
            closed_until: None,
            metrics,
        };
        server.metrics.state(server.seen_state(), Epoch(0));
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
        match self.state {
            _ if self.closed_until.is_some() || self.gate.hold().is_some() => 0,
            ServerState::Active => self.capacity.saturating_sub(self.in_use),
            ServerState::Probing if self.in_use == 0 => self.capacity,
            ServerState::Probing | ServerState::Draining | ServerState::Paused | ServerState::Dead => 0,
        }
    }

    /// Whether waiting for this server makes sense.
    pub(crate) fn is_live(&self) -> bool {
        self.state.is_live()
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
        }
    }

    /// What is left of its penalties.
    pub(crate) fn penalty(&self, now: Instant, half_life: Duration) -> f64 {
        if self.penalty == 0.0 {
            return 0.0;
        }
        let halvings = now.saturating_duration_since(self.penalty_at).as_secs_f64() / half_life.as_secs_f64();
        let left = self.penalty * (-halvings).exp2();
        if left < PENALTY_MIN { 0.0 } else { left }
    }

    /// When it may be asked again, if it asked to be left alone.
    pub(crate) fn opens_at(&mut self, now: Instant) -> Option<Instant> {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        self.closed_until
    }

    pub(crate) fn grant(&mut self, weight: u32, tokens: u32) {
        self.in_use += weight;
        self.tokens += u64::from(tokens);
        self.granted_total += 1;
        self.metrics.places(self.in_use, self.capacity);
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

    /// What the engine says of itself: samples that it has beyond those of our permits are others'. Since ours are counted
    /// when they are sent and not when they are seen there, a picture that is old herds nobody.
    pub(crate) fn observe(&mut self, load: &EngineLoad) {
        let there = u32::try_from(load.running + load.waiting).unwrap_or(u32::MAX);
        self.foreign = there.saturating_sub(self.in_use).min(self.capacity);
    }

    pub(crate) fn set_state(&mut self, state: ServerState) {
        self.changes_state(|server| server.state = state);
    }

    pub(crate) fn set_gate(&mut self, change: impl FnOnce(&mut Gate)) {
        self.changes_state(|server| change(&mut server.gate));
    }

    fn changes_state(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.seen_state();
        change(self);
        let after = self.seen_state();
        if before != after {
            self.metrics.state(after, self.epoch());
        }
    }

    /// As others see it: one whose weights keep it out is paused.
    fn seen_state(&self) -> ServerState {
        match self.state {
            ServerState::Active | ServerState::Probing if self.gate.hold().is_some() => ServerState::Paused,
            state => state,
        }
    }

    /// What keeps it out, unless something else does.
    fn hold(&self) -> Option<Hold> {
        let is_well = matches!(self.state, ServerState::Active | ServerState::Probing);
        self.gate.hold().filter(|hold| is_well || *hold == Hold::Updating)
    }

    /// Counts an outcome of a request of `weight` samples; the return value says why the server has to die of it, if it
    /// has to.
    pub(crate) fn record(
        &mut self,
        outcome: &Outcome,
        weight: u32,
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
                self.remember(false);
                self.faults_in_row = 0;
                if self.state == ServerState::Probing {
                    self.set_state(ServerState::Active);
                }
                None
            }
            Outcome::ClientError => {
                self.outcomes.client_error += 1;
                None
            }
            Outcome::Cancelled => {
                self.outcomes.cancelled += 1;
                None
            }
            Outcome::Backpressure { retry_after } => {
                self.outcomes.backpressure += 1;
                let left = self.penalty(now, config.penalty_half_life());
                (self.penalty, self.penalty_at) = ((left + PENALTY).min(PENALTY_MAX), now);
                if let Some(wait) = retry_after {
                    let until = now + (*wait).min(config.retry_after_max());
                    self.closed_until = self.closed_until.max(Some(until));
                }
                None
            }
            Outcome::Fault => {
                self.outcomes.fault += 1;
                self.faults_in_row += 1;
                self.remember(true);
                self.verdict(config)
            }
        }
    }

    fn remember(&mut self, is_fault: bool) {
        self.history = self.history << 1 | u64::from(is_fault);
        self.history_length = (self.history_length + 1).min(64);
    }

    /// Why it has to die of its faults, if it has to.
    fn verdict(&self, config: &BalancerConfig) -> Option<Arc<str>> {
        if self.state == ServerState::Probing || self.faults_in_row >= config.faults_max {
            return Some(format!("{} faults in a row", self.faults_in_row).into());
        }
        let window = config.window.clamp(1, 64);
        let recent = self.history & (u64::MAX >> (64 - window));
        let is_known = self.history_length >= window;
        let faults = recent.count_ones();
        (is_known && faults >= config.window_faults_max.max(1))
            .then(|| format!("{faults} faults among the last {window} answers").into())
    }

    /// Ends this life: whatever permits are out no longer count.
    pub(crate) fn die(&mut self, reason: Arc<str>) {
        self.reason = Some(reason);
        self.in_use = 0;
        self.tokens = 0;
        self.overhang = 0;
        self.foreign = 0;
        self.faults_in_row = 0;
        (self.history, self.history_length) = (0, 0);
        self.closed_until = None;
        self.gate.forget_weights();
        let Life { server, epoch, ref name, ref url, .. } = *self.life;
        let next = Life {
            server,
            epoch: Epoch(epoch.0 + 1),
            name: Arc::clone(name),
            url: url.clone(),
            end: CancellationToken::new(),
        };
        std::mem::replace(&mut self.life, Arc::new(next)).end.cancel();
        self.set_state(ServerState::Dead);
        self.metrics.places(0, self.capacity);
    }

    /// Back on trial.
    pub(crate) fn revive(&mut self) {
        self.reason = None;
        self.penalty = 0.0;
        self.set_state(ServerState::Probing);
    }

    /// It has left the fleet.
    pub(crate) fn leave(self) {
        self.life.end.cancel();
        self.metrics.gone();
    }

    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            id: self.id,
            name: Arc::clone(self.name()),
            url: self.life.url.clone(),
            state: self.seen_state(),
            reason: self.reason.clone().or_else(|| self.gate.words()),
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
