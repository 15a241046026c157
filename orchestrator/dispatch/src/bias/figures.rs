//! The sums of cohorts, and the ratios with their standard errors.
//!
//! Every figure is a quotient of two totals: tokens divided by samples, right samples divided by samples, or
//! valid groups divided by groups. Each group has its importance weight in both totals. Let `A` and `B` be
//! the totals over the complete groups. Of the `C` groups that were cut off, `n` were audited, with the
//! totals `a` and `b`. The mean over all groups is then `m = (A + C/n a) / (B + C/n b)`. This is the combined
//! ratio estimator of survey sampling: the cut-off groups are a stratum from which `n` groups were drawn
//! without replacement. A group with the values `x` and `y` has the residual `e = x - m y`. The variance of
//! `m` is `(C (C - n)/n s2 + f q) / (B + C/n b)^2`, where `s2` is the sample variance of `e` over the audited
//! groups, `q` is the mean square of `e` over the complete groups, and `f` is the number of groups that
//! failed.
//!
//! A group with a weight `w` above 1 was drawn with the probability `1/w`, independently of all other groups. These
//! draws add the sum of `(1 - 1/w) e^2` over the complete groups to the numerator of the variance, and `C/n` times this
//! sum over the audited groups (`x`, `y` and `e` include the weight). This is the variance of the Horvitz-Thompson
//! estimator under Poisson sampling, estimated from the groups that were drawn.

use std::collections::VecDeque;

use super::{Bias, Decision, GroupFigures, Unknown};

/// The fewest groups from which a standard error is estimated.
const GROUPS_MIN: u64 = 30;
/// The fewest valid audited groups from which a standard error is estimated.
const VALID_MIN: u64 = 20;

/// The products of two quantities, summed over groups.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Products {
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Products {
    /// Adds the products of a group, times `share`.
    fn add(&mut self, x: f64, y: f64, share: f64) {
        self.join(&Self { xx: share * x * x, xy: share * x * y, yy: share * y * y });
    }

    fn join(&mut self, other: &Self) {
        let Self { xx, xy, yy } = other;
        self.xx += xx;
        self.xy += xy;
        self.yy += yy;
    }

    /// The sum of the squares of the residuals `x - mean y`.
    fn residuals(&self, mean: f64) -> f64 {
        let squares = self.xx - 2.0 * mean * self.xy + mean * mean * self.yy;
        // Rounding may leave a negative sum of squares.
        squares.max(0.0)
    }
}

/// Sums of two quantities and of their products, over groups. A group whose quantities are both 0 need not be
/// added.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    x: f64,
    y: f64,
    products: Products,
    /// The products of groups with importance weights, each times the share `1 - 1/w` of groups like it that were not
    /// drawn.
    not_drawn: Products,
}

impl Sums {
    /// Adds the quantities of a group, which include its `weight`.
    fn add(&mut self, x: f64, y: f64, weight: f64) {
        self.x += x;
        self.y += y;
        self.products.add(x, y, 1.0);
        self.not_drawn.add(x, y, 1.0 - 1.0 / weight);
    }

    fn join(&mut self, other: &Self) {
        let Self { x, y, products, not_drawn } = other;
        self.x += x;
        self.y += y;
        self.products.join(products);
        self.not_drawn.join(not_drawn);
    }
}

/// The sums of one figure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Figure {
    /// Over accepted groups.
    accepted: Sums,
    /// Over all complete groups that were not cut off.
    complete: Sums,
    /// Over audited groups.
    audited: Sums,
}

impl Figure {
    fn join(&mut self, other: &Self) {
        self.accepted.join(&other.accepted);
        self.complete.join(&other.complete);
        self.audited.join(&other.audited);
    }
}

/// The sums of one cohort, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CohortSums {
    pub(super) step: u64,
    /// Complete groups that were not cut off.
    complete: u64,
    failed: u64,
    /// Groups that were cut off and not continued.
    cut: u64,
    /// Cut-off groups that were audited to their end, and the valid groups among them.
    audited: u64,
    audited_valid: u64,
    /// Groups that were stopped as unlikely to become valid.
    stopped: u64,
    /// Complete and audited groups that stand for others by their weights.
    weighted: u64,
    pub(super) length: Figure,
    pub(super) accuracy: Figure,
    pub(super) accept_rate: Figure,
}

impl CohortSums {
    /// The sums of a cohort. Filtered and failed groups are only counted before the first number in dispatch
    /// order that was passed over. After that number, only groups that ended early have a decision, and such
    /// groups would bias the sums.
    pub(super) fn new(step: u64, decisions: &[Option<Decision>], weights: &[f32]) -> Self {
        let mut sums = Self { step, ..Self::default() };
        let passed_over = decisions.iter().position(|decision| *decision == Some(Decision::PassedOver));
        let end = passed_over.unwrap_or(decisions.len());
        for (place, (decision, weight)) in decisions.iter().zip(weights).enumerate() {
            let Some(decision) = decision else { continue };
            let weight = f64::from(*weight);
            let counted = sums.complete + sums.audited;
            match decision {
                Decision::Accepted(group) => {
                    sums.add_valid(group, weight, |figure, x, y| {
                        figure.accepted.add(x, y, weight);
                        figure.complete.add(x, y, weight);
                    });
                    sums.complete += 1;
                }
                Decision::Missed(group) => {
                    sums.add_valid(group, weight, |figure, x, y| figure.complete.add(x, y, weight));
                    sums.complete += 1;
                }
                Decision::Filtered if place < end => {
                    sums.accept_rate.accepted.add(0.0, weight, weight);
                    sums.accept_rate.complete.add(0.0, weight, weight);
                    sums.complete += 1;
                }
                Decision::Failed if place < end => sums.failed += 1,
                Decision::Filtered | Decision::Failed | Decision::PassedOver => {}
                Decision::Stopped => sums.stopped += 1,
                Decision::Cut => sums.cut += 1,
                Decision::Audited(ended) => sums.add_audited(ended.as_ref(), weight),
            }
            let counts = sums.complete + sums.audited > counted;
            sums.weighted += u64::from(counts && weight > 1.0);
        }
        sums
    }

    fn add_valid(&mut self, group: &GroupFigures, weight: f64, mut add: impl FnMut(&mut Figure, f64, f64)) {
        let samples = weight * f64::from(group.samples);
        add(&mut self.length, weight * group.tokens as f64, samples);
        add(&mut self.accuracy, weight * group.right, samples);
        add(&mut self.accept_rate, weight, weight);
    }

    fn add_audited(&mut self, valid: Option<&GroupFigures>, weight: f64) {
        self.cut += 1;
        self.audited += 1;
        match valid {
            Some(group) => {
                self.add_valid(group, weight, |figure, x, y| figure.audited.add(x, y, weight));
                self.audited_valid += 1;
            }
            None => self.accept_rate.audited.add(0.0, weight, weight),
        }
    }

    /// The sums of all these cohorts.
    pub(super) fn total(cohorts: &VecDeque<Self>) -> Self {
        let mut total = Self::default();
        for cohort in cohorts {
            let Self { step, complete, failed, cut, audited, audited_valid, stopped, weighted, .. } = cohort;
            total.step = *step;
            total.complete += complete;
            total.failed += failed;
            total.cut += cut;
            total.audited += audited;
            total.audited_valid += audited_valid;
            total.stopped += stopped;
            total.weighted += weighted;
            total.length.join(&cohort.length);
            total.accuracy.join(&cohort.accuracy);
            total.accept_rate.join(&cohort.accept_rate);
        }
        total
    }

    /// Why these groups give no figures; `None` if they give figures.
    pub(super) fn unknown(&self, audits: bool) -> Option<Unknown> {
        if self.cut > 0 && self.audited == 0 && !audits {
            return Some(Unknown::Unaudited);
        }
        let is_sampled = self.cut > self.audited;
        let too_few_audited = self.audited < GROUPS_MIN || self.audited_valid < VALID_MIN;
        let too_few_complete = self.failed > 0 && self.complete < GROUPS_MIN;
        let no_group_ran_on = self.stopped > 0 && self.weighted == 0;
        (is_sampled && too_few_audited || too_few_complete || no_group_ran_on).then_some(Unknown::NotYet)
    }

    /// The figure with its standard error; `None` if no group was accepted, or if the mean is 0.
    pub(super) fn bias(&self, figure: &Figure) -> Option<Bias> {
        let Figure { accepted, complete, audited } = figure;
        // Each audited group represents this number of groups that were cut off.
        let stands_for = if self.audited > 0 { self.cut as f64 / self.audited as f64 } else { 0.0 };
        let (x, y) = (complete.x + stands_for * audited.x, complete.y + stands_for * audited.y);
        if accepted.y <= 0.0 || x <= 0.0 || y <= 0.0 {
            return None;
        }
        let dispatched = x / y;
        let not_drawn =
            complete.not_drawn.residuals(dispatched) + stands_for * audited.not_drawn.residuals(dispatched);
        let variance = self.variance_of_cut(audited, dispatched)
            + self.variance_of_failed(complete, dispatched)
            + not_drawn;
        let mean = accepted.x / accepted.y;
        let standard_error = mean / dispatched * (variance.sqrt() / y) / dispatched;
        Some(Bias { accepted: mean, dispatched, standard_error })
    }

    fn variance_of_cut(&self, audited: &Sums, mean: f64) -> f64 {
        let (cut, drawn) = (self.cut as f64, self.audited as f64);
        if self.audited < 2 || self.cut <= self.audited {
            return 0.0;
        }
        let (sum, squares) = (audited.x - mean * audited.y, audited.products.residuals(mean));
        let spread = (squares - sum * sum / drawn).max(0.0) / (drawn - 1.0);
        cut * (cut - drawn) / drawn * spread
    }

    fn variance_of_failed(&self, complete: &Sums, mean: f64) -> f64 {
        if self.complete == 0 {
            return 0.0;
        }
        self.failed as f64 * complete.products.residuals(mean) / self.complete as f64
    }
}
