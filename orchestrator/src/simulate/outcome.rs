//! The results of a simulation, and their comparison with the bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use rolldock_dispatch::TokenTotals;
use rolldock_simulate::bounds::{Lengths, Reference};
use rolldock_simulate::ratio::Ratio;
use serde::Serialize;

use crate::report::figures::KeptTimeline;
use crate::rollout::{Group, GroupWeights, StepMetrics, StepTimeline};

/// The times of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// The mean time of a step in seconds: from claim to claim if there is a trainer, and otherwise from the
    /// start of the step to its end.
    pub step_s: f64,
    /// The mean time of a step's rollout in seconds; `None` if steps overlap.
    pub rollout_s: Option<f64>,
    /// The virtual time of the whole simulation, in seconds.
    pub total_s: f64,
}

/// The results of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Number of steps that were collected. It is smaller than the requested number if the data ended.
    pub steps: u64,
    /// The times of a step and of the whole simulation.
    pub times: Times,
    /// Accepted groups that a gate in `filter.keep_if_short` rejected, and that were accepted because their step was
    /// short. If there are any, the bounds and the biases are `None`: the reference groups depend on the number of
    /// prompts that each step had, and this number does not follow from the draws alone.
    pub kept_if_short: u64,
    /// The mean FIFO bound of a step in seconds; `None` if the data ended within the first step.
    pub fifo_bound_s: Option<f64>,
    /// The mean saturation bound of a step in seconds.
    pub saturation_bound_s: Option<f64>,
    /// Response tokens that all servers generated, per second.
    pub tokens_per_s: f64,
    /// The share of generated tokens that were thrown away: cut off, too old, or of failed attempts.
    pub waste: f64,
    /// The share of generated tokens that belong to groups that the filter rejected.
    pub filtered: f64,
    /// The mean length of the samples of accepted groups, divided by the mean length of the samples of the
    /// reference groups. The reference of a step has the same number of groups: the first valid groups in
    /// data order.
    pub length_bias: Option<Ratio>,
    /// The share of right answers in the accepted groups, divided by the share in the reference groups of
    /// `length_bias`.
    pub accuracy_bias: Option<Ratio>,
    /// How many groups with equal weights are worth as much as an accepted group: the effective groups, divided by the
    /// accepted groups. `None` if no group has an importance weight.
    pub effective_groups: Option<f64>,
    /// Claimed groups by staleness. Without a trainer all groups have the staleness 0.
    pub staleness: BTreeMap<u64, u64>,
    /// Dispatches that were given up because they had become too old.
    pub stale: u64,
    /// Sequences that servers preempted because their KV cache was full.
    pub preemptions: u64,
    /// The requests of the last step.
    #[serde(skip)]
    pub requests: Option<KeptTimeline>,
}

impl Outcome {
    /// The rollout time of a step divided by the FIFO bound; `None` if either of them is unknown.
    pub fn over_fifo(&self) -> Option<f64> {
        Some(self.times.rollout_s? / self.fifo_bound_s?)
    }

    /// The step time divided by the saturation bound; `None` if the bound is unknown.
    pub fn over_saturation(&self) -> Option<f64> {
        Some(self.times.step_s / self.saturation_bound_s?)
    }

    /// The mean staleness of claimed groups.
    pub fn mean_staleness(&self) -> f64 {
        let groups: u64 = self.staleness.values().sum();
        let sum: u64 = self.staleness.iter().map(|(age, groups)| age * groups).sum();
        sum as f64 / groups.max(1) as f64
    }
}

/// The accepted groups of a simulation, step by step.
#[derive(Debug)]
pub(super) struct Accepted {
    target: usize,
    groups: usize,
    /// The groups that were accepted because their step was short.
    pub(super) kept_if_short: u64,
    steps: Vec<Lengths>,
    weights: GroupWeights,
    is_weighted: bool,
    /// The times of the requests of the last step that has ended.
    last: Option<(u64, Arc<StepTimeline>)>,
}

impl Accepted {
    pub(super) fn new(target: usize) -> Self {
        Self {
            target,
            groups: 0,
            kept_if_short: 0,
            steps: Vec::new(),
            weights: GroupWeights::default(),
            is_weighted: false,
            last: None,
        }
    }

    /// Adds a group. Every `target` groups form a step.
    pub(super) fn add(&mut self, group: &Group) {
        if self.groups.is_multiple_of(self.target) {
            self.steps.push(Lengths::default());
        }
        self.groups += 1;
        self.kept_if_short += u64::from(group.set_aside.is_some());
        let weight = group.importance_weight();
        self.is_weighted |= weight.is_some();
        let weight = weight.unwrap_or(1.0);
        self.weights.add(weight);
        let Some(step) = self.steps.last_mut() else { return };
        for sample in &group.samples {
            step.add_weighted(sample.response_ids.len() as u32, sample.acc == 1.0, f64::from(weight));
        }
    }

    pub(super) fn step_ended(&mut self, metrics: &StepMetrics) {
        self.last = Some((metrics.step, Arc::clone(&metrics.timeline)));
    }

    /// Number of whole steps.
    pub(super) fn steps(&self) -> u64 {
        (self.groups / self.target) as u64
    }

    fn bias(&self, reference: &Reference, mean: impl Fn(&Lengths) -> f64) -> Option<Ratio> {
        let pairs: Vec<(Lengths, Lengths)> =
            self.steps.iter().copied().zip(reference.valid.iter().copied()).collect();
        Ratio::new(&pairs, mean)
    }
}

/// The counts of a simulation at its end.
pub(super) struct Counted {
    pub(super) accepted: Accepted,
    pub(super) times: Times,
    pub(super) staleness: BTreeMap<u64, u64>,
    pub(super) stale: u64,
    pub(super) tokens: TokenTotals,
    pub(super) preemptions: u64,
}

impl Counted {
    pub(super) fn outcome(self, reference: &Reference) -> Outcome {
        let Self { accepted, times, staleness, stale, tokens, preemptions } = self;
        let known = reference.valid.len() as f64;
        let mean = |sum: f64| (known > 0.0).then(|| sum / known);
        let generated = tokens.generated.max(1) as f64;
        Outcome {
            steps: accepted.steps(),
            times,
            kept_if_short: accepted.kept_if_short,
            fifo_bound_s: mean(reference.fifo_s),
            saturation_bound_s: mean(reference.saturation_s),
            tokens_per_s: tokens.generated as f64 / times.total_s.max(1e-9),
            waste: (tokens.wasted.total() + tokens.stale + tokens.hedges) as f64 / generated,
            filtered: tokens.filtered as f64 / generated,
            length_bias: accepted.bias(reference, Lengths::mean_length),
            accuracy_bias: accepted.bias(reference, Lengths::mean_acc),
            effective_groups: accepted.is_weighted.then(|| accepted.weights.effective_share()),
            staleness,
            stale,
            preemptions,
            requests: accepted.last.map(|(step, timeline)| KeptTimeline::new(step, &timeline)),
        }
    }
}
