//! The sums of a run's groups, the prior that is fitted to them, and the posterior of a prompt.

use super::{GradedGroup, PromptRecord};

/// The fewest groups to which a prior is fitted.
const GROUPS_MIN: u64 = 64;
/// The least share of agreeing groups for which a prior of right samples is fitted. A group is mixed if it
/// has right and wrong samples. A group agrees if it is both valid and mixed, or neither valid nor mixed.
/// With a smaller share of agreeing groups, the counts of right samples do not predict which groups will be
/// valid.
const AGREEING_MIN: f64 = 0.98;
/// The weight of the prior of valid groups, in groups.
const GROUP_PRIOR: f64 = 2.0;
/// The bounds of the correlation `r` of two samples of a prompt. They keep the prior proper.
const CORRELATION: (f64, f64) = (0.01, 0.95);
/// The unit in which shares are summed. Integers add up to the same sum in any order.
const SHARE_UNIT: f64 = (1_u64 << 24) as f64;

/// Sums over groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Population {
    groups: u64,
    valid: u64,
    /// Groups that are valid exactly if they have right and wrong samples.
    agreeing: u64,
    samples: u64,
    tokens: u64,
    /// The sums of the groups' shares of right samples, and of their squares, in [`SHARE_UNIT`].
    share: u64,
    share_squared: u64,
}

/// A Beta distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Beta {
    right: f64,
    wrong: f64,
}

impl Beta {
    const JEFFREYS: Self = Self { right: 0.5, wrong: 0.5 };

    /// The probability that `samples` samples are neither all right nor all wrong.
    fn chance_to_differ(self, samples: u32) -> f64 {
        let all = |of: f64| -> f64 {
            (0..samples)
                .map(|drawn| (of + f64::from(drawn)) / (self.right + self.wrong + f64::from(drawn)))
                .product()
        };
        1.0 - all(self.right) - all(self.wrong)
    }
}

impl Population {
    /// The index of the sum to which a group with this number belongs. It is the number's bit length.
    pub(super) fn index(number: u64) -> usize {
        (u64::BITS - number.leading_zeros()) as usize
    }

    /// The sums of the groups below the greatest power of two that is at most half of `number`.
    pub(super) fn before(all: &[Self], number: u64) -> Self {
        let mut before = Self::default();
        all.iter().take(Self::index(number / 2)).for_each(|population| before.join(population));
        before
    }

    pub(super) fn add(&mut self, group: &GradedGroup) {
        let samples = f64::from(group.figures.samples);
        let share = (group.figures.right / samples.max(1.0)).clamp(0.0, 1.0);
        let differs = share > 0.0 && group.figures.right < samples;
        self.join(&Self {
            groups: 1,
            valid: u64::from(group.is_valid),
            agreeing: u64::from(differs == group.is_valid),
            samples: u64::from(group.figures.samples),
            tokens: group.figures.tokens,
            share: (share * SHARE_UNIT) as u64,
            share_squared: (share * share * SHARE_UNIT) as u64,
        });
    }

    fn join(&mut self, other: &Self) {
        let Self { groups, valid, agreeing, samples, tokens, share, share_squared } = other;
        self.groups += groups;
        self.valid += valid;
        self.agreeing += agreeing;
        self.samples += samples;
        self.tokens += tokens;
        self.share += share;
        self.share_squared += share_squared;
    }

    /// Mean length of samples in tokens; `None` if there are too few groups.
    pub(super) fn mean_length(&self) -> Option<f64> {
        (self.groups >= GROUPS_MIN && self.tokens > 0)
            .then(|| self.tokens as f64 / self.samples.max(1) as f64)
    }

    /// The probability that the next group of a prompt is valid.
    pub(super) fn chance_of_valid(&self, record: &PromptRecord, samples: u32) -> f64 {
        let is_fitted = self.groups >= GROUPS_MIN;
        if is_fitted && (self.agreeing as f64) < AGREEING_MIN * self.groups as f64 {
            let mean = self.valid as f64 / self.groups as f64;
            let (groups, valid) = (f64::from(record.groups), f64::from(record.valid));
            return (GROUP_PRIOR * mean + valid) / (GROUP_PRIOR + groups);
        }
        let prior = if is_fitted { self.fitted() } else { Beta::JEFFREYS };
        let (right, all) = (f64::from(record.right), f64::from(record.samples));
        let posterior = Beta { right: prior.right + right, wrong: prior.wrong + (all - right).max(0.0) };
        posterior.chance_to_differ(samples)
    }

    /// The prior with the mean and the variance of the groups' shares of right samples.
    fn fitted(&self) -> Beta {
        let groups = self.groups as f64;
        let samples = self.samples as f64 / groups;
        if samples <= 1.0 {
            return Beta::JEFFREYS;
        }
        // At least half a sample counts as right, and half a sample as wrong.
        let least = 0.5 / self.samples as f64;
        let mean = self.share as f64 / SHARE_UNIT / groups;
        let variance = (self.share_squared as f64 / SHARE_UNIT / groups - mean * mean).max(0.0);
        let mean = mean.clamp(least, 1.0 - least);
        let of_chance = 1.0 / samples;
        let correlation = (variance / (mean * (1.0 - mean)) - of_chance) / (1.0 - of_chance);
        let strength = 1.0 / correlation.clamp(CORRELATION.0, CORRELATION.1) - 1.0;
        Beta { right: mean * strength, wrong: (1.0 - mean) * strength }
    }
}

#[cfg(test)]
mod tests {
    use super::{Beta, Population};
    use crate::PromptUid;
    use crate::bias::GroupFigures;
    use crate::history::GradedGroup;

    fn group(number: u64, right: f64) -> GradedGroup {
        let figures = GroupFigures { samples: 16, tokens: 160, right };
        let is_valid = right > 0.0 && right < 16.0;
        GradedGroup { prompt_uid: PromptUid(number), visit: 0, number, figures, is_valid }
    }

    #[test]
    fn the_chance_to_differ_is_that_of_the_beta_binomial() {
        // Beta(1, 1) gives each of the 17 counts of right samples the same chance. All samples are alike in 2
        // of them.
        let uniform = Beta { right: 1.0, wrong: 1.0 };
        assert!((uniform.chance_to_differ(16) - 15.0 / 17.0).abs() < 1e-12);
        // Two samples differ with probability 2 E[q (1 - q)] = 2 a b / ((a + b) (a + b + 1)).
        let skewed = Beta { right: 3.0, wrong: 0.5 };
        assert!((skewed.chance_to_differ(2) - 2.0 * 1.5 / (3.5 * 4.5)).abs() < 1e-12);
        assert!(skewed.chance_to_differ(1).abs() < 1e-12, "a single sample cannot differ");
    }

    #[test]
    fn the_prior_of_equally_likely_counts_is_uniform() {
        let mut run = Population::default();
        (0..17 * 40).for_each(|number| run.add(&group(number, (number % 17) as f64)));
        let Beta { right, wrong } = run.fitted();
        assert!((right - 1.0).abs() < 0.01 && (wrong - 1.0).abs() < 0.01, "{right} {wrong}");
    }

    #[test]
    fn a_run_whose_groups_are_all_alike_has_a_proper_prior() {
        for right in [0.0, 8.0, 16.0] {
            let mut run = Population::default();
            (0..100).for_each(|number| run.add(&group(number, right)));
            let prior = run.fitted();
            assert!(prior.right > 0.0 && prior.wrong > 0.0 && prior.right.is_finite(), "{prior:?}");
        }
    }

    #[test]
    fn the_prior_has_the_groups_below_half_of_the_number() {
        let mut all = [Population::default(); 65];
        for number in 0..1000 {
            all[Population::index(number)].add(&group(number, 8.0));
        }
        let groups =
            [0, 1, 2, 3, 4, 999, 1000, 1024, u64::MAX].map(|number| Population::before(&all, number).groups);
        assert_eq!(groups, [0, 0, 1, 1, 2, 256, 256, 512, 1000]);
    }
}
