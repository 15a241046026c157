//! Restores a board to the state in which an earlier process left it.

use std::sync::Arc;

use rolldock_dispatch::{Bucket, Fate};

use super::{Board, Requeued};
use crate::data::Prompt;
use crate::rollout::carry::CarriedGroup;
use rolldock_ledger::{KeptGroup, LedgerWriter, QueuedPrompt, Resumption};

/// The state from which a run continues: the state that its ledger recorded, with the prompts and tokens that
/// the ledger refers to.
#[derive(Debug)]
pub struct Restored {
    /// The state that the ledger recorded.
    pub resumption: Resumption,
    /// Prompts to be sent out again, with their tokens if the ledger has any.
    pub queued: Vec<(QueuedPrompt, Prompt, Option<KeptGroup>)>,
}

/// The bucket of the tokens of a waiting prompt whose last dispatch had the fate `fate`.
fn bucket_of(fate: &Fate) -> Bucket {
    match fate {
        Fate::Held => Bucket::Held,
        _ => Bucket::Carried,
    }
}

/// A step that an earlier process began but did not end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BegunStep {
    /// Its accepted groups.
    pub(super) accepted: usize,
    /// The number of new prompts that were sent out in the step, without prompts whose groups were cancelled.
    /// This number determines how many generation batches count as opened.
    pub(super) sent_new: usize,
    /// Whether nothing was sent out or accepted in it: its process died between its beginning and the first dispatch.
    pub(super) is_blank: bool,
}

impl Board {
    /// Writes all further events into `journal`.
    pub(crate) fn keep_journal(&mut self, journal: LedgerWriter) {
        self.dispatches.keep_journal(journal);
    }

    /// Restores the state of an earlier process. The board is then at the step before the first step that still lacks
    /// groups. Returns the number of that step.
    pub(crate) fn restore(&mut self, restored: Restored) -> u64 {
        self.step = self.restore_all(restored);
        self.step
    }

    fn restore_all(&mut self, restored: Restored) -> u64 {
        let Restored { resumption, queued } = restored;
        let kept_in = |bucket: Bucket| -> u64 {
            let kept = queued.iter().filter(|(queued, ..)| bucket_of(&queued.fate) == bucket);
            kept.filter_map(|(_, _, kept)| kept.as_ref()).map(KeptGroup::tokens).sum()
        };
        let tokens = resumption.run_tokens.after_restart(kept_in(Bucket::Held), kept_in(Bucket::Carried));
        let figures = (resumption.bias, resumption.history);
        self.dispatches.restore(resumption.next_dispatch.0, resumption.run_totals, tokens, figures);
        if let Some(measured) = resumption.meters {
            self.restore_meters(measured, resumption.outlook.as_deref());
        }
        self.next_number = resumption.next_number;
        self.policy_version = self.policy_version.max(resumption.policy_version);
        for (queued, prompt, kept) in queued {
            let carried =
                kept.map(|kept| Arc::new(CarriedGroup { graded: Vec::new(), samples: kept.samples }));
            let QueuedPrompt { number, parent, first_attempt, returns, inclusion, .. } = queued;
            let prompt = Arc::new(prompt);
            let kept_in = bucket_of(&queued.fate);
            let was_judged = kept_in == Bucket::Held;
            let requeued =
                Requeued { parent, prompt, first_attempt, carried, kept_in, returns, was_judged, inclusion };
            self.queue(number, requeued);
        }
        let Some(first_open) = resumption.open_steps.first().map(|open| open.step) else {
            return resumption.last_step;
        };
        self.ended_before = (first_open..=resumption.last_step).collect();
        for open in resumption.open_steps {
            self.ended_before.remove(&open.step);
            let is_blank = open.accepted == 0 && open.totals.dispatched == 0;
            let sent_new = open.sent_new.saturating_sub(open.totals.cancelled);
            let [accepted, sent_new] =
                [open.accepted, sent_new].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
            self.begun_before.insert(open.step, BegunStep { accepted, sent_new, is_blank });
        }
        first_open - 1
    }

    /// Number of groups that an earlier process accepted for a step that this process has not begun yet.
    pub(crate) fn accepted_before(&self, step: u64) -> usize {
        self.begun_before.get(&step).map_or(0, |begun| begun.accepted)
    }
}
