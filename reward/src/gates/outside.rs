//! Outside gates: another process decides whether a group passes. The process is asked by a protocol of
//! [`crate::external`].
//!
//! The question has the form of an external reward's question, but it is about a group. `solution_str` is
//! empty, and `extra_info` is `{"rewards": [..], "accs": [..], "truncated": [..], "tokens": [..], "row":
//! ..}`. Its `row` is the column `extra_info` of the data set's row. If there is no such column, it is an
//! object with all columns that are not completely contained in the prompt, the answer or the source. A
//! positive score lets the group pass.
//!
//! An outside gate costs more than all other gates together. It is therefore asked only about groups that may
//! still be accepted: groups that no earlier gate has rejected, and groups that only yielding gates have
//! rejected so far. A gate yields if [`super::KeepIfShort`] names it. A group that only yielding gates reject
//! is accepted if its step would otherwise end short of its target.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Counted, Gates, GroupView, Rejection};
use crate::{RewardError, RewardHealth, RewardJob, RewardRunner};

/// The reason of a rejection by an outside gate.
const REASON: &str = "outside";

/// A gate that another process decides.
pub(super) struct Outside {
    pub(super) counted: Counted,
    pub(super) runner: Arc<dyn RewardRunner>,
}

/// The row that a group belongs to. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GateRow {
    /// The right answer.
    pub ground_truth: Arc<str>,
    /// The name of the row's data source.
    pub data_source: Arc<str>,
    /// The prompt that the model was given.
    pub prompt: Arc<str>,
    /// The row's column `extra_info`. If there is no such column, an object with all columns that are not
    /// completely contained in the prompt, the answer or the source.
    pub row: Value,
}

impl Gates {
    /// Appends an outside gate. `yields` tells whether it yields as in [`super::KeepIfShort`].
    pub fn push_outside(
        &mut self,
        name: &str,
        runner: Arc<dyn RewardRunner>,
        yields: bool,
    ) -> Result<(), RewardError> {
        let counted = self.counted(name, yields)?;
        self.outside.push(Outside { counted, runner });
        Ok(())
    }

    /// Whether there are outside gates.
    pub fn has_outside(&self) -> bool {
        !self.outside.is_empty()
    }

    /// Whether the outside gates are asked about a group whose [`Self::check`] gave this result: there are
    /// outside gates, and the group may still be accepted.
    pub fn asks_after(&self, inside: &Result<(), Rejection>) -> bool {
        self.has_outside() && inside.as_ref().map_or_else(|rejection| rejection.yields, |()| true)
    }

    /// Asks the outside gates about a group. The result is `Ok` if no gate rejects the group. Otherwise it is
    /// the first rejection by a gate that does not yield or, if all rejecting gates yield, the first
    /// rejection. After a rejection by a gate that does not yield, no further gate is asked. The results are
    /// counted if `is_counted` is true; it is false if an earlier process has counted them.
    /// [`Rejection::of_both`] combines the result with that of [`Self::check`]. An error comes from a runner,
    /// after its `on_failure` was applied.
    ///
    /// Cancel-safe: dropping the future cancels the question.
    pub async fn ask(
        &self,
        group: &GroupView<'_>,
        row: &GateRow,
        is_counted: bool,
    ) -> Result<Result<(), Rejection>, RewardError> {
        let job = question(group, row);
        let mut soft = None;
        for Outside { counted, runner } in &self.outside {
            let value = runner.score(&job).await?.score;
            if value > 0.0 {
                counted.passed(is_counted);
                continue;
            }
            counted.rejected(is_counted);
            let rejection = counted.rejection(REASON, value);
            if !rejection.yields {
                return Ok(Err(rejection));
            }
            soft.get_or_insert(rejection);
        }
        Ok(soft.map_or(Ok(()), Err))
    }

    /// Checks that every outside gate can be asked, and that it answers; see [`RewardRunner::check`] and
    /// [`RewardRunner::probe`]. The probe is a group of `samples` responses without tokens, all with the
    /// reward 0. Cancel-safe.
    pub async fn check_outside(&self, row: &GateRow, samples: usize) -> Result<(), RewardError> {
        let (zeros, tokens, truncated) = (vec![0.0; samples], vec![0; samples], vec![false; samples]);
        let group = GroupView { accs: &zeros, rewards: &zeros, truncated: &truncated, tokens: &tokens };
        for outside in &self.outside {
            outside.runner.check().await?;
            outside.runner.probe(&question(&group, row)).await?;
        }
        Ok(())
    }

    /// The health of every outside gate that is watched.
    pub fn outside_health(&self) -> Vec<watch::Receiver<RewardHealth>> {
        self.outside.iter().filter_map(|outside| outside.runner.health()).collect()
    }
}

/// The question about a group.
fn question(group: &GroupView<'_>, row: &GateRow) -> RewardJob {
    RewardJob {
        response: "".into(),
        ground_truth: Arc::clone(&row.ground_truth),
        data_source: Arc::clone(&row.data_source),
        prompt: Arc::clone(&row.prompt),
        extra: Arc::new(json!({
            "rewards": group.rewards,
            "accs": group.accs,
            "truncated": group.truncated,
            "tokens": group.tokens,
            "row": row.row,
        })),
    }
}

#[cfg(test)]
mod tests;
