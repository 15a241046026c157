//! The breaker against a model of it, over random sequences of events.
//!
//! The breaker has states. The model has flags and a list of answers instead, and applies one rule after the
//! other.

use proptest::prelude::*;

use super::*;

/// The history of a server, as flat facts.
#[derive(Debug)]
struct Model {
    is_dead: bool,
    is_suspect: bool,
    reason: Option<String>,
    /// Answers since the last change of the server's health; true is a fault.
    answers: Vec<bool>,
    relapses: u32,
    cools_until: Option<Instant>,
    retry_after_until: Option<Instant>,
    /// The trial's permit, begin and end.
    trial: Option<(u64, Instant, Instant)>,
    permits_before: u64,
    /// The penalty after the last answer of backpressure, and the time of that answer.
    penalty: Option<(f64, Instant)>,
}

impl Model {
    fn new() -> Self {
        Self {
            is_dead: false,
            is_suspect: false,
            reason: None,
            answers: Vec::new(),
            relapses: 0,
            cools_until: None,
            retry_after_until: None,
            trial: None,
            permits_before: 0,
            penalty: None,
        }
    }

    fn is_open(&self) -> bool {
        let is_blocked =
            self.cools_until.is_some() || self.retry_after_until.is_some() || self.trial.is_some();
        !self.is_dead && !is_blocked
    }

    fn health(&self) -> Health {
        match (self.is_dead, self.is_suspect) {
            (true, _) => Health::Dead,
            (false, true) => Health::Probing,
            (false, false) => Health::Well,
        }
    }

    fn settle(&mut self, now: Instant) -> Option<Instant> {
        let is_ahead = |until: &Instant| *until > now;
        self.cools_until = self.cools_until.filter(is_ahead);
        self.retry_after_until = self.retry_after_until.filter(is_ahead);
        self.trial = self.trial.filter(|(_, _, until)| is_ahead(until));
        let ends = [self.cools_until, self.retry_after_until, self.trial.map(|(_, _, until)| until)];
        ends.into_iter().flatten().min()
    }

    fn penalty(&self, now: Instant, config: &BalancerConfig) -> f64 {
        let Some((penalty, since)) = self.penalty else { return 0.0 };
        let half_lives = (now - since).as_secs_f64() * 1000.0 / config.penalty_half_life_ms as f64;
        let left = penalty * 0.5_f64.powf(half_lives);
        if left < PENALTY_MIN { 0.0 } else { left }
    }

    fn grant(&mut self, permit: u64, now: Instant, config: &BalancerConfig) {
        if self.is_suspect {
            self.trial = Some((permit, now, now + Duration::from_millis(config.trial_ms_max)));
        }
    }

    fn relapse(&mut self, reason: &str, now: Instant, config: &BalancerConfig) {
        let doubled = config.cooldown_ms_min.saturating_mul(1 << self.relapses.min(32));
        self.cools_until = Some(now + Duration::from_millis(doubled.min(config.cooldown_ms_max)));
        self.relapses += 1;
        self.reason = Some(reason.to_owned());
        self.trial = None;
        self.answers.clear();
    }

    fn recover(&mut self) {
        (self.is_suspect, self.reason, self.trial) = (false, None, None);
    }

    fn record(
        &mut self,
        outcome: &Outcome,
        (permit, permits): (u64, u64),
        now: Instant,
        config: &BalancerConfig,
    ) -> Option<String> {
        if self.trial.is_some_and(|(on_trial, ..)| on_trial == permit) {
            self.trial = None;
        }
        if let Outcome::Backpressure { retry_after } = outcome {
            self.penalty = Some(((self.penalty(now, config) + PENALTY).min(PENALTY_MAX), now));
            let wait = retry_after.map(|wait| wait.min(Duration::from_millis(config.retry_after_ms_max)));
            self.retry_after_until = self.retry_after_until.max(wait.map(|wait| now + wait));
        }
        let is_fault = match outcome {
            Outcome::Success { .. } => false,
            Outcome::Fault => true,
            _ => return None,
        };
        if self.is_suspect && permit <= self.permits_before {
            return None;
        }
        self.answers.push(is_fault);
        if !is_fault {
            if self.is_suspect {
                self.recover();
            } else {
                self.relapses = 0;
            }
            return None;
        }
        let in_row = self.answers.iter().rev().take_while(|is_fault| **is_fault).count();
        let window = config.window.clamp(1, 64) as usize;
        let last = &self.answers[self.answers.len().saturating_sub(window)..];
        let faults = last.iter().filter(|is_fault| **is_fault).count();
        let reason = if self.is_suspect {
            "a fault on trial".to_owned()
        } else if in_row >= config.faults_max as usize {
            format!("{in_row} faults in a row")
        } else if last.len() == window && faults >= config.window_faults_max.max(1) as usize {
            format!("{faults} faults among the last {window} answers")
        } else {
            return None;
        };
        self.relapse(&reason, now, config);
        (self.is_suspect, self.permits_before) = (true, permits);
        Some(reason)
    }

    fn die(&mut self, now: Instant, config: &BalancerConfig) {
        self.relapse("test", now, config);
        (self.is_dead, self.is_suspect, self.retry_after_until) = (true, false, None);
    }

    fn revive(&mut self, permits: u64) {
        (self.is_dead, self.is_suspect, self.reason) = (false, true, None);
        (self.cools_until, self.trial, self.penalty) = (None, None, None);
        self.permits_before = permits;
        self.answers.clear();
    }

    fn has_generated(&mut self, since: Instant) {
        if self.trial.is_some_and(|(_, begun, _)| begun < since) {
            self.recover();
        }
    }

    fn has_proved(&mut self) {
        if self.is_suspect && self.cools_until.is_none() {
            self.recover();
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// Ask for a permit.
    Grant,
    /// End the request with this index and this outcome.
    End(usize, Outcome),
    Wait(u64),
    Settle,
    Die,
    Revive,
    /// The engine has generated tokens since this many milliseconds ago.
    HasGenerated(u64),
    HasProved,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let retry_after = proptest::option::of((0_u64..20_000).prop_map(Duration::from_millis));
    prop_oneof![
        4 => Just(Outcome::Success { tokens: 1 }),
        5 => Just(Outcome::Fault),
        1 => Just(Outcome::ClientError),
        1 => Just(Outcome::Cancelled),
        1 => retry_after.prop_map(|retry_after| Outcome::Backpressure { retry_after }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Grant),
        8 => (0..8_usize, outcome()).prop_map(|(which, outcome)| Event::End(which, outcome)),
        4 => (0..4000_u64).prop_map(Event::Wait),
        2 => Just(Event::Settle),
        1 => Just(Event::Die),
        2 => Just(Event::Revive),
        1 => (0..2000_u64).prop_map(Event::HasGenerated),
        1 => Just(Event::HasProved),
    ]
}

/// Plays events on a breaker and on its model, as a server plays them: permits are granted while the breaker
/// is open, and a death ends all permits.
fn play(events: &[Event], config: &BalancerConfig) -> Result<(), TestCaseError> {
    let begin = Instant::now();
    let mut now = begin;
    let (mut breaker, mut model) = (Breaker::new(begin), Model::new());
    let (mut permits, mut out) = (0, Vec::new());
    for event in events {
        match event {
            Event::Grant => {
                prop_assert_eq!(breaker.settle(now), model.settle(now));
                prop_assert_eq!(breaker.is_open(), model.is_open());
                if breaker.is_open() {
                    permits += 1;
                    out.push(permits);
                    breaker.granted(permits, now, config);
                    model.grant(permits, now, config);
                }
            }
            Event::End(_, _) if out.is_empty() => {}
            Event::End(which, outcome) => {
                let permit = out.swap_remove(which % out.len());
                let expected = model.record(outcome, (permit, permits), now, config);
                let found = breaker.record(outcome, (permit, permits), now, config);
                prop_assert_eq!(found.as_deref(), expected.as_deref());
            }
            Event::Wait(ms) => now += Duration::from_millis(*ms),
            Event::Settle => prop_assert_eq!(breaker.settle(now), model.settle(now)),
            Event::Die if model.is_dead => {}
            Event::Die => {
                out.clear();
                breaker.die("test".into(), now, config);
                model.die(now, config);
            }
            Event::Revive if !model.is_dead => {}
            Event::Revive => {
                breaker.revive(permits);
                model.revive(permits);
            }
            Event::HasGenerated(ms) => {
                let since = now.checked_sub(Duration::from_millis(*ms)).unwrap_or(begin);
                breaker.has_generated(since);
                model.has_generated(since);
            }
            Event::HasProved => {
                breaker.has_proved();
                model.has_proved();
            }
        }
        prop_assert_eq!(breaker.health(), model.health());
        prop_assert_eq!(breaker.reason().map(|reason| &**reason), model.reason.as_deref());
        prop_assert_eq!(breaker.is_open(), model.is_open());
        prop_assert_eq!(breaker.is_cooling(), model.cools_until.is_some());
        let left = breaker.penalty(now, config.penalty_half_life());
        prop_assert!((left - model.penalty(now, config)).abs() < 2.0 * PENALTY_MIN);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_breaker_does_what_its_model_does(
        events in proptest::collection::vec(event(), 1..200),
        faults_max in 1..5_u32,
        window in 0..70_u32,
        window_faults_max in 0..8_u32,
    ) {
        let config = BalancerConfig {
            faults_max,
            window,
            window_faults_max,
            cooldown_ms_min: 500,
            cooldown_ms_max: 5_000,
            trial_ms_max: 2_000,
            retry_after_ms_max: 10_000,
            ..BalancerConfig::default()
        };
        play(&events, &config)?;
    }
}
