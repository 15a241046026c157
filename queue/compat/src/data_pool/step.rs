//! Steps, and their rows.

use std::sync::Arc;

use arrow_array::types::{ArrowPrimitiveType, Float32Type, UInt8Type, UInt32Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use rolldock_queue::{QueueError, check_depth};

use crate::bad;

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
    /// The columns of an agent's trajectory.
    #[serde(default)]
    pub path: Path,
}

/// The data that describes a step as a path of a trajectory. Rows of runs and of the gateway also have these
/// columns (`docs/src/rows.md`). The default is a step of one turn in which all tokens are trained.
///
/// A row may also be a path of several turns. In that case, `response_ids` contains everything from the first
/// sampled token on, and `response_mask` marks the tokens that the policy sampled and this row trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Path {
    /// The index of the trajectory in its group. `UInt32`.
    pub sample_index: u32,
    /// The index of the path in the trajectory. `UInt32`.
    pub branch: u32,
    /// 1 for each token of `response_ids` that is trained, and 0 for the others. Absent if all tokens are
    /// trained. `List<UInt8>`.
    pub response_mask: Option<Vec<u8>>,
    /// One log-probability for each token of `response_ids`, in nats, or none at all. `List<Float32>`.
    pub rollout_logprobs: Vec<f32>,
    /// The turns, in order. If absent, the step is one turn that consists of all of `response_ids` and has
    /// the reward of the step. The turns are stored in the columns `turn_starts` and `turn_ends`,
    /// `List<UInt32>`, and `turn_rewards`, `List<Float32>` with null items.
    pub turns: Option<Vec<StepTurn>>,
    /// `stop`, or `length` at a token limit. `Utf8`.
    pub finish_reason: String,
    /// The newest policy version of the tokens. Absent if it equals `policy_version`. `UInt64`. The column
    /// `policy_version_min` has the value of `policy_version`.
    pub policy_version_max: Option<u64>,
    /// Whether a server encoded the prompt itself. In that case, earlier tokens may differ from the tokens
    /// that were sampled. `Boolean`.
    pub is_reencoded: bool,
    /// The reason why the trajectory ended. Empty if the reason is unknown. `Utf8`.
    pub end: String,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            sample_index: 0,
            branch: 0,
            response_mask: None,
            rollout_logprobs: Vec::new(),
            turns: None,
            finish_reason: "stop".to_owned(),
            policy_version_max: None,
            is_reencoded: false,
            end: String::new(),
        }
    }
}

/// A turn, as positions in `response_ids`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTurn {
    /// The first sampled token.
    pub start: u32,
    /// One past the last sampled token.
    pub end: u32,
    /// The reward of the turn. Absent if the turn has no reward of its own.
    #[serde(default)]
    pub reward: Option<f32>,
}

impl Step {
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.trajectory_uid, self.step_index)
    }

    /// Checks that the parts fit together.
    pub(super) fn check(&self) -> Result<(), QueueError> {
        check_depth("metadata", &self.metadata)?;
        let (path, tokens) = (&self.path, self.response_ids.len());
        let wrong = |expected: String| {
            let (trajectory, step) = (&self.trajectory_uid, self.step_index);
            Err(bad(format!("step={step} of trajectory={trajectory}: expected {expected}")))
        };
        if let Some(mask) = &path.response_mask
            && (mask.len() != tokens || mask.iter().any(|bit| *bit > 1))
        {
            return wrong(format!("response_mask of 0 and 1 for each of tokens={tokens}"));
        }
        let logprobs = path.rollout_logprobs.len();
        if logprobs != 0 && logprobs != tokens {
            return wrong(format!("rollout_logprobs for none or all of tokens={tokens}, found {logprobs}"));
        }
        let mut end = 0;
        for turn in path.turns.iter().flatten() {
            if turn.start < end || turn.end <= turn.start || turn.end as usize > tokens {
                return wrong(format!(
                    "turns one after the other in {end}..{tokens}, found {}..{}",
                    turn.start, turn.end
                ));
            }
            end = turn.end;
        }
        if !["stop", "length"].contains(&path.finish_reason.as_str()) {
            return wrong(format!("finish_reason of stop or length, found {:?}", path.finish_reason));
        }
        match path.policy_version_max {
            Some(newest) if newest < self.policy_version => {
                wrong(format!("policy_version_max of {} or more, found {newest}", self.policy_version))
            }
            _ => Ok(()),
        }
    }

    fn mask(&self) -> Vec<u8> {
        self.path.response_mask.clone().unwrap_or_else(|| vec![1; self.response_ids.len()])
    }

    fn turns(&self) -> Vec<StepTurn> {
        let whole = || {
            let end = self.response_ids.len() as u32;
            (end > 0).then_some(StepTurn { start: 0, end, reward: Some(self.reward) })
        };
        self.path.turns.clone().unwrap_or_else(|| whole().into_iter().collect())
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

/// A column of lists of numbers.
fn lists<T: ArrowPrimitiveType>(steps: &[Step], list: impl Fn(&Step) -> Vec<T::Native>) -> ArrayRef {
    let lists = steps.iter().map(|step| Some(list(step).into_iter().map(Some)));
    Arc::new(ListArray::from_iter_primitive::<T, _, _>(lists))
}

/// The batch with one row for each step.
pub(super) fn rows_of(steps: &[Step]) -> Result<RecordBatch, QueueError> {
    let texts = |text: fn(&Step) -> &String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(steps.iter().map(text)))
    };
    let counts = |count: fn(&Step) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(steps.iter().map(count)))
    };
    let versions = |version: fn(&Step) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(steps.iter().map(version)))
    };
    let flags = |flag: fn(&Step) -> bool| -> ArrayRef {
        Arc::new(steps.iter().map(|step| Some(flag(step))).collect::<BooleanArray>())
    };
    let places = |place: fn(&StepTurn) -> u32| {
        lists::<UInt32Type>(steps, move |step| step.turns().iter().map(place).collect())
    };
    let turn_rewards = steps.iter().map(|step| Some(step.turns().into_iter().map(|turn| turn.reward)));
    let metadata = steps.iter().map(|step| step.metadata.to_string());
    let columns: [(&str, ArrayRef); 21] = [
        ("prompt_ids", lists::<UInt32Type>(steps, |step| step.prompt_ids.clone())),
        ("response_ids", lists::<UInt32Type>(steps, |step| step.response_ids.clone())),
        ("reward", Arc::new(Float32Array::from_iter_values(steps.iter().map(|step| step.reward)))),
        ("trajectory_uid", texts(|step| &step.trajectory_uid)),
        ("prompt_uid", texts(|step| &step.prompt_uid)),
        ("step_index", counts(|step| step.step_index)),
        ("policy_version", versions(|step| step.policy_version)),
        ("is_last", flags(|step| step.is_last)),
        ("metadata", Arc::new(StringArray::from_iter_values(metadata))),
        ("sample_index", counts(|step| step.path.sample_index)),
        ("branch", counts(|step| step.path.branch)),
        ("response_mask", lists::<UInt8Type>(steps, Step::mask)),
        ("rollout_logprobs", lists::<Float32Type>(steps, |step| step.path.rollout_logprobs.clone())),
        ("turn_starts", places(|turn| turn.start)),
        ("turn_ends", places(|turn| turn.end)),
        ("turn_rewards", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(turn_rewards))),
        ("finish_reason", texts(|step| &step.path.finish_reason)),
        ("policy_version_min", versions(|step| step.policy_version)),
        ("policy_version_max", versions(|step| step.path.policy_version_max.unwrap_or(step.policy_version))),
        ("is_reencoded", flags(|step| step.path.is_reencoded)),
        ("end", texts(|step| &step.path.end)),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}
