//! A prompt's finished samples: the unit of filtering and of acceptance.

use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::{DispatchId, FinishReason, Spent, VersionSpan};
use rolldock_reward::{Parts, Rejection};

use crate::data::Prompt;

/// One scored response.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Place in the group, `0..samples_per_prompt`.
    pub index: u32,
    /// How many attempts came before this one.
    pub attempt: u32,
    /// Token ids, the stop token included.
    pub response_ids: Vec<u32>,
    /// One log-probability per token; empty only from a text-only server.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// Engine-reported spans, or one span with the client's version.
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
    /// Zero or negative; see the reward room's overlong shaping.
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
    /// Where its time went.
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
    /// How many versions its oldest token is behind when its step is claimed; known when it is accepted.
    pub staleness: u64,
    /// Whether that is more than the recipe's bound.
    pub is_stale: bool,
    /// Tokens of older versions are masked; 0 masks none.
    pub mask_before: u64,
    /// How often its prompt was given up before as too old.
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
