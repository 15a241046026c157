//! The columns of an accepted sample as a row of the queue: the contract with trainers.
//!
//! Lists are ragged: a row holds as many tokens as its response has, and nothing is padded. The rollout makes
//! rows of this schema, recipes are checked against it, and `docs/src/rows.md` describes it for trainers. A
//! run and a gateway make their columns with one function ([`batch`]), so a name has the same meaning in
//! both.

mod columns;

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

pub use columns::{RowView, TrajectoryView, TurnView, batch, counts, floats, seconds, strings};

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

/// The fields of an item of `version_spans`: a version, and the tokens that it generated, from `start` up to
/// `end`.
pub fn span_fields() -> Fields {
    Fields::from(vec![
        Field::new("version", DataType::Utf8, false),
        Field::new("start", DataType::UInt32, false),
        Field::new("end", DataType::UInt32, false),
    ])
}

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let column = |name: &str, dtype: DataType| Field::new(name, dtype, false);
    Arc::new(Schema::new(vec![
        column("prompt_uid", DataType::Utf8),
        column("sample_index", DataType::UInt32),
        column("prompt_ids", list_of(DataType::UInt32)),
        column("response_ids", list_of(DataType::UInt32)),
        column("response_mask", list_of(DataType::UInt8)),
        column("rollout_logprobs", list_of(DataType::Float32)),
        column("reward", DataType::Float32),
        column("score", DataType::Float32),
        column("acc", DataType::Float32),
        column("overlong_penalty", DataType::Float32),
        column("advantage", DataType::Float32),
        column("finish_reason", DataType::Utf8),
        column("policy_version_min", DataType::UInt64),
        column("policy_version_max", DataType::UInt64),
        column("version_spans", list_of(DataType::Struct(span_fields()))),
        column("version_source", DataType::Utf8),
        column("is_stale", DataType::Boolean),
        column("segments", DataType::UInt32),
        column("server", DataType::Utf8),
        column("attempt", DataType::UInt32),
        column("dispatched_s", DataType::Float64),
        column("ended_s", DataType::Float64),
        column("permit_s", DataType::Float32),
        column("engine_s", DataType::Float32),
        column("reward_s", DataType::Float32),
        Field::new("prediction", DataType::Utf8, true),
        column("ground_truth", DataType::Utf8),
        column("data_source", DataType::Utf8),
        column("data_fields", DataType::Utf8),
    ]))
});

/// The column with the weight of a row in means over the data's own groups. Rows have it if the run chooses
/// prompts by difficulty: see [`history`](crate::history).
pub const IMPORTANCE_WEIGHT: &str = "importance_weight";

/// Columns, in the order of a row.
///
/// `prompt_ids`, `response_ids`, `response_mask` and `rollout_logprobs` are ragged lists over tokens.
/// `response_mask` is 1 for tokens that the policy generated and that the trainer trains on. `version_source`
/// is `engine` if the engine reported the token versions, and `client` if it did not. `segments` is the
/// number of requests that generated the response; for a trajectory, it is the number of trained turns.
/// `is_stale` marks groups older than the recipe's bound. `dispatched_s` and `ended_s` are times of the
/// group, in seconds since the process began the run. `permit_s`, `engine_s` and `reward_s` are the seconds
/// that the sample spent in each phase. `data_fields` has the other columns of the data set's row, as one
/// JSON object. If a score is computed from partial scores, the partial scores follow in further columns. The
/// name of such a column is `score_` and the name of the partial score.
/// If prompts are chosen by difficulty, [`IMPORTANCE_WEIGHT`] is the last column.
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

static TRAJECTORY_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let column = |name: &str, dtype: DataType| Arc::new(Field::new(name, dtype, false));
    let further = [
        column("trajectory_uid", DataType::Utf8),
        column("branch", DataType::UInt32),
        column("turn_starts", list_of(DataType::UInt32)),
        column("turn_ends", list_of(DataType::UInt32)),
        column("turn_rewards", list_of(DataType::Float32)),
        column("is_reencoded", DataType::Boolean),
        column("end", DataType::Utf8),
        column("metadata", DataType::Utf8),
    ];
    let fields: Vec<_> = SCHEMA.fields().iter().cloned().chain(further).collect();
    Arc::new(Schema::new(fields))
});

/// The columns of [`schema`], and those that only trajectories have. A trajectory has one row for each path
/// from a root to a leaf of its forest.
///
/// `response_ids` has all tokens of the path from its first sampled token on: the sampled tokens and the
/// messages between them. `response_mask` is 1 for a sampled token in the one row that trains the token.
/// `branch` is the index of the path in the trajectory `trajectory_uid`. `turn_starts` and `turn_ends` are
/// the positions of the turns in `response_ids`, and `turn_rewards` has a null for a turn without a reward of
/// its own. `is_reencoded` is true if a server encoded a prompt of the path itself. The earlier tokens in
/// such a prompt may differ from the tokens that were sampled. `end` is why the trajectory ended, and
/// `metadata` is JSON about the trajectory.
pub fn trajectory_schema() -> SchemaRef {
    Arc::clone(&TRAJECTORY_SCHEMA)
}

/// The name of the column that [`with_token_advantages`] adds.
const TOKEN_ADVANTAGES: &str = "token_advantages";

/// The columns of a schema of trajectories, followed by `token_advantages`. For each token of `response_ids`,
/// this column has the advantage of the token's turn, or 0 where `response_mask` is 0. Only rows of
/// estimators of turns have the column.
pub fn with_token_advantages(schema: &Schema) -> SchemaRef {
    let added = Arc::new(Field::new(TOKEN_ADVANTAGES, list_of(DataType::Float32), false));
    let fields: Vec<_> = schema.fields().iter().cloned().chain([added]).collect();
    Arc::new(Schema::new(fields))
}
