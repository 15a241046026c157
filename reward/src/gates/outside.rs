//! Gates of one's own that are asked outside of this process, by the protocols of [`crate::external`].
//!
//! The question is that of a reward, about a group: `solution_str` is empty, and `extra_info` is
//! `{"rewards": [..], "accs": [..], "truncated": [..], "tokens": [..], "row": the data set's}`. A positive score lets the
//! group pass.
//!
//! They cost more than all other gates together, so each sees only groups that may still be taken: those that everybody
//! before it lets pass, and those that only yielding gates are against, because a hard one may be against them too.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Counted, Gates, GroupView, Rejection};
use crate::{RewardError, RewardJob, RewardRunner};

/// What a rejection of such a gate is called.
const REASON: &str = "outside";

/// Somebody who is asked about groups.
pub(super) struct Outside {
    pub(super) counted: Counted,
    pub(super) runner: Arc<dyn RewardRunner>,
}

/// The row that a group belongs to. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GateRow {
    /// The right answer.
    pub ground_truth: Arc<str>,
    /// Where the row comes from.
    pub data_source: Arc<str>,
    /// The prompt as the model saw it.
    pub prompt: Arc<str>,
    /// The row's other fields.
    pub row: Value,
}

impl Gates {
    /// Adds somebody outside behind all others; `yields` as in [`super::KeepIfShort`].
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

    /// Whether [`Self::ask`] asks anybody.
    pub fn has_outside(&self) -> bool {
        !self.outside.is_empty()
    }

    /// Whether those outside are to be asked about a group of which [`Self::check`] has said this: there are some, and
    /// the group may still be taken.
    pub fn asks_after(&self, inside: &Result<(), Rejection>) -> bool {
        self.has_outside() && inside.as_ref().map_or_else(|rejection| rejection.yields, |()| true)
    }

    /// What those outside say about a group that [`Self::asks_after`]: a rejection by the first that does not yield, or
    /// else by the first that does. [`Rejection::of_both`] puts it together with the verdict inside. An error is a
    /// runner's, whose own rule for failures has been applied already.
    ///
    /// Cancel-safe: dropping the future cancels the question.
    pub async fn ask(
        &self,
        group: &GroupView<'_>,
        row: &GateRow,
    ) -> Result<Result<(), Rejection>, RewardError> {
        let job = RewardJob {
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
        };
        let mut soft = None;
        for Outside { counted, runner } in &self.outside {
            let value = runner.score(&job).await?.score;
            if value > 0.0 {
                counted.passed();
                continue;
            }
            counted.rejected();
            let rejection = counted.rejection(REASON, value);
            if !rejection.yields {
                return Ok(Err(rejection));
            }
            soft.get_or_insert(rejection);
        }
        Ok(soft.map_or(Ok(()), Err))
    }

    /// Whether everybody outside can be asked; see [`RewardRunner::check`]. Cancel-safe.
    pub async fn check_outside(&self) -> Result<(), RewardError> {
        for outside in &self.outside {
            outside.runner.check().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
