//! The rows of a group. Each trajectory of the group has one row for each path from a root to a leaf.
//!
//! The function that makes the columns of a run's rows also makes these columns, so a trainer can read both
//! kinds of rows.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use rolldock_dispatch::rows::{
    RowView, TrajectoryView, TurnView, batch, strings, trajectory_schema, with_token_advantages,
};
use rolldock_trajectory::{Row, RowTurn, TurnAdvantages};
use serde_json::Value;

use crate::trajectories::{Live, One};

/// The columns. All of them except `prompt` are also columns of a run's rows.
const NAMES: [&str; 23] = [
    "prompt_uid",
    "sample_index",
    "trajectory_uid",
    "branch",
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_logprobs",
    "reward",
    "advantage",
    "turn_starts",
    "turn_ends",
    "turn_rewards",
    "finish_reason",
    "policy_version_min",
    "policy_version_max",
    "version_spans",
    "version_source",
    "is_reencoded",
    "end",
    "server",
    "prompt",
    "metadata",
];

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let of_runs = trajectory_schema();
    let field = |name: &str| match of_runs.field_with_name(name) {
        Ok(field) => field.clone(),
        Err(_) => Field::new(name, DataType::Utf8, false),
    };
    Arc::new(Schema::new(NAMES.map(field).to_vec()))
});

/// Columns, in the order of a row. `prompt_uid` is the group. `response_ids` has everything from the first
/// sampled token on: sampled tokens, which `response_mask` marks with 1 in the one row that trains them, and the
/// messages between them. `turn_starts` and `turn_ends` are the positions of the turns in `response_ids`, and
/// `turn_rewards` has a null for a turn without a reward of its own. `is_reencoded` says that a server
/// encoded a prompt of the path itself, so that earlier tokens in that prompt may differ from the tokens that
/// were sampled. `end` says why the trajectory took no more calls. `prompt` and `metadata` are JSON from the
/// call that opened the trajectory.
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

/// A trajectory whose rows are put.
pub(super) struct Member {
    pub(super) number: u64,
    uid: String,
    index: u32,
    pub(super) rows: Vec<Row>,
    /// For each row, the server of its last turn.
    servers: Vec<String>,
    /// For each row, whether a server encoded a prompt of the row.
    reencoded: Vec<bool>,
    pub(super) reward: f32,
    pub(super) advantage: f32,
    /// Empty unless turns have advantages of their own.
    pub(super) turn_advantages: TurnAdvantages,
    end: &'static str,
    prompt: String,
    metadata: String,
}

impl Member {
    pub(super) fn of(one: &One, live: &Live, index: u32, reward: f32) -> Self {
        let rows = live.forest.rows();
        let server = |turn: &RowTurn| live.drawn_by().server(turn.turn);
        let last = |row: &Row| row.turns.last().and_then(server).map_or("", |(name, _)| name).to_owned();
        let is_reencoded =
            |row: &Row| row.turns.iter().filter_map(server).any(|(_, is_fallback)| is_fallback);
        Self {
            number: one.number,
            uid: one.spec.uid.clone(),
            index,
            servers: rows.iter().map(last).collect(),
            reencoded: rows.iter().map(is_reencoded).collect(),
            rows,
            reward,
            advantage: 0.0,
            turn_advantages: TurnAdvantages::new(),
            end: live.end.map_or("", |end| end.as_str()),
            prompt: if one.spec.prompt.is_null() { String::new() } else { one.spec.prompt.to_string() },
            metadata: Value::Object(one.spec.metadata.clone()).to_string(),
        }
    }

    /// The versions of all sampled tokens.
    pub(super) fn versions(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows.iter().flat_map(versions)
    }
}

/// The versions of a row. A label without a number counts as 0.
fn versions(row: &Row) -> impl Iterator<Item = u64> + '_ {
    row.version_spans.iter().map(|span| span.number().unwrap_or(0))
}

/// A row in the form that `batch` takes.
fn view<'a>(group: &'a str, member: &'a Member, index: usize) -> RowView<'a> {
    let row = &member.rows[index];
    let turn = |turn: &RowTurn| TurnView {
        start: turn.start,
        end: turn.end,
        reward: turn.reward,
        advantage: member.turn_advantages.get(&turn.turn).copied().unwrap_or(member.advantage),
    };
    let trajectory = TrajectoryView {
        uid: &member.uid,
        branch: row.branch,
        turns: row.turns.iter().map(turn).collect(),
        is_reencoded: member.reencoded[index],
        end: member.end,
        metadata: &member.metadata,
    };
    RowView {
        prompt_uid: group,
        sample_index: member.index,
        prompt_ids: &row.prompt_ids,
        response_ids: &row.response_ids,
        response_mask: Cow::Borrowed(&row.response_mask),
        logprobs: &row.logprobs,
        reward: member.reward,
        advantage: member.advantage,
        finish_reason: row.finish_reason,
        versions: (versions(row).min().unwrap_or(0), versions(row).max().unwrap_or(0)),
        version_spans: &row.version_spans,
        versions_reported: row.versions_reported,
        server: &member.servers[index],
        trajectory: Some(trajectory),
    }
}

/// The rows of a group, in the order of its trajectories and of their branches. If turns have advantages of
/// their own, the rows also have the advantages of tokens.
pub(super) fn batch_of(
    group: &str,
    members: &[Member],
    has_turn_advantages: bool,
) -> Result<RecordBatch, ArrowError> {
    let mut rows = Vec::new();
    for member in members {
        rows.extend((0..member.rows.len()).map(|index| view(group, member, index)));
    }
    let prompts = members.iter().flat_map(|member| member.rows.iter().map(move |_| member.prompt.as_str()));
    let columns = if has_turn_advantages { with_token_advantages(&schema()) } else { schema() };
    batch(columns, &rows, |name| (name == "prompt").then(|| strings(prompts.clone())))
}
