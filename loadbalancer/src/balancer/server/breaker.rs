//! The circuit breaker of one server. The outcomes of requests determine whether the server may be asked,
//! when the server may be asked again, and its load penalty.
//!
//! ```text
//! Well     -- too many faults ----------> Cooling
//! Cooling  -- the cooldown is over -----> Ready
//! Ready    -- a permit is granted ------> OnTrial
//! OnTrial  -- success ------------------> Well
//! OnTrial  -- fault --------------------> Cooling, for longer
//! OnTrial  -- no answer in its time ---> Ready
//! any      -- death --------------------> Dead
//! Dead     -- revival ------------------> Ready
//! ```
//!
//! Failed requests make a server suspect, not dead: it gets no permits during a cooldown, and then one
//! request on trial. Its running requests continue, because a server that fails some requests may answer
//! others. Failed requests alone never end a server's life. The monitor ends it if the health check fails or
//! the server stalls. The cooldown doubles with each relapse, until a request outside of a trial succeeds.
//!
//! # Invariants
//! - A trial has an end. When its time is over, the next trial may begin. A hanging request therefore blocks
//!   nothing.
//! - Only permits that were granted since the server became suspect can clear or condemn it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::BalancerConfig;
use crate::outcome::Outcome;

/// Load share that one answer of backpressure adds to what is left of earlier penalties.
const PENALTY: f64 = 0.5;
/// The highest penalty.
const PENALTY_MAX: f64 = 8.0;
/// A smaller penalty counts as none.
const PENALTY_MIN: f64 = 1e-3;
/// Maximum number of answers that are remembered, with one bit each.
const ANSWERS_MAX: u32 = u64::BITS;

/// The server's health as the outcomes show it. It does not depend on the operator's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::balancer) enum Health {
    /// The server takes as many samples as it has places.
    Well,
    /// The server takes one request at a time, until one succeeds.
    Probing,
    /// The server takes no requests.
    Dead,
}

/// The state of the breaker.
#[derive(Debug)]
enum State {
    /// The server takes requests, and its answers are counted.
    Well(Answers),
    /// The server has failed too often, or has returned after its death.
    Suspect(Suspect),
    /// The server's life is over.
    Dead {
        reason: Arc<str>,
        /// The server is not revived before this time, the end of its cooldown.
        cools_until: Option<Instant>,
    },
}

/// A server that has to pass a trial.
#[derive(Debug)]
struct Suspect {
    /// Why the server is suspect; `None` after a revival.
    reason: Option<Arc<str>>,
    /// The number of the last permit that was granted before the server became suspect. The outcomes of this
    /// permit and of earlier ones show nothing about the server's present health.
    permits_before: u64,
    stage: Stage,
}

/// The stage of a suspect server on its way to health.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The server gets no requests before `until`.
    Cooling { until: Instant },
    /// The next permit is the server's trial.
    Ready,
    /// The server has a request on trial, and gets no other.
    OnTrial { permit: u64, begun: Instant, until: Instant },
}

impl Suspect {
    /// Notes that the request of this permit has ended. If it was on trial, the trial is over.
    fn note_end(&mut self, permit: u64) {
        if matches!(self.stage, Stage::OnTrial { permit: on_trial, .. } if on_trial == permit) {
            self.stage = Stage::Ready;
        }
    }

    fn may_judge(&self, permit: u64) -> bool {
        permit > self.permits_before
    }
}

/// The last answers of a server that is well.
#[derive(Debug, Default)]
struct Answers {
    faults_in_row: u32,
    /// One bit for each answer; 1 stands for a fault. The newest answer is the lowest bit.
    history: u64,
    length: u32,
}

impl Answers {
    fn note(&mut self, is_fault: bool) {
        self.faults_in_row = if is_fault { self.faults_in_row + 1 } else { 0 };
        self.history = self.history << 1 | u64::from(is_fault);
        self.length = (self.length + 1).min(ANSWERS_MAX);
    }

    /// Why these answers make the server suspect, if they do.
    fn verdict(&self, config: &BalancerConfig) -> Option<Arc<str>> {
        if self.faults_in_row >= config.faults_max {
            return Some(format!("{} faults in a row", self.faults_in_row).into());
        }
        let window = config.window.clamp(1, ANSWERS_MAX);
        let recent = self.history & (u64::MAX >> (ANSWERS_MAX - window));
        let is_known = self.length >= window;
        let faults = recent.count_ones();
        (is_known && faults >= config.window_faults_max.max(1))
            .then(|| format!("{faults} faults among the last {window} answers").into())
    }
}

/// Decides from the outcomes of requests whether a server may be asked.
#[derive(Debug)]
pub(in crate::balancer) struct Breaker {
    state: State,
    /// How often the server has died or become suspect since a request outside of a trial last succeeded.
    relapses: u32,
    /// End of the longest `Retry-After` that the server has sent.
    closed_until: Option<Instant>,
    penalty: f64,
    penalty_at: Instant,
    /// The last known time in which the engine's count of generated tokens did not change: its start and its
    /// end so far. `None` before the first reading of the count.
    still: Option<(Instant, Instant)>,
}

impl Breaker {
    pub(in crate::balancer) fn new(now: Instant) -> Self {
        Self {
            state: State::Well(Answers::default()),
            relapses: 0,
            closed_until: None,
            penalty: 0.0,
            penalty_at: now,
            still: None,
        }
    }

    pub(in crate::balancer) fn health(&self) -> Health {
        match self.state {
            State::Well(_) => Health::Well,
            State::Suspect(_) => Health::Probing,
            State::Dead { .. } => Health::Dead,
        }
    }

    /// Why the server is not well.
    pub(in crate::balancer) fn reason(&self) -> Option<&Arc<str>> {
        match &self.state {
            State::Well(_) => None,
            State::Suspect(suspect) => suspect.reason.as_ref(),
            State::Dead { reason, .. } => Some(reason),
        }
    }

    /// Whether the server is in a cooldown. If all servers that could take a request and are not excluded are
    /// in a cooldown, the request ignores its exclusions and does not wait.
    pub(in crate::balancer) fn is_cooling(&self) -> bool {
        match &self.state {
            State::Well(_) => false,
            State::Suspect(suspect) => matches!(suspect.stage, Stage::Cooling { .. }),
            State::Dead { cools_until, .. } => cools_until.is_some(),
        }
    }

    /// Whether the server may be given a permit, as of the last [`Breaker::settle`].
    pub(in crate::balancer) fn is_open(&self) -> bool {
        let allows = match &self.state {
            State::Well(_) => true,
            State::Suspect(suspect) => matches!(suspect.stage, Stage::Ready),
            State::Dead { .. } => false,
        };
        allows && self.closed_until.is_none()
    }

    /// Ends the cooldowns, trials and `Retry-After` times that are over by `now`. Returns the time at which
    /// the next of them ends.
    pub(in crate::balancer) fn settle(&mut self, now: Instant) -> Option<Instant> {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        let state_until = match &mut self.state {
            State::Well(_) => None,
            State::Dead { cools_until, .. } => {
                *cools_until = cools_until.filter(|until| *until > now);
                *cools_until
            }
            State::Suspect(suspect) => match suspect.stage {
                Stage::Cooling { until } | Stage::OnTrial { until, .. } if until > now => Some(until),
                _ => {
                    suspect.stage = Stage::Ready;
                    None
                }
            },
        };
        [self.closed_until, state_until].into_iter().flatten().min()
    }

    /// What is left of the penalties at `now`, as a share of the server's places.
    pub(in crate::balancer) fn penalty(&self, now: Instant, half_life: Duration) -> f64 {
        if self.penalty == 0.0 {
            return 0.0;
        }
        let halvings = now.saturating_duration_since(self.penalty_at).as_secs_f64() / half_life.as_secs_f64();
        let left = self.penalty * (-halvings).exp2();
        if left < PENALTY_MIN { 0.0 } else { left }
    }

    /// Notes that the permit with this number was granted on the server.
    pub(in crate::balancer) fn granted(&mut self, permit: u64, now: Instant, config: &BalancerConfig) {
        if let State::Suspect(suspect) = &mut self.state {
            suspect.stage = Stage::OnTrial { permit, begun: now, until: now + config.trial() };
        }
    }

    /// Counts the outcome of the request of `permit`. `permits` permits have been granted on the server so
    /// far. Returns why the server is suspect, if this outcome has made it so.
    pub(in crate::balancer) fn record(
        &mut self,
        outcome: &Outcome,
        (permit, permits): (u64, u64),
        now: Instant,
        config: &BalancerConfig,
    ) -> Option<Arc<str>> {
        if let Outcome::Backpressure { retry_after } = outcome {
            self.press_back(*retry_after, now, config);
        }
        let reason = match &mut self.state {
            State::Well(answers) => match outcome {
                Outcome::Success { .. } => {
                    answers.note(false);
                    self.relapses = 0;
                    None
                }
                Outcome::Fault => {
                    answers.note(true);
                    answers.verdict(config)
                }
                _ => None,
            },
            State::Suspect(suspect) => {
                suspect.note_end(permit);
                match outcome {
                    Outcome::Success { .. } if suspect.may_judge(permit) => {
                        // The number of relapses stays, because a server that fails nearly every request may
                        // pass its trials.
                        let mut answers = Answers::default();
                        answers.note(false);
                        self.state = State::Well(answers);
                        None
                    }
                    Outcome::Fault if suspect.may_judge(permit) => Some("a fault on trial".into()),
                    _ => None,
                }
            }
            // No permit of a dead server counts any more.
            State::Dead { .. } => None,
        }?;
        let until = self.relapse(now, config);
        let stage = Stage::Cooling { until };
        let suspect = Suspect { reason: Some(Arc::clone(&reason)), permits_before: permits, stage };
        self.state = State::Suspect(suspect);
        Some(reason)
    }

    fn press_back(&mut self, retry_after: Option<Duration>, now: Instant, config: &BalancerConfig) {
        let left = self.penalty(now, config.penalty_half_life());
        (self.penalty, self.penalty_at) = ((left + PENALTY).min(PENALTY_MAX), now);
        if let Some(wait) = retry_after {
            let until = now + wait.min(config.retry_after_max());
            self.closed_until = self.closed_until.max(Some(until));
        }
    }

    /// Counts a relapse. Returns the end of the cooldown that follows.
    fn relapse(&mut self, now: Instant, config: &BalancerConfig) -> Instant {
        let until = now + config.cooldown(self.relapses);
        self.relapses = self.relapses.saturating_add(1);
        until
    }

    /// Notes that the server's life is over.
    pub(in crate::balancer) fn die(&mut self, reason: Arc<str>, now: Instant, config: &BalancerConfig) {
        let cools_until = Some(self.relapse(now, config));
        self.state = State::Dead { reason, cools_until };
        self.closed_until = None;
    }

    /// Notes that the server has returned. It goes on trial immediately. `permits` permits have been granted
    /// on it so far.
    pub(in crate::balancer) fn revive(&mut self, permits: u64) {
        let suspect = Suspect { reason: None, permits_before: permits, stage: Stage::Ready };
        self.state = State::Suspect(suspect);
        self.penalty = 0.0;
    }

    /// Notes that the engine has generated tokens since `since`. A trial that began before `since` is passed.
    pub(in crate::balancer) fn has_generated(&mut self, since: Instant) {
        if let State::Suspect(Suspect { stage: Stage::OnTrial { begun, .. }, .. }) = self.state
            && begun < since
        {
            self.state = State::Well(Answers::default());
        }
    }

    /// Notes that the engine's count of generated tokens has changed, or was read for the first time. It was read
    /// before `now`.
    pub(in crate::balancer) fn count_has_changed(&mut self, now: Instant) {
        self.still = Some((now, now));
    }

    /// Notes that the engine's count of generated tokens was unchanged until `end`, if it was ever read.
    pub(in crate::balancer) fn count_is_unchanged(&mut self, end: Instant) {
        if let Some((_, until)) = &mut self.still {
            *until = end;
        }
    }

    /// The part of the time since `since` in which the engine is known to have generated nothing.
    pub(in crate::balancer) fn stood_still(&self, since: Instant) -> Duration {
        self.still.map_or(Duration::ZERO, |(from, until)| until.saturating_duration_since(from.max(since)))
    }

    /// Notes that the engine was asked for a token without a permit, and generated it.
    pub(in crate::balancer) fn has_proved(&mut self) {
        if let State::Suspect(suspect) = &self.state
            && !matches!(suspect.stage, Stage::Cooling { .. })
        {
            self.state = State::Well(Answers::default());
        }
    }
}

#[cfg(test)]
mod tests;
