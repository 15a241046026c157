//! One row of a trajectory: a path from a root to a leaf.

use std::sync::Arc;

use rolldock_dispatch::{FinishReason, VersionSpan};

use crate::TurnId;

/// A path from a root to a leaf, as a row for a trainer.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The trajectory.
    pub trajectory_uid: Arc<str>,
    /// The index of the path among all paths of the trajectory, from 0. Rows that train nothing are left out.
    pub branch: u32,
    /// The ids before the first token that the policy sampled on this path.
    pub prompt_ids: Vec<u32>,
    /// All following ids: sampled tokens, and the messages between them.
    pub response_ids: Vec<u32>,
    /// 1 for each token of `response_ids` that this row trains.
    pub response_mask: Vec<u8>,
    /// One log-probability for each token of `response_ids`, in nats, 0 for tokens that were not sampled.
    /// Empty if a server gave none.
    pub logprobs: Vec<f32>,
    /// The versions of the sampled tokens, as positions in `response_ids`. Tokens that were not sampled are in
    /// no span.
    pub version_spans: Vec<VersionSpan>,
    /// Whether the engine reported all of the versions.
    pub versions_reported: bool,
    /// Why the last turn ended.
    pub finish_reason: FinishReason,
    /// The turns of the path.
    pub turns: Vec<RowTurn>,
}

/// A turn of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowTurn {
    /// The turn.
    pub turn: TurnId,
    /// The position of the turn's first sampled token in `response_ids`.
    pub start: u32,
    /// One past the position of the turn's last sampled token.
    pub end: u32,
    /// The turn's own reward, if one was given.
    pub reward: Option<f32>,
    /// Whether this row trains the turn. Each turn is trained by at most one row.
    pub is_trained: bool,
}
