//! The figures of a step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::{StepEnd, Totals};
use rolldock_ledger::StepState;
use serde::Serialize;

use super::accepted::{Lengths, Rewards, SlowGroup};
use super::{AcceptedGroups, FORMAT, rounded};
use crate::dispatch::bias::BiasReading;
use crate::dispatch::history::HistoryCounts;
use crate::rollout::{ServerLoad, StepCosts, StepMetrics};

/// The figures of a step that its metrics do not have.
#[derive(Debug, Default)]
pub struct Written<'a> {
    /// The number of the process that ends the step, from 1.
    pub life: u32,
    /// When the step ended, in seconds since 1970.
    pub unix_s: u64,
    /// The time for which the run waited for the trainer before the step.
    pub before: Duration,
    /// The time from the step's end until its last group was in the queue.
    pub put: Duration,
    /// The totals of the step's dispatches that ended in earlier processes.
    pub earlier: Option<&'a Totals>,
}

/// A line of `steps.jsonl`. `docs/src/figures.md` describes each name.
///
/// If a line is made from the ledger alone, figures that the ledger does not have are null.
#[derive(Debug, Serialize)]
pub struct StepFigures {
    format: u32,
    step: u64,
    end: &'static str,
    recovered: bool,
    life: Option<u32>,
    ended_unix_s: Option<u64>,
    policy_version: u64,
    bias_guard: Option<String>,
    groups: Groups,
    fates: Fates,
    filter_reasons: BTreeMap<&'static str, u64>,
    time: Option<Times>,
    sample_time: Option<SampleTimes>,
    samples: Option<Samples>,
    tokens: Option<BTreeMap<&'static str, u64>>,
    rewards: Option<Rewards>,
    lengths: Option<Lengths>,
    bias: Option<Bias>,
    history: Option<History>,
    staleness: Option<BTreeMap<u64, u64>>,
    servers: Option<BTreeMap<Arc<str>, Load>>,
    slowest: Vec<SlowGroup>,
}

#[derive(Debug, Serialize)]
struct Groups {
    target: u64,
    gen_batches: Option<u64>,
    accept_rate: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Fates {
    dispatched: u64,
    accepted: u64,
    filtered: u64,
    held: u64,
    requeued: u64,
    carried: u64,
    cancelled: u64,
    stale: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct Times {
    began_s: f64,
    before_s: f64,
    step_s: f64,
    held_trainer_s: f64,
    held_queue_s: f64,
    held_reward_s: f64,
    put_s: f64,
}

#[derive(Debug, Serialize)]
struct SampleTimes {
    permit_s: f64,
    engine_s: f64,
    reward_s: f64,
}

#[derive(Debug, Serialize)]
struct Samples {
    finished: u64,
    tokens: u64,
    tokens_per_s: f64,
    truncated: u64,
    cut_off: u64,
    new_attempts: u64,
    replays: u64,
}

#[derive(Debug, Serialize)]
struct Bias {
    length: f64,
    length_error: f64,
    accepted_tokens: f64,
    dispatched_tokens: f64,
    accuracy: Option<f64>,
    accuracy_error: Option<f64>,
    accept_rate: Option<f64>,
    accept_rate_error: Option<f64>,
}

#[derive(Debug, Serialize)]
struct History {
    prompts: u64,
    skipped: u64,
    foreseen: u64,
    expected_valid: f64,
    valid: u64,
}

#[derive(Debug, Serialize)]
struct Load {
    samples: u64,
    tokens: u64,
    cut_off: u64,
    failures: u64,
}

/// The figures of a step that has ended.
pub fn step_figures(metrics: &StepMetrics, accepted: &AcceptedGroups, written: &Written<'_>) -> StepFigures {
    let mut totals = metrics.totals.clone();
    if let Some(earlier) = written.earlier {
        totals.add(earlier);
    }
    let costs = &metrics.costs;
    let (target, gen_batches) = (metrics.counts.target as u64, metrics.counts.batches_opened as u64);
    StepFigures {
        life: Some(written.life),
        ended_unix_s: Some(written.unix_s),
        bias_guard: metrics.guarded.map(|early_stop| early_stop.to_string()),
        time: Some(times(metrics, written)),
        sample_time: (costs.samples > 0).then(|| sample_times(costs)),
        samples: Some(samples(metrics)),
        tokens: Some(metrics.tokens.buckets().into()),
        rewards: accepted.rewards(),
        lengths: accepted.lengths(),
        bias: bias(&metrics.bias),
        history: metrics.history.as_ref().map(History::from),
        staleness: Some(metrics.ages.clone()),
        servers: Some(
            costs.servers.iter().map(|(name, load)| (Arc::clone(name), Load::from(load))).collect(),
        ),
        slowest: accepted.slowest(),
        ..known_to_ledger(
            metrics.step,
            metrics.end,
            metrics.policy_version,
            &totals,
            target,
            Some(gen_batches),
        )
    }
}

/// The figures of a step whose line was not written before its process ended. They are computed from the
/// ledger.
pub fn recovered_step(step: u64, end: StepEnd, state: &StepState) -> StepFigures {
    let StepState { target, policy_version, totals, .. } = state;
    StepFigures { recovered: true, ..known_to_ledger(step, end, *policy_version, totals, *target, None) }
}

fn known_to_ledger(
    step: u64,
    end: StepEnd,
    policy_version: u64,
    totals: &Totals,
    target: u64,
    gen_batches: Option<u64>,
) -> StepFigures {
    let complete = totals.accepted + totals.filtered;
    let accept_rate = (complete > 0).then(|| rounded(totals.accepted as f64 / complete as f64));
    StepFigures {
        format: FORMAT,
        step,
        end: end.as_str(),
        recovered: false,
        life: None,
        ended_unix_s: None,
        policy_version,
        bias_guard: None,
        groups: Groups { target, gen_batches, accept_rate },
        fates: Fates::from(totals),
        filter_reasons: totals.filtered_by_reason.clone(),
        time: None,
        sample_time: None,
        samples: None,
        tokens: None,
        rewards: None,
        lengths: None,
        bias: None,
        history: None,
        staleness: None,
        servers: None,
        slowest: Vec::new(),
    }
}

impl From<&Totals> for Fates {
    fn from(totals: &Totals) -> Self {
        Self {
            dispatched: totals.dispatched,
            accepted: totals.accepted,
            filtered: totals.filtered,
            held: totals.held,
            requeued: totals.requeued,
            carried: totals.carried,
            cancelled: totals.cancelled,
            stale: totals.stale,
            failed: totals.failed,
        }
    }
}

impl From<&HistoryCounts> for History {
    fn from(counts: &HistoryCounts) -> Self {
        let HistoryCounts { prompts, skipped, foreseen, expected_valid, valid } = *counts;
        Self { prompts, skipped, foreseen, expected_valid: rounded(expected_valid), valid }
    }
}

impl From<&ServerLoad> for Load {
    fn from(load: &ServerLoad) -> Self {
        let ServerLoad { samples, tokens, cancelled, failures } = *load;
        Self { samples, tokens, cut_off: cancelled, failures }
    }
}

fn times(metrics: &StepMetrics, written: &Written<'_>) -> Times {
    let seconds = |time: Duration| rounded(time.as_secs_f64());
    let timeline = &metrics.timeline;
    Times {
        began_s: seconds(timeline.began),
        before_s: seconds(written.before),
        step_s: seconds(metrics.elapsed),
        held_trainer_s: seconds(timeline.held.trainer),
        held_queue_s: seconds(timeline.held.queue),
        held_reward_s: seconds(timeline.held.reward),
        put_s: seconds(written.put),
    }
}

fn sample_times(costs: &StepCosts) -> SampleTimes {
    let mean = |sum: Duration| rounded(sum.as_secs_f64() / costs.samples as f64);
    SampleTimes {
        permit_s: mean(costs.spent.permit),
        engine_s: mean(costs.spent.engine),
        reward_s: mean(costs.spent.reward),
    }
}

fn samples(metrics: &StepMetrics) -> Samples {
    let costs = &metrics.costs;
    Samples {
        finished: costs.samples,
        tokens: costs.tokens,
        tokens_per_s: rounded(costs.tokens as f64 / metrics.elapsed.as_secs_f64().max(1e-9)),
        truncated: costs.truncated,
        cut_off: costs.samples_cancelled,
        new_attempts: costs.attempts_extra,
        replays: costs.replays,
    }
}

fn bias(reading: &BiasReading) -> Option<Bias> {
    let BiasReading { length, accuracy, accept_rate, .. } = reading;
    let length = length.as_ref()?;
    Some(Bias {
        length: rounded(length.ratio()),
        length_error: rounded(length.standard_error),
        accepted_tokens: rounded(length.accepted),
        dispatched_tokens: rounded(length.dispatched),
        accuracy: accuracy.map(|bias| rounded(bias.ratio())),
        accuracy_error: accuracy.map(|bias| rounded(bias.standard_error)),
        accept_rate: accept_rate.map(|bias| rounded(bias.ratio())),
        accept_rate_error: accept_rate.map(|bias| rounded(bias.standard_error)),
    })
}
