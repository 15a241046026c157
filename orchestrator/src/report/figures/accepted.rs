//! The figures of a step's accepted groups, collected while the groups are put into the queue.

use std::time::Duration;

use serde::Serialize;

use super::rounded;
use crate::rollout::{Group, Sample};

/// The number of slowest groups of a step that are listed.
const SLOWEST: usize = 8;

/// The accepted groups of a step: the rewards and lengths of their samples, and the slowest groups.
///
/// It stores eight bytes for each sample, so the step's target bounds its memory.
#[derive(Debug, Default)]
pub struct AcceptedGroups {
    rewards: Vec<f32>,
    lengths: Vec<u32>,
    scores: f64,
    accs: f64,
    prompt_tokens: u64,
    slowest: Vec<SlowGroup>,
}

/// The rewards of accepted samples. A step without accepted samples has no such figures.
#[derive(Debug, Serialize)]
pub(super) struct Rewards {
    mean: f64,
    std: f64,
    min: f64,
    max: f64,
    score_mean: f64,
    acc_mean: f64,
}

/// The response lengths of accepted samples, in tokens.
#[derive(Debug, Serialize)]
pub(super) struct Lengths {
    mean: f64,
    std: f64,
    min: u32,
    p50: u32,
    p90: u32,
    p99: u32,
    max: u32,
    prompt_mean: f64,
}

/// A group, with its slowest sample.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SlowGroup {
    dispatch: u64,
    number: u64,
    prompt_uid: String,
    row: u64,
    /// The time from its dispatch until it was complete, in seconds.
    seconds: f64,
    tokens: u64,
    server: String,
    permit_s: f64,
    engine_s: f64,
    reward_s: f64,
}

impl AcceptedGroups {
    /// Adds a group.
    pub fn add(&mut self, group: &Group) {
        for sample in &group.samples {
            self.rewards.push(sample.reward);
            self.lengths.push(u32::try_from(sample.response_ids.len()).unwrap_or(u32::MAX));
            self.scores += f64::from(sample.score);
            self.accs += f64::from(sample.acc);
            self.prompt_tokens += group.prompt.ids.len() as u64;
        }
        self.slowest.extend(slow_group(group));
        self.slowest.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        self.slowest.truncate(SLOWEST);
    }

    pub(super) fn rewards(&self) -> Option<Rewards> {
        let values: Vec<f64> = self.rewards.iter().map(|reward| f64::from(*reward)).collect();
        let (mean, std) = mean_and_std(&values)?;
        let samples = values.len() as f64;
        Some(Rewards {
            mean: rounded(mean),
            std: rounded(std),
            min: rounded(values.iter().copied().fold(f64::INFINITY, f64::min)),
            max: rounded(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            score_mean: rounded(self.scores / samples),
            acc_mean: rounded(self.accs / samples),
        })
    }

    pub(super) fn lengths(&self) -> Option<Lengths> {
        let mut sorted = self.lengths.clone();
        sorted.sort_unstable();
        let values: Vec<f64> = sorted.iter().map(|length| f64::from(*length)).collect();
        let (mean, std) = mean_and_std(&values)?;
        Some(Lengths {
            mean: rounded(mean),
            std: rounded(std),
            min: percentile(&sorted, 0),
            p50: percentile(&sorted, 50),
            p90: percentile(&sorted, 90),
            p99: percentile(&sorted, 99),
            max: percentile(&sorted, 100),
            prompt_mean: rounded(self.prompt_tokens as f64 / values.len() as f64),
        })
    }

    pub(super) fn slowest(&self) -> Vec<SlowGroup> {
        self.slowest.clone()
    }
}

fn slow_group(group: &Group) -> Option<SlowGroup> {
    let time = |sample: &&Sample| sample.spent.permit + sample.spent.engine + sample.spent.reward;
    let slowest = group.samples.iter().max_by_key(time)?;
    let seconds = |time: Duration| rounded(time.as_secs_f64());
    Some(SlowGroup {
        dispatch: group.dispatch.0,
        number: group.number,
        prompt_uid: group.prompt.uid.to_string(),
        row: group.prompt.row,
        seconds: seconds(group.ended_at.saturating_sub(group.dispatched_at)),
        tokens: group.tokens(),
        server: slowest.server.to_string(),
        permit_s: seconds(slowest.spent.permit),
        engine_s: seconds(slowest.spent.engine),
        reward_s: seconds(slowest.spent.reward),
    })
}

/// The mean and the standard deviation of all values; `None` without values.
pub(super) fn mean_and_std(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, (squares / count).sqrt()))
}

/// The nearest-rank percentile of the sorted values; 0 without values.
fn percentile(sorted: &[u32], percent: usize) -> u32 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}
