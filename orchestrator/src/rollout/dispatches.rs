//! The dispatches of this process: the dispatches in flight, the fates and tokens of the ended dispatches,
//! and the bias of the accepted groups.
//!
//! A dispatch is entered before its first request is sent, and it ends with exactly one [`Fate`]. There are
//! totals for the whole run and for the step. Debug builds check conservation at every change, and all builds
//! check it at the end of every step.
//!
//! A run that can be resumed also has a [`LedgerWriter`], which gets all records in the order of the changes.
//! The writer buffers records, so no call in this module waits for a disk.
//!
//! # Bounded
//! The number of open dispatches is at most the number of running or undecided groups. The last `entries_max`
//! ended dispatches are kept for displays and errors. The totals are kept permanently.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rolldock_dispatch::bias::{BiasEvent, BiasMeter, BiasReading, Decision};
use rolldock_dispatch::history::{Chance, GradedGroup, PromptHistory};
use rolldock_dispatch::invariants::{Violation, conservation};
use rolldock_dispatch::{
    Bucket, DispatchId, Fate, Inclusion, Position, PromptUid, StepEnd, TokenTotals, Totals, Waste,
};

use crate::data::Prompt;
use crate::rollout::EarlyStop;
use crate::rollout::tokens::TokenBook;
use rolldock_ledger::{
    DispatchRecord, KeptGroup, LedgerWriter, MetersRecord, Record, Sequence, StepEndRecord, StepRecord,
};

/// One dispatch.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The id of the dispatch.
    pub id: DispatchId,
    /// Its number in dispatch order. Dispatches that continue this dispatch have the same number.
    pub number: u64,
    /// The dispatch that this one continues.
    pub parent: Option<DispatchId>,
    /// The prompt that was dispatched.
    pub prompt_uid: PromptUid,
    /// The step in which it was dispatched.
    pub step: u64,
    /// The fate; `None` while it is in flight.
    pub fate: Option<Fate>,
}

/// The dispatches in flight, the last dispatches that ended, and the totals.
#[derive(Debug)]
pub struct Dispatches {
    next_id: u64,
    run: Totals,
    step: Totals,
    open: BTreeMap<DispatchId, Entry>,
    ended: VecDeque<Entry>,
    entries_max: usize,
    tokens: Arc<TokenBook>,
    journal: Option<LedgerWriter>,
    /// Tracks each dispatch number until its final decision.
    bias: BiasMeter,
    /// Has results only if the recipe asks for a history.
    history: PromptHistory,
    /// Whether a share of the groups that are cut off is audited.
    audits: bool,
}

/// A prompt that is sent out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentOut<'a> {
    pub(crate) number: u64,
    pub(crate) parent: Option<DispatchId>,
    pub(crate) prompt: &'a Prompt,
    pub(crate) step: u64,
    pub(crate) policy_version: u64,
    pub(crate) first_attempt: u32,
    pub(crate) returns: u32,
    /// For a new prompt: the position in the data after the prompt.
    pub(crate) drawn_to: Option<Position>,
    /// The probabilities by which the prompt was chosen.
    pub(crate) chance: Option<Chance>,
    /// The bucket and the number of the tokens with which the dispatch begins.
    pub(crate) brought: Option<(Bucket, u64)>,
}

impl Dispatches {
    /// Creates an empty record that keeps the last `entries_max` ended dispatches. `audits` is whether a
    /// share of the groups that are cut off is audited.
    pub fn new(entries_max: usize, audits: bool) -> Self {
        Self {
            next_id: 0,
            run: Totals::default(),
            step: Totals::default(),
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            entries_max,
            tokens: Arc::default(),
            journal: None,
            bias: BiasMeter::default(),
            history: PromptHistory::default(),
            audits,
        }
    }

    /// Sets the writer of the ledger, which gets all further records.
    pub(crate) fn keep_journal(&mut self, journal: LedgerWriter) {
        self.journal = Some(journal);
    }

    /// Continues from the state that an earlier process left.
    pub(crate) fn restore(
        &mut self,
        next_id: u64,
        run: Totals,
        tokens: TokenTotals,
        (bias, history): (BiasMeter, PromptHistory),
    ) {
        self.next_id = next_id;
        self.run = run;
        self.tokens.restore(tokens);
        self.bias = bias;
        self.history = history;
    }

    /// The token counts.
    pub(crate) fn tokens(&self) -> &Arc<TokenBook> {
        &self.tokens
    }

    /// Counts the tokens of a validation.
    pub(crate) fn count_validation(&self, tokens: &TokenTotals) {
        self.tokens.validated(tokens);
        self.note_tokens();
    }

    /// Writes the token counts to the ledger.
    pub(crate) fn note_tokens(&self) {
        self.write(|| Record::Tokens(self.tokens.run()));
    }

    /// Whether records are kept.
    pub(crate) fn keeps_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Writes the measurements of the run to the ledger.
    pub(crate) fn note_meters(&self, meters: &MetersRecord) {
        self.write(|| Record::Meters(meters.clone()));
    }

    /// Writes the evidence for launch decisions to the ledger.
    pub(crate) fn note_outlook(&self, bits: impl FnOnce() -> Arc<[u64]>) {
        self.write(|| Record::Outlook { bits: bits() });
    }

    fn write(&self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &self.journal {
            journal.append(record());
        }
    }

    /// Starts the totals of a step. Dispatches that are still open count for this step.
    pub(crate) fn begin_step(&mut self, step: u64, target: u64, policy_version: u64) {
        let still_open = self.open.len() as u64;
        self.step = Totals { dispatched: still_open, in_flight: still_open, ..Totals::default() };
        self.write(|| Record::Step(StepRecord { step, target, policy_version }));
    }

    /// Notes that the bias guard has changed the rule by which steps stop.
    pub(crate) fn note_rule(&self, early_stop: EarlyStop) {
        self.write(|| Record::Rule { early_stop: early_stop.to_string().into() });
    }

    /// Reports an event of a dispatch number to the bias meter. A decision is reported before the dispatch
    /// ends, so that the ledger has it before the end.
    pub(crate) fn note_bias(&mut self, number: u64, event: BiasEvent) {
        self.bias.learn(number, event);
        self.write(|| Record::Bias { number, event });
    }

    /// Reports the final decision about a dispatch number to the bias meter (see [`Self::note_bias`]).
    pub(crate) fn decided(&mut self, number: u64, decision: Decision) {
        self.note_bias(number, BiasEvent::Decided(decision));
    }

    /// Adds the result of a group to the history of its prompt.
    pub(crate) fn note_graded(&mut self, group: GradedGroup) {
        self.history.graded(&group);
        self.write(|| Record::Graded(group));
    }

    /// The history of the prompts.
    pub(crate) fn history(&self) -> &PromptHistory {
        &self.history
    }

    /// The bias up to the last step whose groups are all decided.
    pub fn bias(&self) -> BiasReading {
        self.bias.reading(self.audits)
    }

    /// Notes that a step has ended. No more new prompts belong to it.
    pub(crate) fn end_step(&mut self, step: u64, end: StepEnd) {
        self.bias.close(step);
        self.note_tokens();
        self.write(|| Record::StepEnd(StepEndRecord { step, end }));
    }

    /// Notes that the servers have a new version.
    pub(crate) fn version(&self, version: u64) {
        self.write(|| Record::Version { version });
    }

    /// Enters a dispatch, and returns its id.
    pub(crate) fn dispatch(&mut self, sent: SentOut<'_>) -> DispatchId {
        let SentOut { number, parent, prompt, step, .. } = sent;
        let id = DispatchId(self.next_id);
        self.next_id += 1;
        self.tokens.dispatched(id, sent.brought);
        for totals in [&mut self.run, &mut self.step] {
            totals.dispatched += 1;
            totals.in_flight += 1;
        }
        self.open.insert(id, Entry { id, number, parent, prompt_uid: prompt.uid, step, fate: None });
        if parent.is_none() {
            self.bias.sent(step, number, Inclusion::chosen(sent.chance).weight());
            self.history.sent(prompt.visit, number);
        }
        self.write(|| {
            Record::Dispatch(DispatchRecord {
                id,
                number,
                parent,
                prompt_uid: prompt.uid,
                row: prompt.row,
                visit: prompt.visit,
                step,
                policy_version: sent.policy_version,
                first_attempt: sent.first_attempt,
                returns: sent.returns,
                drawn_to: sent.drawn_to,
                chance: sent.chance,
            })
        });
        id
    }

    /// Ends a dispatch and moves its tokens into `bucket`. If the dispatch is not open, nothing changes and
    /// the result is `false`, so no dispatch has two fates.
    pub(crate) fn end(&mut self, id: DispatchId, fate: Fate, bucket: Bucket) -> bool {
        let record = Record::end(id, fate.clone());
        self.finish(id, fate, (bucket, u64::MAX), |journal| journal.append(record))
    }

    /// Ends a dispatch whose prompt is sent out again without the tokens of this dispatch.
    pub(crate) fn end_anew(&mut self, id: DispatchId, fate: Fate, first_attempt: u32, waste: Waste) -> bool {
        let record = Record::end_anew(id, fate.clone(), first_attempt);
        self.finish(id, fate, (Bucket::Wasted(waste), u64::MAX), |journal| journal.append(record))
    }

    /// Ends a dispatch that was cut off. The next dispatch of its prompt continues from the `kept` tokens
    /// with which this dispatch began.
    pub(crate) fn end_requeued(&mut self, id: DispatchId, kept: u64) -> bool {
        let record = Record::end(id, Fate::Requeued);
        self.finish(id, Fate::Requeued, (Bucket::Carried, kept), |journal| journal.append(record))
    }

    /// Ends a dispatch whose next dispatch continues from tokens of `group`. `kept` is the bucket and the
    /// number of these tokens.
    pub(crate) fn end_with(
        &mut self,
        id: DispatchId,
        fate: Fate,
        (bucket, kept): (Bucket, u64),
        group: impl FnOnce() -> KeptGroup,
    ) -> bool {
        self.finish(id, fate.clone(), (bucket, kept), |journal| {
            journal.append_carried(id, fate, Box::new(group()))
        })
    }

    fn finish(
        &mut self,
        id: DispatchId,
        fate: Fate,
        (bucket, kept): (Bucket, u64),
        write: impl FnOnce(&LedgerWriter) -> Sequence,
    ) -> bool {
        let Some(mut entry) = self.open.remove(&id) else { return false };
        self.tokens.ended(id, bucket, kept);
        if let Some(journal) = &self.journal {
            write(journal);
        }
        self.note_tokens();
        self.run.count(&fate);
        self.step.count(&fate);
        entry.fate = Some(fate);
        if self.ended.len() >= self.entries_max {
            self.ended.pop_front();
        }
        if self.entries_max > 0 {
            self.ended.push_back(entry);
        }
        debug_assert_eq!(self.check(), Ok(()));
        true
    }

    /// Checks conservation of dispatches and of tokens, over the step and over the run.
    pub fn check(&self) -> Result<(), Violation> {
        conservation(&self.run, self.open.len())?;
        conservation(&self.step, self.open.len())?;
        self.tokens.check(self.open.len())
    }

    /// Totals of the whole run.
    pub fn run_totals(&self) -> &Totals {
        &self.run
    }

    /// Totals of the current step.
    pub fn step_totals(&self) -> &Totals {
        &self.step
    }

    /// Dispatches in flight, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Entry> {
        self.open.values()
    }

    /// The last dispatches that ended, oldest first; at most `entries_max`.
    pub fn ended(&self) -> impl Iterator<Item = &Entry> {
        self.ended.iter()
    }
}
