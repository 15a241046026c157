//! One server as the balancer sees it: its life, its places, its health and its weights.

mod breaker;
mod gate;
mod speed;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::grant::Life;
use crate::metered::ServerMetrics;
use crate::outcome::{Outcome, Unanswered};
use crate::policy::Candidate;
use crate::server::{AdminState, Epoch, Hold, ServerId, ServerState};
use crate::snapshot::{Outcomes, ServerSnapshot};
use crate::{BalancerConfig, EngineLoad, ServerSpec};

use breaker::{Breaker, Health};
use gate::Gate;
use speed::{DecodeRate, Speed};

/// The share of a KV cache in use from which on a server takes no further sample without preempting others soon.
const KV_USAGE_FULL: f64 = 0.9;

/// A server of the fleet. All changes go through [`State::change`](super::state::State::change).
#[derive(Debug)]
pub(super) struct Server {
    pub(super) id: ServerId,
    pub(super) life: Arc<Life>,
    pub(super) capacity: u32,
    capacity_tokens: Option<u32>,
    pub(super) admin: AdminState,
    pub(super) breaker: Breaker,
    /// Places taken.
    pub(super) in_use: u32,
    /// Places taken beyond the capacity since the capacity was lowered.
    overhang: u32,
    /// Expected tokens of the outstanding permits.
    tokens: u64,
    /// Samples of other clients on the engine at the last reading of its load.
    foreign: u32,
    granted_total: u64,
    outcomes: Outcomes,
    gate: Gate,
    speed: Speed,
    decode_rate: DecodeRate,
    /// The time at which the breaker opens by itself, as of the last refresh.
    pub(super) opens_at: Option<Instant>,
    /// Whether the server is on the list of servers whose candidates change as time passes.
    pub(super) is_unsettled: bool,
    metrics: ServerMetrics,
}

impl Server {
    /// A new server. If `weights_required` is set, no permits are granted on it until it has these weights.
    pub(super) fn new(id: ServerId, spec: ServerSpec, weights_required: Option<u64>) -> Self {
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
            decode_rate: DecodeRate::default(),
            opens_at: None,
            is_unsettled: false,
            metrics,
        };
        server.metrics.state(server.state(), Epoch(0));
        server
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.life.name
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.life.epoch
    }

    /// Maximum number of expected tokens that may be outstanding on the server.
    pub(super) fn tokens_max(&self) -> u32 {
        self.capacity_tokens.unwrap_or(u32::MAX)
    }

    /// Samples that the server can take now.
    fn free(&self) -> u32 {
        if self.is_open() { self.capacity.saturating_sub(self.in_use) } else { 0 }
    }

    /// Whether the server may be given a permit when it has room.
    pub(super) fn is_open(&self) -> bool {
        self.admin == AdminState::Active && self.breaker.is_open() && self.gate.hold().is_none()
    }

    /// Whether requests waited on the engine at the last look, or would have to soon.
    pub(super) fn is_engine_full(&self) -> bool {
        self.decode_rate.waiting() > 0 || self.decode_rate.kv_cache_usage() >= KV_USAGE_FULL
    }

    /// Whether waiting for this server makes sense.
    pub(super) fn is_live(&self) -> bool {
        self.breaker.health() != Health::Dead && self.admin != AdminState::Draining
    }

    /// Whether the server could hold a request of `weight` samples and `tokens` expected tokens if it were
    /// empty.
    pub(super) fn could_hold(&self, weight: u32, tokens: u32) -> bool {
        self.capacity >= weight && self.tokens_max() >= tokens
    }

    /// The server as policies see it. `mean_speed` and `mean_tokens` are the means of the fleet.
    pub(super) fn candidate(&self, penalty: f64, mean_speed: f64, mean_tokens: f64) -> Candidate {
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

    /// Grants a permit and returns its number.
    pub(super) fn grant(&mut self, weight: u32, tokens: u32, now: Instant, config: &BalancerConfig) -> u64 {
        self.in_use += weight;
        self.tokens += u64::from(tokens);
        self.granted_total += 1;
        self.breaker.granted(self.granted_total, now, config);
        self.metrics.places(self.in_use, self.capacity);
        self.granted_total
    }

    /// Takes back a permit of this life.
    pub(super) fn take_back(&mut self, weight: u32, tokens: u32) {
        self.in_use -= weight;
        self.tokens -= u64::from(tokens);
        self.overhang = self.overhang.min(self.in_use.saturating_sub(self.capacity));
        self.metrics.places(self.in_use, self.capacity);
    }

    /// Counts the tokens of a request of this or an earlier life that has no whole answer. If they are not known, all
    /// of them are wasted. Their number is then estimated from the server's measured speed and from the request's age,
    /// without the time in which the server is known to have generated nothing.
    pub(super) fn count_unanswered(
        &mut self,
        outcome: &Outcome,
        unanswered: Option<Unanswered>,
        weight: u32,
        granted_at: Instant,
    ) {
        if !matches!(outcome, Outcome::Cancelled | Outcome::Fault) {
            return;
        }
        let Unanswered { kept, wasted } = unanswered.unwrap_or_else(|| {
            let speed = self.speed.get().unwrap_or(0.0);
            let age = granted_at.elapsed().saturating_sub(self.breaker.stood_still(granted_at));
            let wasted = (speed * age.as_secs_f64() * f64::from(weight)) as u64;
            Unanswered { kept: 0, wasted }
        });
        self.outcomes.tokens += kept;
        self.outcomes.tokens_wasted += wasted;
        self.metrics.unanswered(kept, wasted);
    }

    pub(super) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.overhang = self.in_use.saturating_sub(capacity);
        self.metrics.places(self.in_use, capacity);
    }

    /// Records the engine's load. `ours` is the number of places that were taken when the load was asked for.
    /// Further samples on the engine belong to other clients. This balancer counts its own samples when they
    /// are sent, not when the engine reports them, so an old reading does not drive all requests to one
    /// server.
    pub(super) fn observe(&mut self, load: &EngineLoad, ours: u32) {
        let on_engine = u32::try_from(load.running.saturating_add(load.waiting)).unwrap_or(u32::MAX);
        self.foreign = on_engine.saturating_sub(ours).min(self.capacity);
        self.decode_rate.read(load, Instant::now());
    }

    pub(super) fn set_admin(&mut self, admin: AdminState) {
        self.changes_state(|server| server.admin = admin);
    }

    /// Changes the breaker.
    pub(super) fn change_breaker<T>(&mut self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        self.changes_state(|server| change(&mut server.breaker))
    }

    pub(super) fn set_gate(&mut self, change: impl FnOnce(&mut Gate)) {
        self.changes_state(|server| change(&mut server.gate));
    }

    /// Makes a change, and counts it if it has changed the server's state.
    fn changes_state<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.state();
        let result = change(self);
        let after = self.state();
        if before != after {
            self.metrics.state(after, self.epoch());
        }
        result
    }

    /// The state that operators and policies see. A server that is kept out because of its weights counts as
    /// paused.
    pub(super) fn state(&self) -> ServerState {
        match (self.breaker.health(), self.admin) {
            (Health::Dead, _) => ServerState::Dead,
            (_, AdminState::Draining) => ServerState::Draining,
            (_, AdminState::Paused) => ServerState::Paused,
            _ if self.gate.hold().is_some() => ServerState::Paused,
            (Health::Probing, AdminState::Active) => ServerState::Probing,
            (Health::Well, AdminState::Active) => ServerState::Active,
        }
    }

    /// Why no permits are granted on the server because of its weights. A server counts as outdated only if
    /// there is no other reason.
    fn hold(&self) -> Option<Hold> {
        let is_wanted = self.breaker.health() != Health::Dead && self.admin == AdminState::Active;
        self.gate.hold().filter(|hold| is_wanted || *hold == Hold::Updating)
    }

    /// Counts the outcome of a request of this life. The request has `weight` samples and the permit number
    /// `permit`. Returns why the server is suspect, if this outcome has made it so.
    pub(super) fn record(
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
        self.change_breaker(|breaker| breaker.record(outcome, (permit, permits), now, config))
    }

    /// Ends this life. Its outstanding permits no longer count.
    pub(super) fn die(&mut self, reason: Arc<str>, config: &BalancerConfig) {
        self.in_use = 0;
        self.tokens = 0;
        self.overhang = 0;
        self.foreign = 0;
        self.decode_rate = DecodeRate::default();
        let Life { server, epoch, ref name, ref url, .. } = *self.life;
        let next = Life {
            server,
            epoch: Epoch(epoch.0 + 1),
            name: Arc::clone(name),
            url: url.clone(),
            end: CancellationToken::new(),
        };
        std::mem::replace(&mut self.life, Arc::new(next)).end.cancel();
        self.changes_state(|server| {
            server.gate.forget_weights();
            server.breaker.die(reason, Instant::now(), config);
        });
        self.metrics.places(0, self.capacity);
    }

    /// Puts the server on trial after its death.
    pub(super) fn revive(&mut self) {
        let permits = self.granted_total;
        self.change_breaker(|breaker| breaker.revive(permits));
    }

    /// Ends the server's last life when it leaves the fleet.
    pub(super) fn leave(self) -> Arc<Life> {
        self.life.end.cancel();
        self.metrics.clear();
        self.life
    }

    pub(super) fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            id: self.id,
            name: Arc::clone(self.name()),
            url: self.life.url.clone(),
            state: self.state(),
            admin_state: self.admin,
            reason: self.breaker.reason().cloned().or_else(|| self.gate.description()),
            hold: self.hold(),
            weights_version: self.gate.weights,
            epoch: self.epoch(),
            capacity: self.capacity,
            in_use: self.in_use,
            overhang: self.overhang,
            expected_tokens: self.tokens,
            foreign: self.foreign,
            tokens_per_second: self.speed.get(),
            decode_rate: self.decode_rate.get(),
            pace: self.decode_rate.pace(),
            kv_cache_usage: self.decode_rate.kv_cache_usage(),
            engine_waiting: self.decode_rate.waiting(),
            load_readings: self.decode_rate.readings(),
            granted_total: self.granted_total,
            outcomes: self.outcomes.clone(),
        }
    }
}
