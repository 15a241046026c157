//! A prompt's finished samples: the unit of filtering and of acceptance.

use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::bias::GroupFigures;
use rolldock_dispatch::{DispatchId, FinishReason, Spent, VersionSpan};
use rolldock_reward::{Parts, Rejection};

use crate::data::Prompt;

/// One scored response.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The sample's index in the group, from 0 on.
    pub index: u32,
    /// How many attempts came before this one.
    pub attempt: u32,
    /// Token ids, the stop token included.
    pub response_ids: Vec<u32>,
    /// One log-probability per token; empty only from a text-only server.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// The spans that the engine reported, or spans with the versions that the client knew.
    pub version_spans: Vec<VersionSpan>,
    /// Oldest policy version of its tokens.
    pub policy_version_min: u64,
    /// Newest policy version of its tokens.
    pub policy_version_max: u64,
    /// Whether the engine reported its versions; otherwise they are those that the client knew.
    pub versions_reported: bool,
    /// Number of requests that generated its tokens: more than one if it was cut off and resumed.
    pub segments: u32,
    /// The server that generated it.
    pub server: Arc<str>,
    /// The scorer's number.
    pub score: f32,
    /// Whether the answer is right, 1 or 0.
    pub acc: f32,
    /// The scores of which `score` is made, by name; empty if it is not made of others.
    pub parts: Parts,
    /// The penalty for length; zero or negative.
    pub overlong_penalty: f32,
    /// `score + overlong_penalty`, clipped and normalised as the recipe says; the advantage is computed from
    /// it.
    pub reward: f32,
    /// Whether its tokens are masked, so that the trainer learns nothing from them.
    pub is_masked: bool,
    /// The answer the scorer found.
    pub prediction: Option<String>,
    /// The advantage, relative to the group; set when the group is complete.
    pub advantage: f32,
    /// The time that it spent in each phase.
    pub spent: Spent,
}

/// A prompt with all of its samples.
#[derive(Debug, Clone)]
pub struct Group {
    /// The dispatch that completed it.
    pub dispatch: DispatchId,
    /// Its place in dispatch order.
    pub number: u64,
    /// The data-set row.
    pub prompt: Arc<Prompt>,
    /// The samples in order of their index.
    pub samples: Vec<Sample>,
    /// When the group was dispatched, since the start of the run.
    pub dispatched_at: Duration,
    /// When the group was complete, since the start of the run.
    pub ended_at: Duration,
    /// The gate that rejects it, if the gate yields to a step that would be short.
    pub set_aside: Option<Rejection>,
    /// The step that accepted it; 0 until then.
    pub step: u64,
    /// How many versions its oldest token will be behind when its step is claimed. It is set when the group
    /// is accepted.
    pub staleness: u64,
    /// Whether that is more than the recipe's bound.
    pub is_stale: bool,
    /// Tokens of versions older than this are masked; 0 masks none.
    pub mask_before: u64,
    /// How often an earlier group of its prompt was given up, as too old or by the watchdog.
    pub returns: u32,
}

impl Group {
    /// Response tokens of all samples.
    pub fn tokens(&self) -> u64 {
        self.samples.iter().map(|sample| sample.response_ids.len() as u64).sum()
    }

    /// Oldest policy version in the group.
    pub fn policy_version_min(&self) -> u64 {
        self.samples.iter().map(|sample| sample.policy_version_min).min().unwrap_or(0)
    }
}

impl From<&Group> for GroupFigures {
    fn from(group: &Group) -> Self {
        Self {
            samples: group.samples.len() as u32,
            tokens: group.tokens(),
            right: group.samples.iter().map(|sample| f64::from(sample.acc)).sum(),
        }
    }
}
