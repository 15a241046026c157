//! How many of the running groups will be valid: the estimate by which prompts are launched.
//!
//! The samples of a group finish one after the other. As soon as two of them differ in the value that the
//! filter compares, the group is proven valid. A group whose `k` finished samples are alike can still become
//! valid, with a chance that falls with `k`. When the last sample is alike too, the chance is 0.
//!
//! # The model
//! The chance is measured on the run's own groups, by the product-limit estimate of Kaplan and Meier (1958).
//! For each `k`, [`Outlook`] counts the groups that finished another sample after `k` alike samples. It also
//! counts how many of these groups differ in that sample. The second count divided by the first count is the
//! hazard `h(k)`. A group with `k` alike samples of `n` becomes valid with the chance `1 - (1 - h(k)) .. (1 -
//! h(n - 1))`. Groups that are cut off are censored observations: each of them counts up to its last finished
//! sample. The estimate follows the order in which samples finish, so it needs no assumption about lengths.
//! Groups whose first finished sample is right have a table of their own, because a number of right samples
//! is different evidence from the same number of wrong samples.
//!
//! The prior is the beta-binomial model with Jeffreys' prior over the chance that a sample is right: after
//! `k` alike samples the next sample differs with the chance `1 / (2 (k + 1))`. The prior has the weight of
//! [`PRIOR_GROUPS`] groups. Each step halves the weight of earlier evidence, because the chances change as
//! the policy learns.
//!
//! Gates other than `variance` may reject a group whose samples differ. The share of such groups that pass
//! these gates is estimated as a Beta posterior over the groups that have ended ([`AcceptRate`]).
//!
//! # The decision
//! The number of valid groups is a sum of independent draws, whose chances are themselves estimated. So it
//! has the variance of a beta-binomial distribution: with `m` groups of evidence, the variance of `u`
//! uncertain groups is multiplied by `1 + (u - 1) / (m + 1)`. [`Outlook::reaches`] compares the number with
//! what is needed, at the confidence of the recipe and by the normal approximation. [`Outlook::at_most`] is the same
//! distribution's upper end, which decides how many groups may run before one of them could become too old.
//!
//! # Invariants
//! The counts of running groups include exactly the groups that have been [entered](Outlook::enter) and have
//! not [left](Outlook::leave). There is no clock and no randomness here.

use rolldock_reward::{Finished, Gates};

use crate::rollout::accept_rate::{AGEING, AcceptRate};

/// The weight of the prior, in groups: half of them have a right first sample.
const PRIOR_GROUPS: f64 = 4.0;

/// The number of standard deviations of [`Outlook::at_most`]: the chance that there are more valid groups is 1 in 1,000.
const SURE_DEVIATIONS: f64 = 3.09;

/// A normal distribution.
struct Normal {
    mean: f64,
    deviation: f64,
}

/// Groups after a number of alike samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    /// Groups that finished another sample.
    more: f64,
    /// Those groups whose further sample differed from the samples before it.
    differed: f64,
}

/// A running group, as the estimate sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Standing {
    finished: Finished,
    is_proven: bool,
}

#[cfg(test)]
impl Standing {
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven
    }

    pub(crate) fn finished(&self) -> u32 {
        self.finished.samples()
    }
}

/// Estimates how many running groups will be valid.
#[derive(Debug)]
pub(crate) struct Outlook {
    samples: u32,
    /// The confidence of the recipe, as a number of standard deviations of the normal distribution.
    deviations: f64,
    only_compares: bool,
    /// The prior, expressed as counts of groups. The index is the number of alike samples, less 1.
    prior: Vec<Seen>,
    /// The counts of the run's own groups. The first index says whether the first sample was right. The second is the
    /// number of alike samples, less 1.
    seen: [Vec<Seen>; 2],
    /// The number of wrong first samples, and the number of right first samples.
    first: [f64; 2],
    /// The share that passes the other gates.
    others: AcceptRate,
    proven: usize,
    /// Running groups without a finished sample.
    blank: usize,
    /// Running groups whose finished samples are alike, indexed like `seen`.
    alike: [Vec<usize>; 2],
}

impl Outlook {
    /// An estimate for groups of `samples` samples, at the confidence of the recipe (0.5 or more, below 1).
    pub(crate) fn new(samples: u32, confidence: f64, gates: &Gates) -> Self {
        let rows = samples.max(1) as usize;
        Self {
            samples: samples.max(1),
            deviations: normal_quantile(confidence),
            only_compares: gates.only_compare(),
            prior: prior(samples.max(1)),
            seen: [(); 2].map(|()| vec![Seen::default(); rows]),
            first: [0.0; 2],
            others: AcceptRate::default(),
            proven: 0,
            blank: 0,
            alike: [(); 2].map(|()| vec![0; rows]),
        }
    }

    /// Enters a running group. `graded` are the accuracies and rewards of samples that an earlier dispatch
    /// has finished.
    pub(crate) fn enter(&mut self, gates: &Gates, graded: impl Iterator<Item = (f32, f32)>) -> Standing {
        let mut finished = Finished::default();
        graded.for_each(|(acc, reward)| finished.add(acc, reward));
        let standing = Standing { finished, is_proven: gates.differ(&finished) };
        *self.place(&standing) += 1;
        standing
    }

    /// Counts a sample that has finished, in constant time.
    pub(crate) fn finish(&mut self, gates: &Gates, standing: &mut Standing, acc: f32, reward: f32) {
        self.leave(standing);
        let before = standing.finished;
        standing.finished.add(acc, reward);
        let is_proven = standing.is_proven || gates.differ(&standing.finished);
        if !standing.is_proven {
            match before.samples() {
                0 => self.first[usize::from(standing.finished.first_is_right())] += 1.0,
                alike => {
                    let row = self.row(alike);
                    let seen = &mut self.seen[usize::from(before.first_is_right())][row];
                    seen.more += 1.0;
                    seen.differed += f64::from(u8::from(is_proven));
                }
            }
        }
        standing.is_proven = is_proven;
        *self.place(standing) += 1;
    }

    /// Whether a group is certain to be valid once its last sample has finished.
    pub(crate) fn is_certain(&self, standing: &Standing) -> bool {
        standing.is_proven && self.only_compares
    }

    /// The number of running groups that are [certain](Self::is_certain) to be valid.
    pub(crate) fn certain(&self) -> usize {
        if self.only_compares { self.proven } else { 0 }
    }

    /// Whether the samples of a group that are still to finish decide whether it becomes valid.
    pub(crate) fn is_open(&self, standing: &Standing) -> bool {
        !standing.is_proven && (1..self.samples).contains(&standing.finished.samples())
    }

    /// The probability that the samples of an [open](Self::is_open) group will differ. The other gates are not counted:
    /// they are as likely to reject the group that would take its place.
    pub(crate) fn chance_to_differ(&self, standing: &Standing) -> f64 {
        let (right, row) =
            (usize::from(standing.finished.first_is_right()), self.row(standing.finished.samples()));
        let mut of_group = 0.0;
        self.for_each_chance(right, |other, chance| of_group = if other == row { chance } else { of_group });
        of_group
    }

    /// The share of the groups with differing samples that pass the other gates.
    fn passed(&self) -> f64 {
        if self.only_compares { 1.0 } else { self.others.mean() }
    }

    /// Removes a group that no longer runs.
    pub(crate) fn leave(&mut self, standing: &Standing) {
        let place = self.place(standing);
        *place = place.saturating_sub(1);
    }

    /// Counts the decision of the gates about a complete group.
    pub(crate) fn judged(&mut self, standing: &Standing, is_valid: bool) {
        if standing.is_proven && !self.only_compares {
            self.others.record(is_valid);
        }
    }

    fn row(&self, alike: u32) -> usize {
        (alike.min(self.samples) - 1) as usize
    }

    fn place(&mut self, standing: &Standing) -> &mut usize {
        match (standing.is_proven, standing.finished.samples()) {
            (true, _) => &mut self.proven,
            (false, 0) => &mut self.blank,
            (false, alike) => {
                let row = self.row(alike);
                &mut self.alike[usize::from(standing.finished.first_is_right())][row]
            }
        }
    }

    /// Reduces the weight of earlier evidence. This is called once per step.
    pub(crate) fn age(&mut self) {
        self.others.age();
        self.first.iter_mut().for_each(|count| *count *= AGEING);
        for seen in self.seen.iter_mut().flatten() {
            seen.more *= AGEING;
            seen.differed *= AGEING;
        }
    }

    /// Whether at least `needed` of the running groups and of the `waiting` prompts that have not begun will
    /// be valid, at the confidence of the recipe.
    pub(crate) fn reaches(&self, needed: usize, waiting: usize) -> bool {
        if needed == 0 {
            return true;
        }
        let valid = self.valid(waiting);
        // The number of valid groups is an integer, so the comparison has a continuity correction of half a
        // group.
        valid.mean - self.deviations * valid.deviation >= needed as f64 - 0.5
    }

    /// The number of the running groups and of the `waiting` prompts that will be valid at most, with a chance of
    /// 99.9 %.
    pub(crate) fn at_most(&self, waiting: usize) -> usize {
        let valid = self.valid(waiting);
        let groups = self.proven + self.blank + self.alike.iter().flatten().sum::<usize>() + waiting;
        // The conversion saturates.
        let most = (valid.mean + SURE_DEVIATIONS * valid.deviation + 0.5).ceil() as usize;
        most.min(groups)
    }

    /// The distribution of the number of valid groups among the running groups and the `waiting` prompts.
    fn valid(&self, waiting: usize) -> Normal {
        let passed = self.passed();
        let (mut mean, mut variance, mut uncertain) = (0.0, 0.0, 0.0);
        let mut add = |groups: usize, chance: f64| {
            let groups = groups as f64;
            mean += groups * chance;
            variance += groups * chance * (1.0 - chance);
            uncertain += if chance > 0.0 && chance < 1.0 { groups } else { 0.0 };
        };
        add(self.proven, passed);
        let mut blank = 0.0;
        let firsts: f64 = self.first.iter().sum();
        for (right, alike) in self.alike.iter().enumerate() {
            let mut after_first = 0.0;
            self.for_each_chance(right, |row, chance| {
                add(alike[row], passed * chance);
                after_first = chance;
            });
            let first_share = (self.first[right] + PRIOR_GROUPS / 2.0) / (firsts + PRIOR_GROUPS);
            blank += first_share * after_first;
        }
        add(self.blank + waiting, passed * blank);
        let evidence = firsts + PRIOR_GROUPS;
        let spread = 1.0 + (uncertain - 1.0_f64).max(0.0) / (evidence + 1.0);
        Normal { mean, deviation: (variance * spread).sqrt() }
    }

    /// Calls `with` for each number of alike samples, with that number less 1 and the chance that a group
    /// with these samples becomes valid. The largest number comes first.
    fn for_each_chance(&self, right: usize, mut with: impl FnMut(usize, f64)) {
        let mut all_alike = 1.0;
        for (row, (seen, prior)) in self.seen[right].iter().zip(&self.prior).enumerate().rev() {
            let (more, differed) = (seen.more + prior.more, seen.differed + prior.differed);
            all_alike *= if more > 0.0 { 1.0 - differed / more } else { 1.0 };
            with(row, 1.0 - all_alike);
        }
    }

    /// The evidence without the counts of the other gates, as bits of floating-point numbers, for [`Self::restore`].
    pub(crate) fn to_bits(&self) -> Vec<u64> {
        let seen = self.seen.iter().flatten().flat_map(|seen| [seen.more, seen.differed]);
        self.first.into_iter().chain(seen).map(f64::to_bits).collect()
    }

    /// The counts of the groups that passed and failed the other gates.
    pub(crate) fn others(&self) -> &AcceptRate {
        &self.others
    }

    /// Continues from the evidence of an earlier process. `bits` is ignored if it has invalid numbers or is about groups
    /// of another size. `others` does not depend on the size and is always used.
    pub(crate) fn restore(&mut self, others: AcceptRate, bits: &[u64]) {
        self.others = others;
        let numbers: Vec<f64> = bits.iter().map(|bits| f64::from_bits(*bits)).collect();
        let is_sound = numbers.iter().all(|number| number.is_finite() && *number >= 0.0);
        if !is_sound || numbers.len() != 2 + 4 * self.samples as usize {
            return;
        }
        let (first, seen) = numbers.split_at(2);
        self.first.copy_from_slice(first);
        for (kept, pair) in self.seen.iter_mut().flatten().zip(seen.chunks_exact(2)) {
            *kept = Seen { more: pair[0].max(pair[1]), differed: pair[1] };
        }
    }

    #[cfg(test)]
    fn chances(&self, right: usize) -> Vec<f64> {
        let mut chances = vec![0.0; self.samples as usize];
        self.for_each_chance(right, |row, chance| chances[row] = chance);
        chances
    }

    /// The counts of running groups: proven, without a finished sample, and alike.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.proven, self.blank, self.alike.iter().flatten().sum())
    }
}

/// The counts of groups to which the prior is equivalent: Jeffreys' prior over the chance of a right sample. After the
/// last sample there is no further sample, so the last counts are 0.
fn prior(samples: u32) -> Vec<Seen> {
    let mut more = PRIOR_GROUPS / 2.0;
    let seen = move |alike: u32| {
        let differed = more / (2.0 * f64::from(alike + 1));
        let seen = Seen { more, differed };
        more -= differed;
        seen
    };
    (1..samples).map(seen).chain([Seen::default()]).collect()
}

/// The quantile of the normal distribution for a probability of 0.5 or more, below 1: the rational
/// approximation 26.2.23 of Abramowitz and Stegun (1964), whose error is below 0.00045.
fn normal_quantile(probability: f64) -> f64 {
    let tail = (1.0 - probability).clamp(f64::MIN_POSITIVE, 0.5);
    let root = (-2.0 * tail.ln()).sqrt();
    let numerator = 2.515_517 + root * (0.802_853 + root * 0.010_328);
    let denominator = 1.0 + root * (1.432_788 + root * (0.189_269 + root * 0.001_308));
    (root - numerator / denominator).max(0.0)
}

#[cfg(test)]
mod tests;
