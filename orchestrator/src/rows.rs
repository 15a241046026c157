//! Accepted groups as rows of the transfer queue.
//!
//! One row is one sample. Lists are ragged: a row holds as many tokens as its response has, and nothing is
//! padded. [`schema`] is the contract with trainers; `docs/src/rows.md` describes it for them.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    Float32Builder, Float64Builder, ListBuilder, StringBuilder, StructBuilder, UInt8Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};

use crate::rollout::{Group, Sample};

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

fn span_fields() -> Fields {
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

/// Columns, in the order of [`group_rows`].
///
/// `prompt_ids`, `response_ids`, `response_mask` and `rollout_logprobs` are ragged lists over tokens.
/// `response_mask` is 1 for tokens that the policy generated and that the trainer trains on. `version_source`
/// is `engine` if the engine reported the token versions, and `client` if it did not. `segments` is the
/// number of requests that generated the response. `is_stale` marks groups older than the recipe's bound.
/// `dispatched_s` and `ended_s` are times of the group, in seconds since the start of the run. `permit_s`,
/// `engine_s` and `reward_s` are the seconds that the sample spent in each phase. `data_fields` is the data
/// set's row as JSON. If a score is computed from partial scores, they follow in further columns, named
/// `score_` and the name of the partial score.
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}

/// One column for each partial score. The value is null where a sample has no partial score of that name.
fn part_columns(samples: &[Sample]) -> (Vec<Field>, Vec<ArrayRef>) {
    let names: BTreeSet<&Arc<str>> = samples.iter().flat_map(|sample| sample.parts.keys()).collect();
    let column = |name: &Arc<str>| -> (Field, ArrayRef) {
        let mut builder = Float32Builder::with_capacity(samples.len());
        for sample in samples {
            builder.append_option(sample.parts.get(name).map(|part| *part as f32));
        }
        (Field::new(format!("score_{name}"), DataType::Float32, true), Arc::new(builder.finish()))
    };
    names.into_iter().map(column).unzip()
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

fn seconds(values: impl Iterator<Item = f64>) -> ArrayRef {
    let mut builder = Float64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn counts(values: impl Iterator<Item = u32>) -> ArrayRef {
    let mut builder = UInt32Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn versions(values: impl Iterator<Item = u64>) -> ArrayRef {
    let mut builder = UInt64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn token_lists<'a>(rows: impl Iterator<Item = &'a [u32]>, tokens: usize) -> ArrayRef {
    let mut builder = ListBuilder::new(UInt32Builder::with_capacity(tokens));
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn logprob_lists(samples: &[Sample], tokens: usize) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::with_capacity(tokens));
    for sample in samples {
        builder.values().append_slice(&sample.logprobs);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

/// Tokens of versions before `mask_before` are masked. All tokens of a masked sample are masked.
fn masks(samples: &[Sample], tokens: usize, mask_before: u64) -> ArrayRef {
    let mut builder = ListBuilder::new(UInt8Builder::with_capacity(tokens));
    for sample in samples {
        let values = builder.values();
        if sample.is_masked || sample.policy_version_min >= mask_before {
            values.append_value_n(u8::from(!sample.is_masked), sample.response_ids.len());
        } else {
            for span in &sample.version_spans {
                let is_fresh = span.number().unwrap_or(sample.policy_version_min) >= mask_before;
                values.append_value_n(u8::from(is_fresh), (span.end - span.start) as usize);
            }
        }
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn span_lists(samples: &[Sample]) -> Result<ArrayRef, ArrowError> {
    let mut builder = ListBuilder::new(StructBuilder::from_fields(span_fields(), samples.len()));
    for sample in samples {
        for span in &sample.version_spans {
            let row = builder.values();
            let missing = || ArrowError::SchemaError("version_spans has three fields".to_owned());
            row.field_builder::<StringBuilder>(0).ok_or_else(missing)?.append_value(&span.version);
            row.field_builder::<UInt32Builder>(1).ok_or_else(missing)?.append_value(span.start);
            row.field_builder::<UInt32Builder>(2).ok_or_else(missing)?.append_value(span.end);
            row.append(true);
        }
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

/// The rows of a group: one row per sample, in the order of the sample index.
pub fn group_rows(group: &Group) -> Result<RecordBatch, ArrowError> {
    let samples = group.samples.as_slice();
    let tokens = group.tokens() as usize;
    let prompt = &group.prompt;
    let each = |value: &str| strings(samples.iter().map(|_| value));
    let mut predictions = StringBuilder::new();
    samples.iter().for_each(|sample| predictions.append_option(sample.prediction.as_deref()));
    let mut columns: Vec<ArrayRef> = vec![
        each(&prompt.uid.to_string()),
        counts(samples.iter().map(|sample| sample.index)),
        token_lists(samples.iter().map(|_| &*prompt.ids), prompt.ids.len() * samples.len()),
        token_lists(samples.iter().map(|sample| sample.response_ids.as_slice()), tokens),
        masks(samples, tokens, group.mask_before),
        logprob_lists(samples, tokens),
        floats(samples.iter().map(|sample| sample.reward)),
        floats(samples.iter().map(|sample| sample.score)),
        floats(samples.iter().map(|sample| sample.acc)),
        floats(samples.iter().map(|sample| sample.overlong_penalty)),
        floats(samples.iter().map(|sample| sample.advantage)),
        strings(samples.iter().map(|sample| sample.finish_reason.as_str())),
        versions(samples.iter().map(|sample| sample.policy_version_min)),
        versions(samples.iter().map(|sample| sample.policy_version_max)),
        span_lists(samples)?,
        strings(samples.iter().map(|sample| if sample.versions_reported { "engine" } else { "client" })),
        Arc::new(samples.iter().map(|_| Some(group.is_stale)).collect::<BooleanArray>()),
        counts(samples.iter().map(|sample| sample.segments)),
        strings(samples.iter().map(|sample| &*sample.server)),
        counts(samples.iter().map(|sample| sample.attempt)),
        seconds(samples.iter().map(|_| group.dispatched_at.as_secs_f64())),
        seconds(samples.iter().map(|_| group.ended_at.as_secs_f64())),
        floats(samples.iter().map(|sample| sample.spent.permit.as_secs_f32())),
        floats(samples.iter().map(|sample| sample.spent.engine.as_secs_f32())),
        floats(samples.iter().map(|sample| sample.spent.reward.as_secs_f32())),
        Arc::new(predictions.finish()),
        each(&prompt.answer),
        each(&prompt.source),
        each(prompt.fields.as_json()),
    ];
    let (part_fields, parts) = part_columns(samples);
    if parts.is_empty() {
        return RecordBatch::try_new(schema(), columns);
    }
    columns.extend(parts);
    let fields = SCHEMA.fields().iter().cloned().chain(part_fields.into_iter().map(Arc::new));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)
}
