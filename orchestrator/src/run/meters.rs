//! The figures of a run's steps as metrics.
//!
//! The figures of ended steps are summed up here, at the end of each step and once for each accepted group.
//! The figures of the step in progress are read from the board and the waits when the metrics are requested.
//! So the metrics cost nothing per sample.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use parking_lot::Mutex;
use rolldock_dispatch::{StepEnd, TokenTotals, Totals};
use tokio::time::Instant;

use crate::report::Stage;
use crate::rollout::{Group, Hold, Phase, RolloutView, StepMetrics};

/// Groups of this staleness or more are counted together.
const AGES_MAX: u64 = 16;

/// The figures of the bias meter, by the names of their gauges. Unknown figures are left out.
fn bias(metrics: &StepMetrics) -> Vec<(&'static str, f64)> {
    let reading = &metrics.bias;
    let figures = [
        (reading.length, "rolldock_length_bias", "rolldock_length_bias_error"),
        (reading.accuracy, "rolldock_accuracy_bias", "rolldock_accuracy_bias_error"),
        (reading.accept_rate, "rolldock_accept_rate_bias", "rolldock_accept_rate_bias_error"),
    ];
    let known = figures.into_iter().filter_map(|(bias, ratio, error)| Some((bias?, ratio, error)));
    known.flat_map(|(bias, ratio, error)| [(ratio, bias.ratio()), (error, bias.standard_error)]).collect()
}

/// Buckets whose tokens later move to another bucket. They are gauges, and the other buckets are counters.
const PENDING: [&str; 3] = ["in_flight", "held", "carried"];

/// The mean and the spread of values. The values themselves are not stored.
#[derive(Debug, Clone, Copy, Default)]
struct Spread {
    count: u64,
    mean: f64,
    /// The sum of the squared distances from the mean.
    squares: f64,
    max: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
        self.max = if self.count == 1 { value } else { self.max.max(value) };
    }

    /// The standard deviation of the values.
    fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// The accepted samples of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    rewards: Spread,
    accs: Spread,
    lengths: Spread,
}

impl Samples {
    fn add(&mut self, group: &Group) {
        for sample in &group.samples {
            self.rewards.add(f64::from(sample.reward));
            self.accs.add(f64::from(sample.acc));
            self.lengths.add(sample.response_ids.len() as f64);
        }
    }

    fn meter(&self) {
        gauge!("rolldock_reward_mean").set(self.rewards.mean);
        gauge!("rolldock_reward_std").set(self.rewards.deviation());
        gauge!("rolldock_accuracy_mean").set(self.accs.mean);
        gauge!("rolldock_response_tokens_mean").set(self.lengths.mean);
        gauge!("rolldock_response_tokens_std").set(self.lengths.deviation());
        gauge!("rolldock_response_tokens_max").set(self.lengths.max);
    }
}

/// Sums over the steps that have ended in this process of the run.
#[derive(Debug, Default)]
struct Sums {
    ends: BTreeMap<&'static str, u64>,
    finished: u64,
    truncated: u64,
    cancelled: u64,
    attempts_extra: u64,
    replays: u64,
    /// Response tokens of the whole run, including its earlier processes.
    tokens: TokenTotals,
    /// The number of accepted groups by staleness.
    ages: BTreeMap<u64, u64>,
}

impl Sums {
    fn new() -> Self {
        let ends = ENDS.into_iter().map(|end| (end, 0)).collect();
        Self { ends, ages: BTreeMap::from([(0, 0)]), ..Self::default() }
    }

    fn add(&mut self, metrics: &StepMetrics) {
        let costs = &metrics.costs;
        *self.ends.entry(end_name(metrics.end)).or_default() += 1;
        self.finished += costs.samples;
        self.truncated += costs.truncated;
        self.cancelled += costs.samples_cancelled;
        self.attempts_extra += costs.attempts_extra;
        self.replays += costs.replays;
        self.tokens = metrics.tokens_run;
        for (age, groups) in &metrics.ages {
            *self.ages.entry((*age).min(AGES_MAX)).or_default() += groups;
        }
    }

    fn meter(&self) {
        for (end, steps) in &self.ends {
            counter!("rolldock_steps_total", "end" => *end).absolute(*steps);
        }
        counter!("rolldock_samples_total", "outcome" => "finished").absolute(self.finished);
        counter!("rolldock_samples_total", "outcome" => "truncated").absolute(self.truncated);
        counter!("rolldock_samples_total", "outcome" => "cancelled").absolute(self.cancelled);
        counter!("rolldock_retries_total", "kind" => "attempt").absolute(self.attempts_extra);
        counter!("rolldock_retries_total", "kind" => "replay").absolute(self.replays);
        for (bucket, tokens) in self.tokens.buckets() {
            if PENDING.contains(&bucket) {
                gauge!("rolldock_response_tokens_pending", "bucket" => bucket).set(tokens as f64);
            } else {
                counter!("rolldock_response_tokens_total", "bucket" => bucket).absolute(tokens);
            }
        }
        for (age, groups) in &self.ages {
            counter!("rolldock_staleness_groups_total", "versions" => age.to_string()).absolute(*groups);
        }
    }
}

const ENDS: [&str; 4] = ["reached", "out_of_batches", "out_of_prompts", "interrupted"];

fn end_name(end: StepEnd) -> &'static str {
    let [reached, out_of_batches, out_of_prompts, interrupted] = ENDS;
    match end {
        StepEnd::Reached => reached,
        StepEnd::OutOfBatches => out_of_batches,
        StepEnd::OutOfPrompts => out_of_prompts,
        StepEnd::Interrupted => interrupted,
    }
}

/// The last step that has ended.
#[derive(Debug)]
struct LastStep {
    took: Duration,
    samples: Samples,
    /// The mean time of its finished samples in each phase, in seconds.
    phases: [(Phase, f64); 3],
    bias: Vec<(&'static str, f64)>,
}

impl LastStep {
    fn new(metrics: &StepMetrics, samples: Samples) -> Self {
        let (spent, finished) = (&metrics.costs.spent, metrics.costs.samples.max(1) as f64);
        let mean = |time: Duration| time.as_secs_f64() / finished;
        let phases = [
            (Phase::Permit, mean(spent.permit)),
            (Phase::Engine, mean(spent.engine)),
            (Phase::Reward, mean(spent.reward)),
        ];
        Self { took: metrics.elapsed, samples, phases, bias: bias(metrics) }
    }

    fn meter(&self) {
        gauge!("rolldock_last_step_seconds").set(self.took.as_secs_f64());
        self.samples.meter();
        for (phase, mean) in self.phases {
            gauge!("rolldock_sample_seconds_mean", "phase" => phase.as_str()).set(mean);
        }
        for (name, figure) in &self.bias {
            gauge!(*name).set(*figure);
        }
    }
}

#[derive(Debug)]
struct Inner {
    stage: Stage,
    step_began: Instant,
    /// The accepted samples of the step in progress.
    accepted: Samples,
    sums: Sums,
    last: Option<LastStep>,
}

/// The figures of a run's steps.
#[derive(Debug)]
pub(super) struct Meters(Mutex<Inner>);

impl Meters {
    pub(super) fn new() -> Self {
        // This creates the histogram, so that it is shown from the start.
        let _ = histogram!("rolldock_step_seconds");
        Self(Mutex::new(Inner {
            stage: Stage::default(),
            step_began: Instant::now(),
            accepted: Samples::default(),
            sums: Sums::new(),
            last: None,
        }))
    }

    /// The stage of the run, and the time since its step began.
    pub(super) fn stage(&self) -> (Stage, Duration) {
        let inner = self.0.lock();
        (inner.stage, inner.step_began.elapsed())
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.0.lock().stage = stage;
    }

    /// Notes that a step begins now.
    pub(super) fn begin_step(&self) {
        let mut inner = self.0.lock();
        (inner.stage, inner.step_began) = (Stage::Collecting, Instant::now());
    }

    /// Notes that a group of the step in progress is accepted.
    pub(super) fn accepted(&self, group: &Group) {
        self.0.lock().accepted.add(group);
    }

    /// Notes that a step has ended. All of its groups must have been noted before.
    pub(super) fn step_ended(&self, metrics: &StepMetrics) {
        let mut inner = self.0.lock();
        let samples = std::mem::take(&mut inner.accepted);
        inner.sums.add(metrics);
        inner.last = Some(LastStep::new(metrics, samples));
        inner.step_began = Instant::now();
        histogram!("rolldock_step_seconds").record(metrics.elapsed.as_secs_f64());
    }

    /// Sets the metrics of the steps in the current recorder.
    pub(super) fn meter(&self, view: &RolloutView) {
        let inner = self.0.lock();
        inner.sums.meter();
        gauge!("rolldock_step_age_seconds").set(inner.step_began.elapsed().as_secs_f64());
        if let Some(last) = &inner.last {
            last.meter();
        }
        drop(inner);
        meter_step(view);
    }
}

/// Sets the metrics of the step in progress, and of the fates of the whole run.
fn meter_step(view: &RolloutView) {
    let look = view.look();
    let counts = &look.counts;
    gauge!("rolldock_step").set(look.step as f64);
    gauge!("rolldock_policy_version").set(look.policy_version as f64);
    gauge!("rolldock_generation_batches").set(counts.batches_opened as f64);
    let groups = [
        ("target", counts.target),
        ("accepted", counts.accepted),
        ("valid", counts.valid),
        ("running", counts.running),
        ("queued", counts.queued),
        ("not_put", counts.not_put),
    ];
    for (state, groups) in groups {
        gauge!("rolldock_step_groups", "state" => state).set(groups as f64);
    }
    for hold in Hold::ALL {
        let is_held = if counts.hold == Some(hold) { 1.0 } else { 0.0 };
        gauge!("rolldock_held_back", "by" => hold.as_str()).set(is_held);
    }
    for phase in Phase::ALL {
        let oldest = look.oldest_waits.iter().find(|wait| wait.phase == phase);
        let waits = look.waiting.get(&phase).copied().unwrap_or_default();
        gauge!("rolldock_waits", "phase" => phase.as_str()).set(waits as f64);
        gauge!("rolldock_oldest_wait_seconds", "phase" => phase.as_str())
            .set(oldest.map_or(0.0, |wait| wait.age_s));
    }
    let oldest = look.oldest.and_then(|oldest| oldest.age_s);
    gauge!("rolldock_oldest_dispatch_seconds").set(oldest.unwrap_or_default());
    meter_fates(&view.run_totals());
}

fn meter_fates(totals: &Totals) {
    counter!("rolldock_dispatches_total").absolute(totals.dispatched);
    gauge!("rolldock_dispatches_in_flight").set(totals.in_flight as f64);
    let fates = [
        ("accepted", totals.accepted),
        ("filtered", totals.filtered),
        ("stale", totals.stale),
        ("cancelled", totals.cancelled),
        ("requeued", totals.requeued),
        ("carried", totals.carried),
        ("held", totals.held),
        ("failed", totals.failed),
    ];
    for (fate, dispatches) in fates {
        counter!("rolldock_fates_total", "fate" => fate).absolute(dispatches);
    }
    for (reason, dispatches) in &totals.filtered_by_reason {
        counter!("rolldock_filtered_total", "reason" => *reason).absolute(*dispatches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_all_values() {
        let values = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0];
        let mut spread = Spread::default();
        values.into_iter().for_each(|value| spread.add(value));
        let mean = values.iter().sum::<f64>() / 6.0;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        assert!((spread.mean - mean).abs() < 1e-12);
        assert!((spread.deviation() - (squares / 6.0).sqrt()).abs() < 1e-12);
        assert_eq!(spread.max, 9.0);
        let mut negative = Spread::default();
        negative.add(-2.0);
        assert_eq!((negative.max, negative.deviation()), (-2.0, 0.0));
    }
}
