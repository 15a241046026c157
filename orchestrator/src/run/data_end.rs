//! The end of the data of a run that continues.

use std::sync::Arc;

use anyhow::Context;
use rolldock_ledger::{OpenStep, Resumption};

use super::Run;
use crate::data::PromptSource;

/// Whether nothing is left to generate for a run that continues: its earlier processes have ended all steps that sent out
/// prompts, no prompt waits, and the data has no more prompts. A further step could only be empty, and it could wait for
/// a version that no trainer announces.
pub(super) async fn nothing_is_left(run: &Run, resumption: &Resumption) -> anyhow::Result<bool> {
    let Resumption { queued, open_steps, last_step, position, .. } = resumption;
    let Some(done) = steps_done(open_steps, *last_step).filter(|_| queued.is_empty()) else {
        return Ok(false);
    };
    if run.recipe.run.steps.is_some_and(|steps| done >= steps) {
        return Ok(false);
    }
    // The cursor of the run must not advance, so this is another one. The rows that are left may all be too long.
    let mut cursor = run.train.cursor(Arc::clone(&run.codec));
    if let Some(position) = position {
        cursor.seek(*position)?;
    }
    if cursor.rows_left().is_none() {
        return Ok(false);
    }
    let drawn = run.scope.spawn_blocking("end of the data", move || cursor.next()).await;
    Ok(drawn.context("cannot read the data")??.is_none())
}

/// The last step that sent out prompts; `None` if there is none, or if such a step has not ended. A process may have
/// begun the next step and died before it sent out a prompt.
fn steps_done(open_steps: &[OpenStep], last_step: u64) -> Option<u64> {
    let is_blank = |open: &OpenStep| open.accepted == 0 && open.totals.dispatched == 0;
    let done = open_steps.first().map_or(last_step, |open| open.step - 1);
    (done > 0 && open_steps.iter().all(is_blank)).then_some(done)
}

#[cfg(test)]
mod tests {
    use rolldock_dispatch::Totals;

    use super::*;

    #[test]
    fn a_step_that_sent_out_nothing_leaves_nothing_to_do() {
        let open = |step: u64, accepted: u64, dispatched: u64| {
            let totals = Totals { dispatched, ..Totals::default() };
            OpenStep { step, target: 4, accepted, sent_new: dispatched, totals }
        };
        assert_eq!(steps_done(&[], 0), None, "the run has not begun");
        assert_eq!(steps_done(&[], 2), Some(2));
        assert_eq!(steps_done(&[open(3, 0, 0)], 3), Some(2));
        assert_eq!(steps_done(&[open(1, 0, 0)], 1), None, "the first step says that there are no prompts");
        assert_eq!(
            steps_done(&[open(3, 0, 5)], 3),
            None,
            "all groups were filtered, and the step has to end"
        );
        assert_eq!(steps_done(&[open(2, 3, 4), open(3, 0, 0)], 3), None);
    }
}
