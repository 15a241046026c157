//! The results of a run's prompts in earlier epochs, and the choice of prompts by these results.
//!
//! A group whose samples are all right or all wrong teaches nothing, and most of its tokens are wasted. The
//! result of a prompt in the last epoch indicates how likely its next group is to be valid. [`PromptHistory`]
//! keeps the results of all graded groups by prompt. A group that was stopped counts with its finished samples.
//! [`PromptHistory::chance`] computes from them the probability that the next group is valid, and the probability
//! with which the prompt is sent out. A prompt that is not sent out waits for the next epoch.
//!
//! # The posterior
//! A sample of a prompt is right with probability `q`. The prior of `q` is a Beta distribution, fitted by
//! moments to the run's own groups. Let `m` be the share of right samples, `s2` the variance of the groups'
//! shares, and `n` the number of samples in a group. The equation `s2 / (m (1 - m)) = 1/n + (1 - 1/n) r`
//! gives `r`, and the parameters of the prior are `m (1/r - 1)` and `(1 - m) (1/r - 1)`. Before there are 64
//! groups, the prior is Jeffreys' prior, `Beta(1/2, 1/2)`. With the prior `Beta(a0, b0)` and with `R` right
//! and `W` wrong samples of the prompt, `q` has the posterior `Beta(a, b) = Beta(a0 + R, b0 + W)`. The next
//! group of `n` samples has both right and wrong samples with probability `v = 1 - E[q^n] - E[(1 - q)^n]`,
//! where `E[q^n]` is the product of `(a + j) / (a + b + j)` over `j < n`. The policy learns, so each new
//! group halves the weight of the samples of earlier groups.
//!
//! If the gates of a run decide by other values than right and wrong, `v` is the mean of a Beta posterior
//! of the prompt's valid and filtered groups. Its prior has the weight of two groups and the mean of the
//! run.
//!
//! # The probability of sending out
//! A prompt with this `v` and an expected cost of `c` tokens is sent out with probability `p`, and its
//! accepted group has the weight `1 / p`. With the probabilities `p_i`, the expected number of tokens is the
//! sum of `p_i c_i`, the expected number of accepted groups is the sum of `p_i v_i`, and the variance of a
//! weighted mean is in proportion to the sum of `v_i / p_i`. An accepted group is worth `w` tokens by itself,
//! because training costs too. For a given variance, `(sum of p_i c_i) - w (sum of p_i v_i)` is least if
//! `p_i` is in proportion to `sqrt(v_i / (c_i - w v_i))`. The mean cost of the run's groups is the unit of
//! `c`, `w` is 0.35, and the factor of proportionality is 0.6. This factor is below 1, so that few
//! probabilities are cut to 1. No `p` is below `keep_min`, so no weight is above `1 / keep_min`, and every
//! prompt keeps a chance.
//!
//! # Invariants
//! - A weighted mean over accepted groups estimates the mean over all valid groups of the data, even if the
//!   posterior is wrong. The reason is that `p` depends only on earlier epochs, and that the draw against `p`
//!   depends only on the seed, the prompt and the epoch.
//! - The choice does not depend on the order in which groups end, if the number of rows is several times the
//!   number of groups in progress. In this case, the last group of a prompt has ended before the prompt is
//!   drawn again. The groups from which the prior is fitted have ended, too. Their numbers are below a power
//!   of two that is at most half of the first number of the epoch.
//! - The history is the fold of [`PromptHistory::sent`] and [`PromptHistory::graded`]. The ledger has a
//!   record of each call. A group that is graded again after a crash does not count twice, because a prompt
//!   has at most one result in each epoch.
//!
//! # Bounded
//! A prompt takes 32 bytes, or about 50 bytes with the unused slots of the tree. The history has at most one
//! prompt for each row. The sums of the run have a fixed size.

mod posterior;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PromptUid;
use crate::bias::GroupFigures;
use crate::draw::uniform;
use posterior::Population;

/// The weight of the samples of earlier groups when a newer group has been graded.
const KEPT_EVIDENCE: f32 = 0.5;
/// The worth of an accepted group by itself: `w` of the [module](self), in units of the mean cost of a
/// group. With more, fewer tokens are decoded for an accepted group, and its weights differ more. From 0.2 to
/// 0.35 the precision of a weighted mean for the same number of decoded tokens hardly changes.
const WORTH: f64 = 0.35;
/// The probability of sending out a prompt of mean cost, before the correction for [`WORTH`], if its group is
/// certain to be valid.
const SHARE: f64 = 0.6;
/// The lower limit of the difference between cost and worth. The limit bounds the quotient.
const COST_MIN: f64 = 0.01;

/// `[data.history]`: how a run uses the results of its prompts in later epochs.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// Which prompts of later epochs are sent out.
    pub sampling: Sampling,
    /// The least probability with which a prompt is sent out, above 0 and at most 1.
    pub keep_min: f64,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { sampling: Sampling::All, keep_min: 0.1 }
    }
}

impl HistoryConfig {
    /// Whether prompts are sent out by their history.
    pub fn chooses(&self) -> bool {
        self.sampling == Sampling::Difficulty
    }
}

/// Which prompts are sent out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// All prompts, in the order of the data.
    #[default]
    All,
    /// Each prompt with a probability that its history determines, in the order of the data.
    Difficulty,
}

/// The result of a complete group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradedGroup {
    /// The prompt.
    pub prompt_uid: PromptUid,
    /// Number of epochs before this visit to the prompt.
    pub visit: u32,
    /// The dispatch number.
    pub number: u64,
    /// Its samples.
    pub figures: GroupFigures,
    /// Whether all gates pass it.
    pub is_valid: bool,
}

/// The results of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PromptRecord {
    /// Groups that were graded.
    pub groups: u32,
    /// Graded groups that passed all gates.
    pub valid: u32,
    /// One more than the visit of the last group.
    visits: u32,
    /// Number of samples, of right samples, and of tokens. The counts of earlier groups have a reduced
    /// weight.
    samples: f32,
    right: f32,
    tokens: f32,
}

impl PromptRecord {
    /// The share of right samples, from 0 to 1; the samples of later groups count more.
    pub fn accuracy(&self) -> f64 {
        f64::from(self.right) / f64::from(self.samples).max(1.0)
    }

    /// The mean length of its samples in tokens; the samples of later groups count more.
    pub fn length(&self) -> f64 {
        f64::from(self.tokens) / f64::from(self.samples).max(1.0)
    }
}

/// The probabilities of a prompt that its run has seen before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance {
    /// The probability with which the prompt is sent out, above 0 and at most 1.
    pub keep: f32,
    /// The posterior probability that its group is valid.
    pub valid: f32,
}

impl Chance {
    /// The importance weight of the group: at least 1.
    pub fn weight(&self) -> f32 {
        1.0 / self.keep
    }

    /// The importance weight of a group, which is 1 for a prompt without a history.
    pub fn weight_of(chance: Option<Self>) -> f32 {
        chance.map_or(1.0, |chance| chance.weight())
    }
}

/// The prediction for the groups of a step, and their results.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HistoryCounts {
    /// Prompts with a graded group.
    pub prompts: u64,
    /// Prompts of the step that were not sent out.
    pub skipped: u64,
    /// Groups that were graded in the step and whose prompts had a history.
    pub foreseen: u64,
    /// The sum of the posterior probabilities that the groups in `foreseen` are valid.
    pub expected_valid: f64,
    /// The groups in `foreseen` that were valid.
    pub valid: u64,
}

/// The history of a run's prompts; see the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptHistory {
    prompts: BTreeMap<PromptUid, PromptRecord>,
    /// Sums of groups by the bit length of their numbers: at most 65.
    populations: Vec<Population>,
    /// The last epoch and the first number in it.
    epoch: (u32, u64),
}

impl PromptHistory {
    /// Notes that a prompt was sent out for the first time in its epoch `visit`, with this number.
    pub fn sent(&mut self, visit: u32, number: u64) {
        if visit > self.epoch.0 {
            self.epoch = (visit, number);
        }
    }

    /// Adds the result of a group. A second result of the same visit is ignored.
    pub fn graded(&mut self, group: &GradedGroup) {
        let record = self.prompts.entry(group.prompt_uid).or_default();
        if group.visit < record.visits {
            return;
        }
        let GroupFigures { samples, tokens, right } = group.figures;
        record.visits = group.visit.saturating_add(1);
        record.groups = record.groups.saturating_add(1);
        record.valid = record.valid.saturating_add(u32::from(group.is_valid));
        record.samples = record.samples * KEPT_EVIDENCE + samples as f32;
        record.right = record.right * KEPT_EVIDENCE + right as f32;
        record.tokens = record.tokens * KEPT_EVIDENCE + tokens as f32;
        let index = Population::index(group.number);
        if self.populations.len() <= index {
            self.populations.resize(index + 1, Population::default());
        }
        self.populations[index].add(group);
    }

    /// Number of prompts with a graded group.
    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// The results of a prompt.
    pub fn prompt(&self, uid: PromptUid) -> Option<&PromptRecord> {
        self.prompts.get(&uid)
    }

    /// The probabilities of a prompt at this visit, for groups of `samples` samples; `None` if no group of
    /// the prompt was graded. `next_number` is the number that the prompt will get.
    pub fn chance(
        &self,
        config: &HistoryConfig,
        samples: u32,
        (uid, visit): (PromptUid, u32),
        next_number: u64,
    ) -> Option<Chance> {
        let record = self.prompts.get(&uid)?;
        let first_number = if self.epoch.0 == visit { self.epoch.1 } else { next_number };
        let run = Population::before(&self.populations, first_number);
        let valid = run.chance_of_valid(record, samples).clamp(0.0, 1.0);
        let keep = match config.sampling {
            Sampling::All => 1.0,
            Sampling::Difficulty => {
                let cost = run.mean_length().map_or(1.0, |mean| record.length() / mean);
                let value = valid / (cost - WORTH * valid).max(COST_MIN);
                (SHARE * value.sqrt()).max(config.keep_min).min(1.0)
            }
        };
        Some(Chance { keep: keep as f32, valid: valid as f32 })
    }
}

/// Whether a prompt that is kept with probability `keep` is sent out at this visit.
pub fn is_kept(seed: u64, uid: PromptUid, visit: u32, keep: f32) -> bool {
    let mut key = *b"keep............";
    key[4..12].copy_from_slice(&uid.0.to_le_bytes());
    key[12..].copy_from_slice(&visit.to_le_bytes());
    uniform(seed, &key) < f64::from(keep)
}

#[cfg(test)]
mod tests;
