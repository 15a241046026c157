//! What a server's outcomes say of it: whether it may be asked, how soon again, and how gladly.
//!
//! Requests that fail make a server suspect, and not dead: it gets nothing new for a while and then one request on trial,
//! and what it has runs on, since a server that fails some requests may answer others. Only who looks at the server itself
//! (health, a stall) ends its life. How long it is left alone doubles each time, until it does well.
//!
//! # Invariants
//! - A trial has an end: another one begins when it is over, so that a request that hangs holds nobody up.
//! - Only permits of a trial say how it went: those that were out before are not asked.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::{BalancerConfig, Outcome};

/// Backpressure adds this much load share at once, on top of what is left of earlier penalties.
const PENALTY: f64 = 0.5;
const PENALTY_MAX: f64 = 8.0;
/// What is left of it is not worth counting.
const PENALTY_MIN: f64 = 1e-3;

/// Whether the server does well, whatever its operator wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// One request at a time, until one succeeds.
    Probing,
    /// Nothing.
    Dead,
}

/// The one permit that a server on trial has got.
#[derive(Debug, Clone, Copy)]
struct Trial {
    permit: u64,
    begun: Instant,
    until: Instant,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Breaker {
    health: Health,
    /// Why it is not well.
    reason: Option<Arc<str>>,
    faults_in_row: u32,
    /// The last answers, the newest in the lowest bit; 1 is a fault.
    history: u64,
    history_length: u32,
    /// How often it has died or become suspect since it did well.
    relapses: u32,
    /// It is left alone until then.
    cool_until: Option<Instant>,
    /// It asked to be left alone until then.
    closed_until: Option<Instant>,
    trial: Option<Trial>,
    /// Permits up to this number were out before it went on trial.
    permits_before: u64,
    penalty: f64,
    penalty_at: Instant,
}

impl Breaker {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            health: Health::Well,
            reason: None,
            faults_in_row: 0,
            history: 0,
            history_length: 0,
            relapses: 0,
            cool_until: None,
            closed_until: None,
            trial: None,
            permits_before: 0,
            penalty: 0.0,
            penalty_at: now,
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health
    }

    pub(crate) fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// Whether it is left alone for a while: who looks for another server does not wait for this one.
    pub(crate) fn is_cooling(&self) -> bool {
        self.cool_until.is_some()
    }

    /// Whether nothing but its places keeps it from a permit, as of the last [`Breaker::settle`].
    pub(crate) fn is_open(&self) -> bool {
        self.health != Health::Dead
            && self.cool_until.is_none()
            && self.closed_until.is_none()
            && self.trial.is_none()
    }

    /// Forgets what is over; says when the next thing is.
    pub(crate) fn settle(&mut self, now: Instant) -> Option<Instant> {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        self.cool_until = self.cool_until.filter(|until| *until > now);
        self.trial = self.trial.filter(|trial| trial.until > now);
        let trial_until = self.trial.map(|trial| trial.until);
        [self.closed_until, self.cool_until, trial_until].into_iter().flatten().min()
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

    /// It has got a permit of this number.
    pub(crate) fn granted(&mut self, permit: u64, now: Instant, config: &BalancerConfig) {
        if self.health == Health::Probing {
            self.trial = Some(Trial { permit, begun: now, until: now + config.trial() });
        }
    }

    /// Counts how a request went; says why it is suspect if it becomes so. Of its `permits` this one has the number
    /// `permit`.
    pub(crate) fn record(
        &mut self,
        outcome: &Outcome,
        (permit, permits): (u64, u64),
        now: Instant,
        config: &BalancerConfig,
    ) -> Option<Arc<str>> {
        self.trial = self.trial.filter(|trial| trial.permit != permit);
        let is_asked = self.health != Health::Probing || permit > self.permits_before;
        match outcome {
            Outcome::Success { .. } if is_asked => {
                self.remember(false);
                self.faults_in_row = 0;
                match self.health {
                    Health::Probing => self.recover(),
                    // Not at its trial already: one that fails nearly everything may pass that.
                    _ => self.relapses = 0,
                }
                None
            }
            Outcome::Backpressure { retry_after } => {
                let left = self.penalty(now, config.penalty_half_life());
                (self.penalty, self.penalty_at) = ((left + PENALTY).min(PENALTY_MAX), now);
                if let Some(wait) = retry_after {
                    let until = now + (*wait).min(config.retry_after_max());
                    self.closed_until = self.closed_until.max(Some(until));
                }
                None
            }
            Outcome::Fault if is_asked => {
                self.faults_in_row += 1;
                self.remember(true);
                let reason = self.verdict(config)?;
                self.relapse(Health::Probing, Arc::clone(&reason), permits, now, config);
                Some(reason)
            }
            Outcome::Success { .. } | Outcome::ClientError | Outcome::Cancelled | Outcome::Fault => None,
        }
    }

    fn remember(&mut self, is_fault: bool) {
        self.history = self.history << 1 | u64::from(is_fault);
        self.history_length = (self.history_length + 1).min(64);
    }

    /// Why it is suspect, if it is.
    fn verdict(&self, config: &BalancerConfig) -> Option<Arc<str>> {
        if self.health == Health::Probing {
            return Some("a fault on trial".into());
        }
        if self.faults_in_row >= config.faults_max {
            return Some(format!("{} faults in a row", self.faults_in_row).into());
        }
        let window = config.window.clamp(1, 64);
        let recent = self.history & (u64::MAX >> (64 - window));
        let is_known = self.history_length >= window;
        let faults = recent.count_ones();
        (is_known && faults >= config.window_faults_max.max(1))
            .then(|| format!("{faults} faults among the last {window} answers").into())
    }

    fn relapse(
        &mut self,
        health: Health,
        reason: Arc<str>,
        permits: u64,
        now: Instant,
        config: &BalancerConfig,
    ) {
        (self.health, self.reason) = (health, Some(reason));
        self.cool_until = Some(now + config.cooldown(self.relapses));
        self.relapses = self.relapses.saturating_add(1);
        self.begin_anew(permits);
    }

    fn begin_anew(&mut self, permits: u64) {
        self.permits_before = permits;
        self.trial = None;
        self.faults_in_row = 0;
        (self.history, self.history_length) = (0, 0);
    }

    fn recover(&mut self) {
        (self.health, self.reason) = (Health::Well, None);
        (self.trial, self.cool_until) = (None, None);
    }

    /// Its life is over.
    pub(crate) fn die(&mut self, reason: Arc<str>, permits: u64, now: Instant, config: &BalancerConfig) {
        self.relapse(Health::Dead, reason, permits, now, config);
        self.closed_until = None;
    }

    /// Back on trial.
    pub(crate) fn revive(&mut self, permits: u64) {
        (self.health, self.reason) = (Health::Probing, None);
        (self.penalty, self.cool_until) = (0.0, None);
        self.begin_anew(permits);
    }

    /// Its engine has generated something since then: a trial that it took before is as good as passed.
    pub(crate) fn has_generated(&mut self, since: Instant) {
        if self.health == Health::Probing && self.trial.is_some_and(|trial| trial.begun < since) {
            self.recover();
        }
    }

    /// It was asked for something apart from its permits, and did it.
    pub(crate) fn has_proved(&mut self) {
        if self.health == Health::Probing && self.cool_until.is_none() {
            self.recover();
        }
    }
}
