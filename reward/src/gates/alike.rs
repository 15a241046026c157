//! What the finished samples of an unfinished group already prove about the `variance` gates.
//!
//! The spread of a group's values only grows with further samples. So a group whose finished samples differ
//! by more than the tolerance of every `variance` gate passes these gates, whatever its other samples are.
//!
//! # Invariants
//! After the last sample of a group, [`Gates::differ`] is exactly the joint decision of the `variance` gates.

use super::Gates;
use crate::FilterMetric;

/// The smallest and the largest value so far.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    least: f32,
    most: f32,
    /// Whether a value was not a number. Such a value differs from every other value.
    has_nan: bool,
}

impl Range {
    const EMPTY: Self = Self { least: f32::INFINITY, most: f32::NEG_INFINITY, has_nan: false };

    fn add(&mut self, value: f32) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
        self.has_nan |= value.is_nan();
    }
}

/// The values of a group's finished samples, as far as the `variance` gates compare them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    samples: u32,
    accs: Range,
    rewards: Range,
    first_is_right: bool,
}

impl Default for Finished {
    fn default() -> Self {
        Self { samples: 0, accs: Range::EMPTY, rewards: Range::EMPTY, first_is_right: false }
    }
}

impl Finished {
    /// Adds a finished sample with its accuracy and its reward, shaping included.
    pub fn add(&mut self, acc: f32, reward: f32) {
        if self.samples == 0 {
            self.first_is_right = acc > 0.0;
        }
        self.samples += 1;
        self.accs.add(acc);
        self.rewards.add(reward);
    }

    /// Number of finished samples.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Whether the sample that finished first has an accuracy above 0. It is `false` before the first sample.
    pub fn first_is_right(&self) -> bool {
        self.first_is_right
    }

    /// Whether the values of a metric differ by more than `tolerance`. A value that is not a number differs
    /// from every other value.
    fn differ(&self, metric: FilterMetric, tolerance: f64) -> bool {
        let Range { least, most, has_nan } = match metric {
            FilterMetric::Acc => self.accs,
            FilterMetric::Reward => self.rewards,
        };
        if has_nan {
            return self.samples > 1;
        }
        self.samples > 1 && least < most && f64::from(most) - f64::from(least) > tolerance
    }
}

impl Gates {
    /// Whether the finished samples already pass every `variance` gate. It is `true` without such a gate.
    pub fn differ(&self, finished: &Finished) -> bool {
        self.variances.iter().all(|(metric, tolerance)| finished.differ(*metric, *tolerance))
    }

    /// Whether there are only `variance` gates, so that a group passes as soon as its samples
    /// [differ](Self::differ).
    pub fn only_compare(&self) -> bool {
        self.variances.len() == self.all().count()
    }
}
