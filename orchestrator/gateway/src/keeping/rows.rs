//! The rows of a group: one for each path from a root to a leaf of each of its trajectories.
//!
//! Columns that a run's rows have, too, have the same names and types, so a trainer reads both.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    Float32Builder, ListBuilder, StringBuilder, StructBuilder, UInt8Builder, UInt32Builder, UInt64Builder,
};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use rolldock_dispatch::rows::span_fields;
use rolldock_trajectory::{Row, RowTurn};
use serde_json::Value;

use crate::trajectories::{Live, One};

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let column = |name: &str, dtype: DataType| Field::new(name, dtype, false);
    Arc::new(Schema::new(vec![
        column("prompt_uid", DataType::Utf8),
        column("sample_index", DataType::UInt32),
        column("trajectory_uid", DataType::Utf8),
        column("branch", DataType::UInt32),
        column("prompt_ids", list_of(DataType::UInt32)),
        column("response_ids", list_of(DataType::UInt32)),
        column("response_mask", list_of(DataType::UInt8)),
        column("rollout_logprobs", list_of(DataType::Float32)),
        column("reward", DataType::Float32),
        column("advantage", DataType::Float32),
        column("turn_starts", list_of(DataType::UInt32)),
        column("turn_ends", list_of(DataType::UInt32)),
        column("turn_rewards", list_of(DataType::Float32)),
        column("finish_reason", DataType::Utf8),
        column("policy_version_min", DataType::UInt64),
        column("policy_version_max", DataType::UInt64),
        column("version_spans", list_of(DataType::Struct(span_fields()))),
        column("version_source", DataType::Utf8),
        column("is_reencoded", DataType::Boolean),
        column("end", DataType::Utf8),
        column("server", DataType::Utf8),
        column("prompt", DataType::Utf8),
        column("metadata", DataType::Utf8),
    ]))
});

/// Columns, in the order of a row. `prompt_uid` is the group. `response_ids` has everything after the first
/// sampled token: sampled tokens, which `response_mask` marks with 1 in the one row that trains them, and the
/// messages between them. `turn_starts` and `turn_ends` are the positions of the turns in it, and
/// `turn_rewards` has a null for a turn without a reward of its own. `is_reencoded` says that a server encoded
/// a prompt of the path itself, so that earlier tokens in it need not be those that were sampled. `end` is why
/// the trajectory took no more calls, and `prompt` and `metadata` are JSON of the call that made it.
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

/// A trajectory whose rows are put.
pub(super) struct Member {
    pub(super) uid: String,
    index: u32,
    pub(super) rows: Vec<Row>,
    /// For each row, the server of its last turn.
    servers: Vec<String>,
    /// For each row, whether a server encoded a prompt of it.
    reencoded: Vec<bool>,
    pub(super) reward: f32,
    pub(super) advantage: f32,
    end: &'static str,
    prompt: String,
    metadata: String,
}

impl Member {
    pub(super) fn of(one: &One, live: &Live, index: u32, reward: f32) -> Self {
        let rows = live.forest.rows();
        let server = |turn: &RowTurn| live.server(turn.turn);
        let last = |row: &Row| row.turns.last().and_then(server).map_or("", |(name, _)| name).to_owned();
        let is_reencoded =
            |row: &Row| row.turns.iter().filter_map(server).any(|(_, is_fallback)| is_fallback);
        Self {
            uid: one.spec.uid.clone(),
            index,
            servers: rows.iter().map(last).collect(),
            reencoded: rows.iter().map(is_reencoded).collect(),
            rows,
            reward,
            advantage: 0.0,
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

fn strings<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn floats(values: impl Iterator<Item = f32>) -> ArrayRef {
    let mut builder = Float32Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn counts(values: impl Iterator<Item = u32>) -> ArrayRef {
    let mut builder = UInt32Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn numbers(values: impl Iterator<Item = u64>) -> ArrayRef {
    let mut builder = UInt64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn number_lists(rows: impl Iterator<Item = Vec<u32>>) -> ArrayRef {
    let mut builder = ListBuilder::new(UInt32Builder::new());
    for row in rows {
        builder.values().append_slice(&row);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn masks<'a>(rows: impl Iterator<Item = &'a Row>) -> ArrayRef {
    let mut builder = ListBuilder::new(UInt8Builder::new());
    for row in rows {
        builder.values().append_slice(&row.response_mask);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn float_lists<'a>(rows: impl Iterator<Item = &'a [f32]>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn turn_rewards<'a>(rows: impl Iterator<Item = &'a Row>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for row in rows {
        row.turns.iter().for_each(|turn| builder.values().append_option(turn.reward));
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn span_lists<'a>(rows: impl Iterator<Item = &'a Row>) -> Result<ArrayRef, ArrowError> {
    let mut builder = ListBuilder::new(StructBuilder::from_fields(span_fields(), 0));
    for row in rows {
        for span in &row.version_spans {
            let fields = builder.values();
            let missing = || ArrowError::SchemaError("version_spans has three fields".to_owned());
            fields.field_builder::<StringBuilder>(0).ok_or_else(missing)?.append_value(&span.version);
            fields.field_builder::<UInt32Builder>(1).ok_or_else(missing)?.append_value(span.start);
            fields.field_builder::<UInt32Builder>(2).ok_or_else(missing)?.append_value(span.end);
            fields.append(true);
        }
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

/// The rows of a group, in the order of its trajectories and of their branches.
pub(super) fn batch_of(group: &str, members: &[Member]) -> Result<RecordBatch, ArrowError> {
    // One element for each row: the trajectory, and the index of the row in it.
    let all: Vec<(&Member, usize)> =
        members.iter().flat_map(|member| (0..member.rows.len()).map(move |index| (member, index))).collect();
    let rows = || all.iter().map(|(member, index)| &member.rows[*index]);
    let of = || all.iter().map(|(member, _)| *member);
    let turns = |at: fn(&RowTurn) -> u32| {
        number_lists(rows().map(|row| row.turns.iter().map(at).collect::<Vec<u32>>()))
    };
    let columns: Vec<ArrayRef> = vec![
        strings(of().map(|_| group)),
        counts(of().map(|member| member.index)),
        strings(of().map(|member| member.uid.as_str())),
        counts(rows().map(|row| row.branch)),
        number_lists(rows().map(|row| row.prompt_ids.clone())),
        number_lists(rows().map(|row| row.response_ids.clone())),
        masks(rows()),
        float_lists(rows().map(|row| row.logprobs.as_slice())),
        floats(of().map(|member| member.reward)),
        floats(of().map(|member| member.advantage)),
        turns(|turn| turn.start),
        turns(|turn| turn.end),
        turn_rewards(rows()),
        strings(rows().map(|row| row.finish_reason.as_str())),
        numbers(rows().map(|row| versions(row).min().unwrap_or(0))),
        numbers(rows().map(|row| versions(row).max().unwrap_or(0))),
        span_lists(rows())?,
        strings(rows().map(|row| if row.versions_reported { "engine" } else { "client" })),
        Arc::new(all.iter().map(|(member, index)| Some(member.reencoded[*index])).collect::<BooleanArray>()),
        strings(of().map(|member| member.end)),
        strings(all.iter().map(|(member, index)| member.servers[*index].as_str())),
        strings(of().map(|member| member.prompt.as_str())),
        strings(of().map(|member| member.metadata.as_str())),
    ];
    RecordBatch::try_new(schema(), columns)
}
