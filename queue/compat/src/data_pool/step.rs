//! Steps, and their rows.

use std::sync::Arc;

use arrow_array::types::UInt32Type;
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use rolldock_queue::QueueError;

/// One step of a trajectory: a row with one column for each field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The tokens that the policy got as input. `List<UInt32>`.
    pub prompt_ids: Vec<u32>,
    /// The tokens that the policy generated. `List<UInt32>`.
    pub response_ids: Vec<u32>,
    /// The reward. `Float32`.
    pub reward: f32,
    /// The trajectory, which is unique in the pool. `Utf8`.
    pub trajectory_uid: String,
    /// The prompt, whose trajectories form a group. `Utf8`.
    pub prompt_uid: String,
    /// The index of the step in its trajectory. `UInt32`.
    pub step_index: u32,
    /// The oldest policy version of the response's tokens. `UInt64`.
    pub policy_version: u64,
    /// Whether this step completes the trajectory. `Boolean`.
    pub is_last: bool,
    /// JSON that only the owner interprets, as text. `Utf8`.
    #[serde(default)]
    pub metadata: Value,
}

impl Step {
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.trajectory_uid, self.step_index)
    }

    /// Whether `next` may be in one put with this step. A put has one policy version, so the versions must be
    /// equal.
    pub(super) fn goes_on_with(&self, next: &Self) -> bool {
        !self.is_last
            && self.trajectory_uid == next.trajectory_uid
            && self.prompt_uid == next.prompt_uid
            && self.policy_version == next.policy_version
    }
}

fn tokens<'a>(steps: impl Iterator<Item = &'a Vec<u32>>) -> ArrayRef {
    let lists = steps.map(|ids| Some(ids.iter().copied().map(Some)));
    Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>(lists))
}

/// The batch with one row for each step.
pub(super) fn rows_of(steps: &[Step]) -> Result<RecordBatch, QueueError> {
    let texts = |text: fn(&Step) -> &String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(steps.iter().map(text)))
    };
    let columns: [(&str, ArrayRef); 9] = [
        ("prompt_ids", tokens(steps.iter().map(|step| &step.prompt_ids))),
        ("response_ids", tokens(steps.iter().map(|step| &step.response_ids))),
        ("reward", Arc::new(Float32Array::from_iter_values(steps.iter().map(|step| step.reward)))),
        ("trajectory_uid", texts(|step| &step.trajectory_uid)),
        ("prompt_uid", texts(|step| &step.prompt_uid)),
        ("step_index", Arc::new(UInt32Array::from_iter_values(steps.iter().map(|step| step.step_index)))),
        (
            "policy_version",
            Arc::new(UInt64Array::from_iter_values(steps.iter().map(|step| step.policy_version))),
        ),
        ("is_last", Arc::new(steps.iter().map(|step| Some(step.is_last)).collect::<BooleanArray>())),
        (
            "metadata",
            Arc::new(StringArray::from_iter_values(steps.iter().map(|step| step.metadata.to_string()))),
        ),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}
