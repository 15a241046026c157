//! A prompt's finished samples: the unit of filtering and of acceptance.

use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::bias::GroupFigures;
use rolldock_dispatch::{DispatchId, FinishReason, Inclusion, Spent, VersionSpan};
use rolldock_reward::{Parts, Rejection};
use rolldock_trajectory::{Row, TurnAdvantages};

use crate::data::Prompt;

/// One scored response.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The sample's index in the group, from 0.
    pub index: u32,
    /// The number of earlier attempts at this sample.
    pub attempt: u32,
    /// Token ids, the stop token included.
    pub response_ids: Vec<u32>,
    /// One log-probability per token. It is empty only if the server returns text without token ids and
    /// log-probabilities.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// The version spans that the engine reported. If the engine reported none, the spans have the versions
    /// that the client assumed.
    pub version_spans: Vec<VersionSpan>,
    /// Oldest policy version of its tokens.
    pub policy_version_min: u64,
    /// Newest policy version of its tokens.
    pub policy_version_max: u64,
    /// Whether the engine reported the versions. If it did not, the versions are those that the client
    /// assumed.
    pub versions_reported: bool,
    /// For a single answer, the number of requests that generated its tokens: more than 1 if the sample was
    /// cut off and resumed. For a trajectory, the number of its trained turns.
    pub segments: u32,
    /// The server of the last request that generated its tokens. It is empty if no server is known, for
    /// example for a carried sample that was already complete.
    pub server: Arc<str>,
    /// The score that the scorer returned.
    pub score: f32,
    /// The accuracy of the answer, from 0 to 1. Most scorers give only 0 or 1.
    pub acc: f32,
    /// The partial scores from which `score` was computed, by name. Empty if there are none.
    pub parts: Parts,
    /// The penalty for length; zero or negative.
    pub overlong_penalty: f32,
    /// `score + overlong_penalty`, clipped and normalised as the recipe says. The advantage is computed from
    /// this value.
    pub reward: f32,
    /// Whether its tokens are masked, so that the trainer learns nothing from them.
    pub is_masked: bool,
    /// The answer that the scorer found in the response.
    pub prediction: Option<String>,
    /// The advantage, relative to the group; set when the group is complete. If the estimator needs the whole
    /// batch, it is 0 until all groups of the step are accepted.
    pub advantage: f32,
    /// The advantages of the turns of a trajectory, if the estimator computes one for each turn; set when the
    /// group is complete.
    pub turn_advantages: Option<Arc<TurnAdvantages>>,
    /// The time that the sample spent in each phase.
    pub spent: Spent,
    /// The rows of a sample that is a trajectory; `None` for a single answer. For a trajectory,
    /// `response_ids` has the sampled tokens that the rows train, turn after turn.
    pub trajectory: Option<Arc<SampleRows>>,
}

/// The part of a sample that only a trajectory has.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRows {
    /// One row for each path. All share the sample's reward and advantage.
    pub rows: Vec<Row>,
    /// For each row, whether a server itself encoded one of the row's prompts.
    pub reencoded: Vec<bool>,
    /// Why the trajectory ended: `done`, `turns`, `tokens`, `time`, or another reason that its
    /// [`TrajectoryRunner`](super::TrajectoryRunner) names.
    pub end: &'static str,
    /// Metadata of the trajectory, as the text of a JSON object.
    pub metadata: String,
}

/// A prompt with its graded samples. With a `min_samples` gate, samples that failed are missing, so the
/// position of a sample in `samples` may differ from its index.
#[derive(Debug, Clone)]
pub struct Group {
    /// The group's last dispatch: the dispatch that completed the group. If the group was held after that, it
    /// is the dispatch under which the group entered the present step.
    pub dispatch: DispatchId,
    /// Its number in dispatch order.
    pub number: u64,
    /// The data-set row.
    pub prompt: Arc<Prompt>,
    /// The samples in order of their index.
    pub samples: Vec<Sample>,
    /// The time of the dispatch that completed the group, since this process began the run. The times of a
    /// resumed run begin at 0 again.
    pub dispatched_at: Duration,
    /// The time at which the group was complete, counted like `dispatched_at`.
    pub ended_at: Duration,
    /// The rejection, if only gates in `filter.keep_if_short` rejected the group. Such a group is set aside.
    /// It is accepted only if the step would otherwise end short of its target.
    pub set_aside: Option<Rejection>,
    /// The step that accepted the group; 0 until then.
    pub step: u64,
    /// The number of versions that the group's oldest token will be behind when a trainer takes the group's
    /// step from the queue. It is set when the group is accepted.
    pub staleness: u64,
    /// Whether `staleness` exceeds the recipe's bound.
    pub is_stale: bool,
    /// Tokens of versions older than this are masked; 0 masks none.
    pub mask_before: u64,
    /// The probabilities with which the prompt was sent out and the group ran on.
    pub inclusion: Inclusion,
    /// Whether the run leaves groups out by chance, so that all rows have an importance weight.
    pub is_weighted: bool,
    /// The number of earlier groups of its prompt that were too old or were given up by the watchdog. It is
    /// set to 0 when the group has been held for a later step.
    pub returns: u32,
}

impl Group {
    /// Response tokens of all samples.
    pub fn tokens(&self) -> u64 {
        figures_of(&self.samples).tokens
    }

    /// The weight of the group; `None` if all groups have the same weight. The weighted mean over accepted
    /// groups estimates the mean over all valid groups of the data.
    pub fn importance_weight(&self) -> Option<f32> {
        let weight = self.inclusion.weight();
        // An earlier process of a resumed run may have left groups out by chance, although this process does not.
        (self.is_weighted || weight > 1.0).then_some(weight)
    }

    /// Oldest policy version in the group.
    pub fn policy_version_min(&self) -> u64 {
        self.samples.iter().map(|sample| sample.policy_version_min).min().unwrap_or(0)
    }
}

impl From<&Group> for GroupFigures {
    fn from(group: &Group) -> Self {
        figures_of(&group.samples)
    }
}

/// The figures of these samples.
pub(crate) fn figures_of(samples: &[Sample]) -> GroupFigures {
    GroupFigures {
        samples: samples.len() as u32,
        tokens: samples.iter().map(|sample| sample.response_ids.len() as u64).sum(),
        right: samples.iter().map(|sample| f64::from(sample.acc)).sum(),
    }
}
