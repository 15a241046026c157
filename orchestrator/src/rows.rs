//! Converts accepted groups to rows of the transfer queue.
//!
//! One row is one sample, or one path of a sample that is a trajectory. Lists are ragged: a row holds as many
//! tokens as its response has, and nothing is padded. [`schema`] and [`trajectory_schema`] are the contracts
//! with trainers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, StringBuilder};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use rolldock_dispatch::VersionSpan;
use rolldock_dispatch::rows::{
    RowView, TrajectoryView, TurnView, batch, counts, floats, seconds, strings, with_token_advantages,
};
use rolldock_trajectory::{Row, RowTurn};

use crate::rollout::{Group, Sample, SampleRows};

pub use rolldock_dispatch::rows::{IMPORTANCE_WEIGHT, schema, trajectory_schema};

/// One column for each partial score. The value is null where a sample has no partial score of that name.
fn part_columns(samples: &[&Sample]) -> (Vec<Field>, Vec<ArrayRef>) {
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

/// The mask of a single answer. Tokens of versions before `mask_before` are masked. All tokens of a masked
/// sample are masked.
fn mask_of_answer(sample: &Sample, mask_before: u64) -> Vec<u8> {
    let mut mask = vec![u8::from(!sample.is_masked); sample.response_ids.len()];
    mask_versions(&mut mask, &sample.version_spans, sample.policy_version_min, mask_before);
    mask
}

/// The mask of a path. It masks tokens by the rules for a single answer, and also the tokens that the path
/// does not train.
fn mask_of_path<'a>(sample: &Sample, row: &'a Row, mask_before: u64) -> Cow<'a, [u8]> {
    if sample.is_masked {
        return Cow::Owned(vec![0; row.response_mask.len()]);
    }
    if sample.policy_version_min >= mask_before {
        return Cow::Borrowed(&row.response_mask);
    }
    let mut mask = row.response_mask.clone();
    mask_versions(&mut mask, &row.version_spans, sample.policy_version_min, mask_before);
    Cow::Owned(mask)
}

/// Masks the tokens of versions before `mask_before`. A span without a number counts as version `unnamed`.
fn mask_versions(mask: &mut [u8], spans: &[VersionSpan], unnamed: u64, mask_before: u64) {
    for span in spans.iter().filter(|span| span.number().unwrap_or(unnamed) < mask_before) {
        if let Some(stale) = mask.get_mut(span.start as usize..span.end as usize) {
            stale.fill(0);
        }
    }
}

/// The rows of a sample.
fn views<'a>(group: &'a Group, uid: &'a str, sample: &'a Sample) -> Vec<RowView<'a>> {
    let whole = RowView {
        prompt_uid: uid,
        sample_index: sample.index,
        prompt_ids: &group.prompt.ids,
        response_ids: &sample.response_ids,
        response_mask: Cow::Borrowed(&[]),
        logprobs: &sample.logprobs,
        reward: sample.reward,
        advantage: sample.advantage,
        finish_reason: sample.finish_reason,
        versions: (sample.policy_version_min, sample.policy_version_max),
        version_spans: &sample.version_spans,
        versions_reported: sample.versions_reported,
        server: &sample.server,
        trajectory: None,
    };
    let Some(trajectory) = &sample.trajectory else {
        let mask = mask_of_answer(sample, group.mask_before);
        return vec![RowView { response_mask: Cow::Owned(mask), ..whole }];
    };
    let paths = trajectory.rows.iter().zip(&trajectory.reencoded);
    let view = |(row, is_reencoded): (&'a Row, &bool)| RowView {
        prompt_ids: &row.prompt_ids,
        response_ids: &row.response_ids,
        response_mask: mask_of_path(sample, row, group.mask_before),
        logprobs: &row.logprobs,
        versions: versions_of(row, whole.versions),
        version_spans: &row.version_spans,
        versions_reported: row.versions_reported,
        trajectory: Some(path_view(sample, trajectory, row, *is_reencoded)),
        ..whole.clone()
    };
    paths.map(view).collect()
}

/// The oldest and the newest version of a path. A span without a number has the versions of the sample.
fn versions_of(row: &Row, of_sample: (u64, u64)) -> (u64, u64) {
    let of_span = |span: &VersionSpan| span.number().map_or(of_sample, |version| (version, version));
    let join = |all: (u64, u64), one: (u64, u64)| (all.0.min(one.0), all.1.max(one.1));
    row.version_spans.iter().map(of_span).reduce(join).unwrap_or(of_sample)
}

fn path_view<'a>(
    sample: &Sample,
    trajectory: &'a SampleRows,
    row: &'a Row,
    is_reencoded: bool,
) -> TrajectoryView<'a> {
    let advantage = |turn: &RowTurn| sample.turn_advantages.as_ref()?.get(&turn.turn).copied();
    let view = |turn: &RowTurn| TurnView {
        start: turn.start,
        end: turn.end,
        reward: turn.reward,
        advantage: advantage(turn).unwrap_or(sample.advantage),
    };
    TrajectoryView {
        uid: &row.trajectory_uid,
        branch: row.branch,
        turns: row.turns.iter().map(view).collect(),
        is_reencoded,
        end: trajectory.end,
        metadata: &trajectory.metadata,
    }
}

/// The rows of a group, in the order of the sample index and of the branches.
///
/// # Errors
/// Returns an error if columns differ in length, which would be a defect of this module.
pub fn group_rows(group: &Group) -> Result<RecordBatch, ArrowError> {
    let uid = group.prompt.uid.to_string();
    let mut rows = Vec::with_capacity(group.samples.len());
    let mut samples: Vec<&Sample> = Vec::with_capacity(group.samples.len());
    for sample in &group.samples {
        let paths = views(group, &uid, sample);
        samples.extend(std::iter::repeat_n(sample, paths.len()));
        rows.extend(paths);
    }
    let is_trajectories = group.samples.iter().any(|sample| sample.trajectory.is_some());
    let has_turn_advantages = group.samples.iter().any(|sample| sample.turn_advantages.is_some());
    let base = match (is_trajectories, has_turn_advantages) {
        (false, _) => schema(),
        (true, false) => trajectory_schema(),
        (true, true) => with_token_advantages(&trajectory_schema()),
    };
    let (mut further_fields, mut further) = part_columns(&samples);
    if let Some(weight) = group.importance_weight() {
        further_fields.push(Field::new(IMPORTANCE_WEIGHT, DataType::Float32, false));
        further.push(floats(samples.iter().map(|_| weight)));
    }
    let fields = base.fields().iter().cloned().chain(further_fields.iter().cloned().map(Arc::new));
    let whole = if further.is_empty() { base } else { Arc::new(Schema::new(fields.collect::<Vec<_>>())) };
    batch(whole, &rows, |name| {
        let place = further_fields.iter().position(|field| field.name() == name);
        place.map(|place| Arc::clone(&further[place])).or_else(|| own_column(group, &samples, name))
    })
}

/// A column that only rows of runs have. `samples` has the sample of each row.
fn own_column(group: &Group, samples: &[&Sample], name: &str) -> Option<ArrayRef> {
    let prompt = &group.prompt;
    let each = |value: &str| strings(samples.iter().map(|_| value));
    Some(match name {
        "score" => floats(samples.iter().map(|sample| sample.score)),
        "acc" => floats(samples.iter().map(|sample| sample.acc)),
        "overlong_penalty" => floats(samples.iter().map(|sample| sample.overlong_penalty)),
        "is_stale" => Arc::new(samples.iter().map(|_| Some(group.is_stale)).collect::<BooleanArray>()),
        "segments" => counts(samples.iter().map(|sample| sample.segments)),
        "attempt" => counts(samples.iter().map(|sample| sample.attempt)),
        "dispatched_s" => seconds(samples.iter().map(|_| group.dispatched_at.as_secs_f64())),
        "ended_s" => seconds(samples.iter().map(|_| group.ended_at.as_secs_f64())),
        "permit_s" => floats(samples.iter().map(|sample| sample.spent.permit.as_secs_f32())),
        "engine_s" => floats(samples.iter().map(|sample| sample.spent.engine.as_secs_f32())),
        "reward_s" => floats(samples.iter().map(|sample| sample.spent.reward.as_secs_f32())),
        "prediction" => {
            let mut predictions = StringBuilder::new();
            samples.iter().for_each(|sample| predictions.append_option(sample.prediction.as_deref()));
            Arc::new(predictions.finish())
        }
        "ground_truth" => each(&prompt.answer),
        "data_source" => each(&prompt.source),
        "data_fields" => each(prompt.fields.as_json()),
        _ => return None,
    })
}
