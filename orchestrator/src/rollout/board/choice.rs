//! Chooses the new prompts that are sent out, if the recipe uses their results in earlier epochs.

use rolldock_dispatch::bias::GroupFigures;
use rolldock_dispatch::history::{Chance, GradedGroup, HistoryCounts, is_kept};

use super::{Board, Dispatch};
use crate::rollout::feed::Drawn;

/// The counts of a step's choices, and of the predictions for its groups.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    step: HistoryCounts,
}

impl Chosen {
    pub(super) fn begin_step(&mut self) {
        self.step = HistoryCounts::default();
    }
}

impl Board {
    /// The next drawn prompt that is sent out, with the probabilities by which it was chosen. Prompts that
    /// are not sent out are dropped. The data source returns them again in its next epoch.
    ///
    /// A prompt is chosen when it is about to be sent out, and not when it is drawn, because its number is
    /// not known earlier.
    pub(super) fn next_fresh(&mut self) -> Option<(Drawn, Option<Chance>)> {
        loop {
            let drawn = self.fresh.pop_front()?;
            let chance = self.chance_of(&drawn);
            let (uid, visit) = (drawn.prompt.uid, drawn.prompt.visit);
            if chance.is_none_or(|chance| is_kept(self.config.seed, uid, visit, chance.keep)) {
                return Some((drawn, chance));
            }
            self.chosen.step.skipped += 1;
        }
    }

    /// Whether the next drawn prompt is from a later epoch, and is sent out by its history. It is `false` if no
    /// prompt is drawn yet.
    pub(super) fn chooses_next(&self) -> bool {
        let chooses = self.config.history.is_some_and(|history| history.chooses());
        chooses && self.fresh.front().is_some_and(|drawn| drawn.prompt.visit > 0)
    }

    fn chance_of(&self, drawn: &Drawn) -> Option<Chance> {
        let config = self.config.history.as_ref()?;
        let of = (drawn.prompt.uid, drawn.prompt.visit);
        self.dispatches.history().chance(config, self.config.samples_per_prompt, of, self.next_number)
    }

    /// Adds the result of a complete group to the history of its prompt.
    pub(super) fn remember(&mut self, dispatch: &Dispatch, figures: GroupFigures, is_valid: bool) {
        if self.config.history.is_none() {
            return;
        }
        if let Some(chance) = dispatch.inclusion.chance {
            let step = &mut self.chosen.step;
            step.foreseen += 1;
            step.expected_valid += f64::from(chance.valid);
            step.valid += u64::from(is_valid);
        }
        self.keep_result(dispatch, figures, is_valid);
    }

    /// Adds the samples that a stopped group has finished to the history of its prompt. What was foreseen cannot be compared
    /// with such a group.
    pub(super) fn remember_stopped(&mut self, dispatch: &Dispatch, figures: GroupFigures) {
        if self.config.history.is_some() {
            self.keep_result(dispatch, figures, false);
        }
    }

    fn keep_result(&mut self, dispatch: &Dispatch, figures: GroupFigures, is_valid: bool) {
        let (prompt_uid, visit) = (dispatch.prompt.uid, dispatch.prompt.visit);
        let number = dispatch.number;
        self.dispatches.note_graded(GradedGroup { prompt_uid, visit, number, figures, is_valid });
    }

    /// The counts of the step; `None` if the recipe asks for no history.
    pub(super) fn history_counts(&self) -> Option<HistoryCounts> {
        self.config.history?;
        let prompts = self.dispatches.history().prompts() as u64;
        Some(HistoryCounts { prompts, ..self.chosen.step })
    }
}
