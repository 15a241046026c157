//! The figures of a validation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::accepted::{Lengths, Rewards};
use super::{AcceptedGroups, FORMAT, rounded};
use crate::rollout::{Group, RolloutOutput};

/// A line of `validation.jsonl`. `docs/src/figures.md` describes each name.
#[derive(Debug, Serialize)]
pub struct ValidationFigures {
    format: u32,
    step: u64,
    life: u32,
    ended_unix_s: u64,
    policy_version: u64,
    seconds: f64,
    samples_per_prompt: u32,
    prompts: u64,
    failed: u64,
    mean: Option<f64>,
    best: Option<f64>,
    truncated: u64,
    rewards: Option<Rewards>,
    lengths: Option<Lengths>,
    sources: BTreeMap<Arc<str>, Source>,
}

/// The results of the prompts of one data source.
#[derive(Debug, Serialize)]
struct Source {
    prompts: u64,
    mean: f64,
    best: f64,
}

/// Sums over prompts.
#[derive(Debug, Default)]
struct Sums {
    prompts: u64,
    samples: u64,
    accs: f64,
    solved: u64,
}

impl Sums {
    fn add(&mut self, group: &Group) {
        self.prompts += 1;
        self.samples += group.samples.len() as u64;
        self.accs += group.samples.iter().map(|sample| f64::from(sample.acc)).sum::<f64>();
        self.solved += u64::from(group.samples.iter().any(|sample| sample.acc > 0.0));
    }

    fn mean(&self) -> f64 {
        rounded(self.accs / self.samples.max(1) as f64)
    }

    fn best(&self) -> f64 {
        rounded(self.solved as f64 / self.prompts.max(1) as f64)
    }
}

/// The figures of the validation after `step`, which ended at `unix_s` in the run's process number `life`.
pub fn validation_figures(
    step: u64,
    samples_per_prompt: u32,
    output: &RolloutOutput,
    life: u32,
    unix_s: u64,
) -> ValidationFigures {
    let mut all = Sums::default();
    let mut by_source: BTreeMap<Arc<str>, Sums> = BTreeMap::new();
    let mut accepted = AcceptedGroups::default();
    for group in &output.groups {
        all.add(group);
        by_source.entry(Arc::clone(&group.prompt.source)).or_default().add(group);
        accepted.add(group);
    }
    let metrics = &output.metrics;
    let source = |sums: Sums| Source { prompts: sums.prompts, mean: sums.mean(), best: sums.best() };
    ValidationFigures {
        format: FORMAT,
        step,
        life,
        ended_unix_s: unix_s,
        policy_version: metrics.policy_version,
        seconds: rounded(metrics.elapsed.as_secs_f64()),
        samples_per_prompt,
        prompts: all.prompts,
        failed: metrics.totals.failed,
        mean: (all.samples > 0).then(|| all.mean()),
        best: (all.prompts > 0).then(|| all.best()),
        truncated: metrics.costs.truncated,
        rewards: accepted.rewards(),
        lengths: accepted.lengths(),
        sources: by_source.into_iter().map(|(name, sums)| (name, source(sums))).collect(),
    }
}
