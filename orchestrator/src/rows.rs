//! Accepted groups as rows of the transfer queue.
//!
//! One row is one sample. Lists are ragged: a row holds as many tokens as its response has, and nothing is
//! padded. [`schema`] is the contract with trainers.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::builder::{
    Float32Builder, Float64Builder, ListBuilder, StringBuilder, StructBuilder, UInt8Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use rolldock_dispatch::rows::span_fields;

use crate::rollout::{Group, Sample};

pub use rolldock_dispatch::rows::schema;

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
    let own = schema();
    let fields = own.fields().iter().cloned().chain(part_fields.into_iter().map(Arc::new));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)
}
