//! The least time in which a fleet can collect the groups of a step, for the work as it was drawn.
//!
//! A simulated sample is a pure function of its identity, so the lengths and the correctness of all samples
//! are known without a rollout. The **FIFO bound** of a step is the least time in which the fleet could
//! finish as many valid groups as the step needs, in data order. It is the larger of two times: the total
//! work divided by the capacity, and the longest sample on the fastest server. The **saturation bound** is
//! the total work divided by the capacity, for steps that overlap. Both bounds count the groups that the
//! filter throws away before the last valid group, and both consider how many samples the KV caches hold
//! (module `work`). Across steps, [`Reference::claims_s`] bounds the times of a trainer's claims, for the
//! staleness that is allowed.
//!
//! # Invariants
//! A bound is never above the time of a schedule: waiting, computing again, and the ends of batches are not counted. A
//! property test runs schedules on its own model. The FIFO bound of a step holds for a schedule that begins with
//! nothing. If work of a step is of use in the next one, only the saturation bound holds for both together.

mod claims;
mod prompt;
mod work;

use std::sync::Arc;

use rolldock_simengine::ServerConfig;

use prompt::SeenBlocks;
use work::{Limit, Work};

/// Weighted sums of samples, tokens and right answers, for the mean length and accuracy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lengths {
    samples: f64,
    tokens: f64,
    right: f64,
}

impl Lengths {
    /// Adds a sample of `tokens` response tokens.
    pub fn add(&mut self, tokens: u32, right: bool) {
        self.add_weighted(tokens, right, 1.0);
    }

    /// Adds a sample of a group with this importance weight.
    pub fn add_weighted(&mut self, tokens: u32, right: bool, weight: f64) {
        self.samples += weight;
        self.tokens += weight * f64::from(tokens);
        self.right += weight * f64::from(u8::from(right));
    }

    /// Adds the samples of `other`.
    pub fn join(&mut self, other: &Self) {
        self.samples += other.samples;
        self.tokens += other.tokens;
        self.right += other.right;
    }

    /// The sum of the samples' weights, which is their number if no group has a weight.
    pub fn samples(&self) -> f64 {
        self.samples
    }

    /// The mean length in tokens; not a number without samples.
    pub fn mean_length(&self) -> f64 {
        self.tokens / self.samples
    }

    /// The share of right answers; not a number without samples.
    pub fn mean_acc(&self) -> f64 {
        self.right / self.samples
    }
}

/// The samples of a prompt at the first attempt, as they were drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnGroup {
    /// The token ids of the prompt.
    pub prompt_ids: Arc<[u32]>,
    /// The length in tokens and the correctness of each sample, cut at the token limit.
    pub samples: Vec<(u32, bool)>,
    /// Whether the filter accepts the group.
    pub is_valid: bool,
}

/// The fleet for which a bound holds.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetModel {
    /// A server of speed 1.
    pub server: ServerConfig,
    /// The relative speed of each server.
    pub speeds: Vec<f64>,
    /// Maximum number of samples that run on a server at a time.
    pub permits: u32,
}

impl FleetModel {
    fn bounds(&self, work: &Work) -> StepBounds {
        let fleet_speed: f64 = self.speeds.iter().sum();
        let best_speed = self.speeds.iter().copied().fold(0.0, f64::max);
        let saturated = |limit| work.seconds(&self.server, self.permits, limit) / fleet_speed;
        let longest_s = work.longest_s() / best_speed;
        let saturation_s = saturated(Limit::Cache);
        StepBounds {
            fifo_s: saturation_s.max(longest_s),
            fifo_without_cache_s: saturated(Limit::Places).max(longest_s),
            saturation_s,
        }
    }
}

/// The bounds of a step, in seconds. The [module](self) defines them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StepBounds {
    fifo_s: f64,
    /// The FIFO bound of servers with unlimited KV caches.
    fifo_without_cache_s: f64,
    saturation_s: f64,
}

/// The results of the draws alone: the valid groups in data order at their first attempt, and the least time
/// in which the fleet could finish them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reference {
    /// The samples of each step's valid groups.
    pub valid: Vec<Lengths>,
    /// Response tokens of all groups up to the last valid group, including filtered groups.
    pub tokens: u64,
    /// The sum of the steps' FIFO bounds, in seconds.
    pub fifo_s: f64,
    /// The sum of the steps' FIFO bounds of servers with unlimited KV caches, in seconds.
    pub fifo_without_cache_s: f64,
    /// The bound of all steps together, in seconds.
    pub saturation_s: f64,
    /// The work of each step.
    work: Vec<Work>,
}

impl Reference {
    /// The reference of `steps` steps of `target` valid groups each. It has fewer steps if `draws` ends.
    pub fn new(
        fleet: &FleetModel,
        draws: impl IntoIterator<Item = DrawnGroup>,
        target: usize,
        steps: usize,
    ) -> Self {
        let mut draws = draws.into_iter();
        let mut reference = Self::default();
        let mut seen = SeenBlocks::default();
        while reference.valid.len() < steps {
            let (mut work, mut tokens, mut valid_groups) = (Work::default(), 0, 0);
            let mut valid = Lengths::default();
            while valid_groups < target {
                let Some(group) = draws.next() else { return reference };
                if group.is_valid {
                    valid_groups += 1;
                    group.samples.iter().for_each(|(tokens, right)| valid.add(*tokens, *right));
                }
                let lengths = group.samples.iter().map(|(tokens, _)| *tokens);
                tokens += lengths.clone().map(u64::from).sum::<u64>();
                work.add(&fleet.server, seen.add(&group.prompt_ids, fleet.server.block_tokens), lengths);
            }
            reference.tokens += tokens;
            let bounds = fleet.bounds(&work);
            reference.work.push(work);
            reference.fifo_s += bounds.fifo_s;
            reference.fifo_without_cache_s += bounds.fifo_without_cache_s;
            reference.saturation_s += bounds.saturation_s;
            reference.valid.push(valid);
        }
        reference
    }

    /// The samples of the valid groups of all steps.
    pub fn all_valid(&self) -> Lengths {
        let mut all = Lengths::default();
        self.valid.iter().for_each(|step| all.join(step));
        all
    }
}

#[cfg(test)]
mod tests;
