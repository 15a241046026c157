//! The bias meter measures whether the groups that a run accepts differ from the groups that it sent out. It
//! compares their length, their accuracy, and the share that passes the filter. An early stop can prefer
//! groups that end early, which are short and easy.
//!
//! # What is compared
//! The meter follows each dispatch number from its first dispatch to its final decision. The numbers that a
//! step sends out first are the step's *cohort*. The figures of length and accuracy divide a mean over the
//! accepted groups by the mean over all valid groups of the same cohorts, including those that were not
//! accepted. The figure of the accept rate compares the groups that ended before a cut with all groups. Only
//! this figure counts filtered groups, because responses of valid and of filtered groups differ in length.
//!
//! If prompts are [chosen by difficulty](crate::history), or if only a share of the [unlikely
//! groups](crate::modes::StopUnlikely) runs on, each group has its [importance weight](crate::inclusion) in all of
//! these means, so these means estimate the means over the data's own groups. Without such a choice all weights are 1.
//!
//! # What is known, and what is estimated
//! A cohort counts when all of its numbers are decided, and cohorts count in order. The meter therefore makes
//! no guess about work in progress. A prompt that is requeued, carried or held is decided in a later step, so
//! the figures only have a lag. Three kinds of numbers have no result of their own:
//!
//! - Numbers that a mode in dispatch order passes over at its cut. They are left out, because they were
//!   passed over for their position and not for their length.
//! - Numbers that a stop at the first valid groups cuts off and discards. A random share of them is
//!   [audited](Decision::Audited), and the mean of the audited groups is used for all groups that were cut
//!   off. If no group is audited, there is no figure.
//! - Numbers that failed. They count as a random sample of all numbers, which adds to the standard error.
//!
//! # Invariants
//! - If all valid groups were accepted, and no number was cut off for good, the ratio is exactly 1. If, in addition, no
//!   number failed and all weights are 1, the standard error is 0.
//! - The meter uses neither a clock nor randomness: its state is the fold of [`BiasMeter::sent`],
//!   [`BiasMeter::learn`] and [`BiasMeter::close`]. The ledger has a record of each of these calls, so the
//!   figures of a resumed run cover all of its processes.
//!
//! # Bounded
//! The meter has the sums of the last [`WINDOW`] cohorts, and the decisions of at most `LAG_MAX` later
//! cohorts, one for each number.

mod figures;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use serde::Serialize;

use figures::CohortSums;

/// Maximum number of cohorts that the figures cover. A step has one cohort.
pub const WINDOW: usize = 100;
/// Maximum number of incomplete cohorts. If there are more, the meter gives up the first of them.
const LAG_MAX: usize = 100;

/// The figures of a complete group.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupFigures {
    /// Number of samples.
    pub samples: u32,
    /// Response tokens of all samples.
    pub tokens: u64,
    /// The sum of the samples' accuracies: the number of right samples.
    pub right: f64,
}

/// The final decision about a dispatch number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// The group was accepted.
    Accepted(GroupFigures),
    /// The group is complete and valid, but it ended too late to be accepted.
    Missed(GroupFigures),
    /// The group is complete, and a gate rejected it.
    Filtered,
    /// The group was stopped because it was unlikely to become valid. The groups like it that [run
    /// on](BiasEvent::RunsOn) stand for it.
    Stopped,
    /// The step had enough groups before this one in dispatch order.
    PassedOver,
    /// The group will never be complete, and the reason is not a cut.
    Failed,
    /// The group was cut off, and has no further result.
    Cut,
    /// The group was cut off, and was then run to its end for measurement; `None` if a gate rejected the
    /// complete group.
    Audited(Option<GroupFigures>),
}

/// An event of a dispatch number that the meter counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BiasEvent {
    /// The final decision about the number. Only the first such event of a number counts.
    Decided(Decision),
    /// The group was unlikely to become valid, and runs on with this probability. Its weight is divided by it.
    RunsOn(f32),
    /// The group was cut off, and continues for an audit. The cut is not the final decision.
    AuditBegan,
    /// The audit of the group ended without a result: the group failed or was cut off again, or its process
    /// has ended.
    AuditLost,
    /// The decision does not hold: the rows of the accepted group never reached the queue, and its prompt is
    /// sent out again.
    TakenBack,
}

/// The numbers that a step sent out first.
#[derive(Debug, Clone, PartialEq)]
struct Cohort {
    step: u64,
    /// The first number of the cohort. The others follow it without gaps.
    first: u64,
    decisions: Vec<Option<Decision>>,
    /// The importance weight of each number.
    weights: Vec<f32>,
    undecided: usize,
}

/// One figure of the meter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bias {
    /// The mean over the accepted groups; for the accept rate, over the groups that ended before a cut.
    pub accepted: f64,
    /// The mean over all valid groups; for the accept rate, over all groups.
    pub dispatched: f64,
    /// The standard error of the [ratio](Self::ratio); 0 if nothing had to be estimated.
    pub standard_error: f64,
}

impl Bias {
    /// The bias: 1 is unbiased. A ratio below 1 means that [`accepted`](Self::accepted) is the smaller mean.
    pub fn ratio(&self) -> f64 {
        self.accepted / self.dispatched
    }

    /// The interval of two standard errors around the ratio.
    pub fn interval(&self) -> (f64, f64) {
        let (ratio, reach) = (self.ratio(), 2.0 * self.standard_error);
        (ratio - reach, ratio + reach)
    }
}

/// Why there is no figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// Too few groups are decided.
    NotYet,
    /// Groups were cut off, and no such group is audited.
    Unaudited,
    /// A number was undecided for so long that its cohort was given up.
    Undecided {
        /// The number.
        number: u64,
        /// The step that sent it out first.
        step: u64,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => write!(f, "not known yet"),
            Self::Unaudited => {
                write!(f, "not known without rollout.bias_audit: groups that are cut off have no result")
            }
            Self::Undecided { number, step } => {
                write!(f, "not known: dispatch number {number} of step {step} is still undecided")
            }
        }
    }
}

/// All figures of the meter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BiasReading {
    /// Mean response length in tokens.
    pub length: Option<Bias>,
    /// Mean accuracy of the samples of valid groups.
    pub accuracy: Option<Bias>,
    /// The share of groups that pass the filter.
    pub accept_rate: Option<Bias>,
    /// The first and the last step whose cohorts the figures cover; `None` before the first cohort is
    /// complete.
    pub steps: Option<(u64, u64)>,
    /// Why there are no figures; `None` if there are figures.
    pub unknown: Option<Unknown>,
}

/// The meter; see the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BiasMeter {
    open: VecDeque<Cohort>,
    /// Numbers that were cut off and continue for an audit.
    under_audit: BTreeSet<u64>,
    window: VecDeque<CohortSums>,
    /// The undecided number of the last cohort that was given up, and its step.
    given_up: Option<(u64, u64)>,
}

impl BiasMeter {
    /// Notes that `step` has sent out `number` for the first time, with this importance weight. The calls
    /// have to be in the order of the numbers.
    pub fn sent(&mut self, step: u64, number: u64, weight: f32) {
        let follows = |cohort: &&mut Cohort| {
            cohort.step == step && cohort.first + cohort.decisions.len() as u64 == number
        };
        match self.open.back_mut().filter(follows) {
            Some(cohort) => {
                cohort.decisions.push(None);
                cohort.weights.push(weight);
                cohort.undecided += 1;
            }
            None => self.open.push_back(Cohort {
                step,
                first: number,
                decisions: vec![None],
                weights: vec![weight],
                undecided: 1,
            }),
        }
    }

    /// Notes an event of `number`. Events of numbers that the meter does not follow are ignored.
    pub fn learn(&mut self, number: u64, event: BiasEvent) {
        let is_audited = self.under_audit.contains(&number);
        let Some(Numbered { undecided, place, weight }) = place_of(&mut self.open, number) else { return };
        match (event, *place) {
            (BiasEvent::RunsOn(share), None) => *weight /= share,
            (BiasEvent::AuditBegan, None) => {
                self.under_audit.insert(number);
            }
            (BiasEvent::Decided(Decision::Cut), None) if is_audited => {}
            (BiasEvent::Decided(decision), None) => {
                *place = Some(decision);
                *undecided -= 1;
                self.under_audit.remove(&number);
            }
            (BiasEvent::AuditLost, None) => {
                *place = Some(Decision::Cut);
                *undecided -= 1;
                self.under_audit.remove(&number);
            }
            (BiasEvent::TakenBack, Some(_)) => {
                *place = None;
                *undecided += 1;
            }
            (BiasEvent::TakenBack, None)
            | (
                BiasEvent::AuditBegan | BiasEvent::Decided(_) | BiasEvent::AuditLost | BiasEvent::RunsOn(_),
                Some(_),
            ) => {}
        }
    }

    /// The events that the meter has to learn when a new process continues the run. They concern the numbers
    /// that the meter follows and that the earlier process sent out. `goes_on` tells whether the prompt of a
    /// number is sent out again.
    pub fn after_restart(&self, goes_on: impl Fn(u64) -> bool) -> Vec<(u64, BiasEvent)> {
        let happened = |number: u64, decision: Option<Decision>| match (goes_on(number), decision) {
            (true, None) | (false, Some(_)) => None,
            (true, Some(_)) => Some(BiasEvent::TakenBack),
            (false, None) if self.under_audit.contains(&number) => Some(BiasEvent::AuditLost),
            // The decision was lost with the end of the log.
            (false, None) => Some(BiasEvent::Decided(Decision::Failed)),
        };
        let numbers =
            self.open.iter().flat_map(|cohort| (cohort.first..).zip(cohort.decisions.iter().copied()));
        numbers.filter_map(|(number, decision)| Some((number, happened(number, decision)?))).collect()
    }

    /// Counts the complete cohorts up to the cohort of `step`. `step` sends out no more numbers.
    pub fn close(&mut self, step: u64) {
        while let Some(cohort) = self.open.pop_front_if(|first| first.undecided == 0 && first.step <= step) {
            self.window.push_back(CohortSums::new(cohort.step, &cohort.decisions, &cohort.weights));
            if self.window.len() > WINDOW {
                self.window.pop_front();
            }
            self.given_up = None;
        }
        while self.open.len() > LAG_MAX {
            let Some(cohort) = self.open.pop_front() else { break };
            let place = cohort.decisions.iter().position(Option::is_none).unwrap_or(0);
            self.given_up = Some((cohort.first + place as u64, cohort.step));
            self.under_audit = self.under_audit.split_off(&(cohort.first + cohort.decisions.len() as u64));
            // Cohorts on both sides of a gap would not be a sample of all cohorts.
            self.window.clear();
        }
    }

    /// The figures of the cohorts that are complete. `audits` tells whether a share of the groups that are
    /// cut off is audited from now on.
    pub fn reading(&self, audits: bool) -> BiasReading {
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            let undecided = self.given_up.map(|(number, step)| Unknown::Undecided { number, step });
            return BiasReading { unknown: undecided.or(Some(Unknown::NotYet)), ..BiasReading::default() };
        };
        let steps = Some((first.step, last.step));
        let sums = CohortSums::total(&self.window);
        if let Some(unknown) = sums.unknown(audits) {
            return BiasReading { steps, unknown: Some(unknown), ..BiasReading::default() };
        }
        let length = sums.bias(&sums.length);
        BiasReading {
            length,
            accuracy: sums.bias(&sums.accuracy),
            accept_rate: sums.bias(&sums.accept_rate),
            steps,
            unknown: length.is_none().then_some(Unknown::NotYet),
        }
    }
}

/// A number that the meter follows.
struct Numbered<'a> {
    /// The number of undecided numbers in its cohort.
    undecided: &'a mut usize,
    /// The decision about it.
    place: &'a mut Option<Decision>,
    /// Its importance weight.
    weight: &'a mut f32,
}

fn place_of(open: &mut VecDeque<Cohort>, number: u64) -> Option<Numbered<'_>> {
    let after = open.partition_point(|cohort| cohort.first <= number);
    let Cohort { first, decisions, weights, undecided, .. } = open.get_mut(after.checked_sub(1)?)?;
    let index = usize::try_from(number - *first).ok()?;
    Some(Numbered { undecided, place: decisions.get_mut(index)?, weight: weights.get_mut(index)? })
}

#[cfg(test)]
mod tests;
