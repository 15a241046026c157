//! Makes the columns of rows.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{
    Float32Builder, Float64Builder, ListBuilder, StringBuilder, StructBuilder, UInt8Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};

use super::{TOKEN_ADVANTAGES, span_fields};
use crate::{FinishReason, VersionSpan};

/// The values that rows of runs and rows of gateways have in common.
#[derive(Debug, Clone)]
pub struct RowView<'a> {
    /// The prompt, or the group of a gateway.
    pub prompt_uid: &'a str,
    /// The index of the sample in its group.
    pub sample_index: u32,
    /// The ids before the first sampled token.
    pub prompt_ids: &'a [u32],
    /// All ids from the first sampled token on.
    pub response_ids: &'a [u32],
    /// 1 for each id of `response_ids` that the trainer trains on.
    pub response_mask: Cow<'a, [u8]>,
    /// One log-probability for each id of `response_ids`; empty if a server gave none.
    pub logprobs: &'a [f32],
    /// The reward of the sample.
    pub reward: f32,
    /// The advantage of the sample.
    pub advantage: f32,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// The oldest and the newest policy version of the sampled tokens.
    pub versions: (u64, u64),
    /// The versions as positions in `response_ids`.
    pub version_spans: &'a [VersionSpan],
    /// Whether the engine reported the versions.
    pub versions_reported: bool,
    /// The server of the last request.
    pub server: &'a str,
    /// What only rows of trajectories have.
    pub trajectory: Option<TrajectoryView<'a>>,
}

/// What only rows of trajectories have. The default is a row without turns.
#[derive(Debug, Clone, Default)]
pub struct TrajectoryView<'a> {
    /// The trajectory.
    pub uid: &'a str,
    /// The index of the path in the trajectory.
    pub branch: u32,
    /// The turns of the path.
    pub turns: Vec<TurnView>,
    /// Whether a server encoded a prompt of the path itself.
    pub is_reencoded: bool,
    /// Why the trajectory ended.
    pub end: &'a str,
    /// JSON about the trajectory.
    pub metadata: &'a str,
}

/// A turn as positions in `response_ids`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnView {
    /// The first sampled token.
    pub start: u32,
    /// One past the last sampled token.
    pub end: u32,
    /// The turn's own reward.
    pub reward: Option<f32>,
    /// The advantage of its tokens.
    pub advantage: f32,
}

/// The rows as a batch of this schema. `own` returns the columns that this module does not make.
///
/// # Errors
/// A column has no values, or values of another type.
pub fn batch(
    schema: SchemaRef,
    rows: &[RowView<'_>],
    own: impl Fn(&str) -> Option<ArrayRef>,
) -> Result<RecordBatch, ArrowError> {
    let column = |name: &str| match own(name) {
        Some(values) => Ok(values),
        None => common(rows, name)?
            .ok_or_else(|| ArrowError::SchemaError(format!("the column {name} has no values"))),
    };
    let columns = schema.fields().iter().map(|field| column(field.name()));
    let columns = columns.collect::<Result<Vec<ArrayRef>, ArrowError>>()?;
    RecordBatch::try_new(schema, columns)
}

/// A column that this module makes; `None` if this module does not know the name.
fn common(rows: &[RowView<'_>], name: &str) -> Result<Option<ArrayRef>, ArrowError> {
    Ok(Some(match name {
        "prompt_uid" => strings(rows.iter().map(|row| row.prompt_uid)),
        "sample_index" => counts(rows.iter().map(|row| row.sample_index)),
        "prompt_ids" => token_lists(rows.iter().map(|row| row.prompt_ids)),
        "response_ids" => token_lists(rows.iter().map(|row| row.response_ids)),
        "response_mask" => masks(rows),
        "rollout_logprobs" => logprobs(rows),
        "reward" => floats(rows.iter().map(|row| row.reward)),
        "advantage" => floats(rows.iter().map(|row| row.advantage)),
        "finish_reason" => strings(rows.iter().map(|row| row.finish_reason.as_str())),
        "policy_version_min" => numbers(rows.iter().map(|row| row.versions.0)),
        "policy_version_max" => numbers(rows.iter().map(|row| row.versions.1)),
        "version_spans" => span_lists(rows)?,
        "version_source" => {
            strings(rows.iter().map(|row| if row.versions_reported { "engine" } else { "client" }))
        }
        "server" => strings(rows.iter().map(|row| row.server)),
        name => return Ok(of_trajectories(rows, name)),
    }))
}

fn of_trajectories(rows: &[RowView<'_>], name: &str) -> Option<ArrayRef> {
    // A row of a single answer counts as a trajectory without turns, so that every column has a value for
    // every row.
    let none = TrajectoryView::default();
    let views = || rows.iter().map(|row| row.trajectory.as_ref().unwrap_or(&none));
    let turns = |of: fn(&TurnView) -> u32| {
        let lists = views().map(|view| view.turns.iter().map(of).collect::<Vec<u32>>());
        token_lists(lists)
    };
    Some(match name {
        "trajectory_uid" => strings(views().map(|view| view.uid)),
        "branch" => counts(views().map(|view| view.branch)),
        "turn_starts" => turns(|turn| turn.start),
        "turn_ends" => turns(|turn| turn.end),
        "turn_rewards" => {
            let mut builder = ListBuilder::new(Float32Builder::new());
            for view in views() {
                view.turns.iter().for_each(|turn| builder.values().append_option(turn.reward));
                builder.append(true);
            }
            Arc::new(builder.finish())
        }
        TOKEN_ADVANTAGES => token_advantages(rows),
        "is_reencoded" => Arc::new(views().map(|view| Some(view.is_reencoded)).collect::<BooleanArray>()),
        "end" => strings(views().map(|view| view.end)),
        "metadata" => strings(views().map(|view| view.metadata)),
        _ => return None,
    })
}

/// A column of texts.
pub fn strings<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

/// A column of 32-bit floats.
pub fn floats(values: impl Iterator<Item = f32>) -> ArrayRef {
    let mut builder = Float32Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

/// A column of 64-bit floats, such as times in seconds.
pub fn seconds(values: impl Iterator<Item = f64>) -> ArrayRef {
    let mut builder = Float64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

/// A column of 32-bit counts.
pub fn counts(values: impl Iterator<Item = u32>) -> ArrayRef {
    let mut builder = UInt32Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn numbers(values: impl Iterator<Item = u64>) -> ArrayRef {
    let mut builder = UInt64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn token_lists(rows: impl Iterator<Item = impl AsRef<[u32]>> + Clone) -> ArrayRef {
    let tokens = rows.clone().map(|row| row.as_ref().len()).sum();
    let mut builder = ListBuilder::new(UInt32Builder::with_capacity(tokens));
    for row in rows {
        builder.values().append_slice(row.as_ref());
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn logprobs(rows: &[RowView<'_>]) -> ArrayRef {
    let tokens = rows.iter().map(|row| row.logprobs.len()).sum();
    let mut builder = ListBuilder::new(Float32Builder::with_capacity(tokens));
    for row in rows {
        builder.values().append_slice(row.logprobs);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

/// For each token of a response, the advantage of its turn; 0 for a token that the row does not train.
fn token_advantages(rows: &[RowView<'_>]) -> ArrayRef {
    let tokens = rows.iter().map(|row| row.response_mask.len()).sum();
    let mut builder = ListBuilder::new(Float32Builder::with_capacity(tokens));
    for row in rows {
        let mut of_tokens = vec![0.0; row.response_mask.len()];
        for turn in row.trajectory.iter().flat_map(|trajectory| &trajectory.turns) {
            let places = turn.start as usize..turn.end as usize;
            let tokens = of_tokens.get_mut(places.clone()).unwrap_or_default();
            let masks = row.response_mask.get(places).unwrap_or_default();
            for (token, _) in tokens.iter_mut().zip(masks).filter(|(_, mask)| **mask != 0) {
                *token = turn.advantage;
            }
        }
        builder.values().append_slice(&of_tokens);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn masks(rows: &[RowView<'_>]) -> ArrayRef {
    let tokens = rows.iter().map(|row| row.response_mask.len()).sum();
    let mut builder = ListBuilder::new(UInt8Builder::with_capacity(tokens));
    for row in rows {
        builder.values().append_slice(&row.response_mask);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn span_lists(rows: &[RowView<'_>]) -> Result<ArrayRef, ArrowError> {
    let spans = rows.iter().map(|row| row.version_spans.len()).sum();
    let mut builder = ListBuilder::new(StructBuilder::from_fields(span_fields(), spans));
    for row in rows {
        for span in row.version_spans {
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
