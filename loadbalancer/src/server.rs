//! One server as the balancer sees it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::snapshot::Outcomes;
use crate::{Outcome, ServerSpec};

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

/// Backpressure adds this much load share at once, on top of what is left of earlier penalties.
const PENALTY: f64 = 0.5;
const PENALTY_MAX: f64 = 8.0;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) name: Arc<str>,
    pub(crate) url: Option<Arc<str>>,
    pub(crate) capacity: u32,
    pub(crate) state: ServerState,
    pub(crate) epoch: Epoch,
    pub(crate) in_use: u32,
    /// Cancelled when this life ends.
    pub(crate) life: CancellationToken,
    pub(crate) granted_total: u64,
    pub(crate) outcomes: Outcomes,
    pub(crate) reason: Option<Arc<str>>,
    faults_in_row: u32,
    penalty: f64,
    penalty_at: Instant,
}

impl Server {
    pub(crate) fn new(id: ServerId, spec: ServerSpec) -> Self {
        Self {
            id,
            name: spec.name.into(),
            url: spec.url.map(Into::into),
            capacity: spec.capacity,
            state: ServerState::Active,
            epoch: Epoch(0),
            in_use: 0,
            life: CancellationToken::new(),
            granted_total: 0,
            outcomes: Outcomes::default(),
            reason: None,
            faults_in_row: 0,
            penalty: 0.0,
            penalty_at: Instant::now(),
        }
    }

    /// Whether a permit of `weight` can be granted now.
    pub(crate) fn has_room(&self, weight: u32) -> bool {
        match self.state {
            ServerState::Active => self.in_use + weight <= self.capacity,
            ServerState::Probing => self.in_use == 0 && weight <= self.capacity,
            ServerState::Draining | ServerState::Paused | ServerState::Dead => false,
        }
    }

    /// Whether waiting for this server makes sense.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, ServerState::Active | ServerState::Probing | ServerState::Paused)
    }

    /// Share of the capacity in use, plus what is left of the penalties. Compared, never stored.
    pub(crate) fn load(&self, now: Instant, half_life: Duration) -> f64 {
        f64::from(self.in_use) / f64::from(self.capacity.max(1)) + self.penalty_left(now, half_life)
    }

    fn penalty_left(&self, now: Instant, half_life: Duration) -> f64 {
        if self.penalty == 0.0 {
            return 0.0;
        }
        let halvings = now.saturating_duration_since(self.penalty_at).as_secs_f64() / half_life.as_secs_f64();
        self.penalty * (-halvings).exp2()
    }

    /// Counts an outcome; the return value says why the server has to die of it, if it has to.
    pub(crate) fn record(
        &mut self,
        outcome: &Outcome,
        now: Instant,
        half_life: Duration,
        faults_max: u32,
    ) -> Option<Arc<str>> {
        match outcome {
            Outcome::Success { tokens } => {
                self.outcomes.success += 1;
                self.outcomes.tokens += tokens;
                self.faults_in_row = 0;
                if self.state == ServerState::Probing {
                    self.state = ServerState::Active;
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
                // A Retry-After of n half-lives starts 2^n times as high, so that it is as far down after them.
                let wait = retry_after.unwrap_or_default().as_secs_f64() / half_life.as_secs_f64();
                let raise = PENALTY * wait.min(4.0).exp2();
                self.penalty = (self.penalty_left(now, half_life) + raise).min(PENALTY_MAX);
                self.penalty_at = now;
                None
            }
            Outcome::Fault => {
                self.outcomes.fault += 1;
                self.faults_in_row += 1;
                let mortal = self.state == ServerState::Probing || self.faults_in_row >= faults_max;
                mortal.then(|| format!("{} faults in a row", self.faults_in_row).into())
            }
        }
    }

    /// Ends this life: whatever permits are out no longer count.
    pub(crate) fn die(&mut self, reason: Arc<str>) {
        self.state = ServerState::Dead;
        self.reason = Some(reason);
        self.new_life();
    }

    fn new_life(&mut self) {
        self.epoch = Epoch(self.epoch.0 + 1);
        self.in_use = 0;
        self.faults_in_row = 0;
        std::mem::take(&mut self.life).cancel();
    }

    /// Back on trial.
    pub(crate) fn revive(&mut self) {
        self.state = ServerState::Probing;
        self.reason = None;
        self.penalty = 0.0;
    }
}
