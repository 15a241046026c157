//! The fate ledger: what became of every dispatch.
//!
//! A dispatch is written down before its first byte leaves and ends with exactly one [`Fate`]. The totals are
//! kept for the whole run and for the step, and conservation is checked at every change in debug builds and at
//! the end of every step in all builds.
//!
//! A run that survives its process has a [`LedgerWriter`] too, which every record goes to in the same order. It only takes
//! records in: nothing here waits for a disk.
//!
//! # Bounded
//! Open dispatches are at most the groups that run; of the ended ones the last `entries_max` are kept for
//! questions, the totals for ever.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::data::{Position, Prompt, PromptUid};
use crate::ledger::{DispatchRecord, KeptGroup, LedgerWriter, Record, Sequence, StepEndRecord, StepRecord};
use crate::rollout::StepEnd;
use crate::rollout::invariants::{self, Violation};

/// Names one dispatch over the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DispatchId(pub u64);

impl fmt::Display for DispatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How a dispatch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Handed on to the queue.
    Accepted,
    /// Complete, but it teaches nothing; the gate's reason.
    Filtered(&'static str),
    /// Complete and valid, but older than the staleness bound.
    Stale,
    /// Ended by the early stop (or an interrupt), its work thrown away.
    Cancelled,
    /// Ended by the early stop; its prompt is dispatched again, with this one as parent.
    Requeued,
    /// Ended by the early stop; its tokens are resumed by its next dispatch.
    Carried,
    /// Valid beyond the target; counts first in the next step.
    Held,
    /// It could not be completed.
    Failed(String),
}

/// One line of the ledger.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The dispatch.
    pub id: DispatchId,
    /// Its place in dispatch order; kept by the dispatches that follow from it.
    pub number: u64,
    /// The dispatch it continues.
    pub parent: Option<DispatchId>,
    /// The prompt.
    pub prompt_uid: PromptUid,
    /// The step that dispatched it.
    pub step: u64,
    /// `None` while it is in flight.
    pub fate: Option<Fate>,
}

/// Counts of dispatches by fate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// All that were sent out.
    pub dispatched: u64,
    /// Without a fate yet.
    pub in_flight: u64,
    /// See [`Fate::Accepted`].
    pub accepted: u64,
    /// See [`Fate::Filtered`].
    pub filtered: u64,
    /// See [`Fate::Stale`].
    pub stale: u64,
    /// See [`Fate::Cancelled`].
    pub cancelled: u64,
    /// See [`Fate::Requeued`].
    pub requeued: u64,
    /// See [`Fate::Carried`].
    pub carried: u64,
    /// See [`Fate::Held`].
    pub held: u64,
    /// See [`Fate::Failed`].
    pub failed: u64,
    /// `filtered`, by the gate's reason.
    pub filtered_by_reason: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// The end of a dispatch in flight.
    pub(crate) fn count(&mut self, fate: &Fate) {
        self.in_flight -= 1;
        match fate {
            Fate::Accepted => self.accepted += 1,
            Fate::Filtered(reason) => {
                self.filtered += 1;
                *self.filtered_by_reason.entry(reason).or_default() += 1;
            }
            Fate::Stale => self.stale += 1,
            Fate::Cancelled => self.cancelled += 1,
            Fate::Requeued => self.requeued += 1,
            Fate::Carried => self.carried += 1,
            Fate::Held => self.held += 1,
            Fate::Failed(_) => self.failed += 1,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Ledger {
    next_id: u64,
    run: Totals,
    step: Totals,
    open: BTreeMap<DispatchId, Entry>,
    ended: VecDeque<Entry>,
    entries_max: usize,
    journal: Option<LedgerWriter>,
}

/// What is sent out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentOut<'a> {
    pub(crate) number: u64,
    pub(crate) parent: Option<DispatchId>,
    pub(crate) prompt: &'a Prompt,
    pub(crate) step: u64,
    pub(crate) policy_version: u64,
    pub(crate) first_attempt: u32,
    pub(crate) returns: u32,
    /// Of a new prompt: where the data continues behind it.
    pub(crate) drawn_to: Option<Position>,
}

impl Ledger {
    /// An empty ledger that keeps the last `entries_max` ended dispatches.
    pub fn new(entries_max: usize) -> Self {
        Self {
            next_id: 0,
            run: Totals::default(),
            step: Totals::default(),
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            entries_max,
            journal: None,
        }
    }

    /// Writes down what happens from here on.
    pub(crate) fn keep_journal(&mut self, journal: LedgerWriter) {
        self.journal = Some(journal);
    }

    /// Goes on where an earlier process was.
    pub(crate) fn restore(&mut self, next_id: u64, run: Totals) {
        self.next_id = next_id;
        self.run = run;
    }

    fn write(&self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &self.journal {
            journal.append(record());
        }
    }

    /// Starts the totals of a step. Dispatches that are still open count as its own.
    pub(crate) fn begin_step(&mut self, step: u64, target: u64, policy_version: u64) {
        let still_open = self.open.len() as u64;
        self.step = Totals { dispatched: still_open, in_flight: still_open, ..Totals::default() };
        self.write(|| Record::Step(StepRecord { step, target, policy_version }));
    }

    /// A step has ended.
    pub(crate) fn end_step(&self, step: u64, end: StepEnd) {
        self.write(|| Record::StepEnd(StepEndRecord { step, end }));
    }

    /// The servers have another version.
    pub(crate) fn version(&self, version: u64) {
        self.write(|| Record::Version { version });
    }

    /// Writes a dispatch down.
    pub(crate) fn dispatch(&mut self, sent: SentOut<'_>) -> DispatchId {
        let SentOut { number, parent, prompt, step, .. } = sent;
        let id = DispatchId(self.next_id);
        self.next_id += 1;
        for totals in [&mut self.run, &mut self.step] {
            totals.dispatched += 1;
            totals.in_flight += 1;
        }
        self.open.insert(id, Entry { id, number, parent, prompt_uid: prompt.uid, step, fate: None });
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
            })
        });
        id
    }

    /// Ends a dispatch; `false` (and no change) when it is not open, so that nothing has two fates.
    pub(crate) fn end(&mut self, id: DispatchId, fate: Fate) -> bool {
        let record = Record::end(id, fate.clone());
        self.finish(id, fate, |journal| journal.append(record))
    }

    /// Ends a dispatch whose prompt is sent out again without what it had.
    pub(crate) fn end_anew(&mut self, id: DispatchId, fate: Fate, first_attempt: u32) -> bool {
        let record = Record::end_anew(id, fate.clone(), first_attempt);
        self.finish(id, fate, |journal| journal.append(record))
    }

    /// Ends a dispatch whose next one goes on from tokens.
    pub(crate) fn end_with(
        &mut self,
        id: DispatchId,
        fate: Fate,
        tokens: impl FnOnce() -> KeptGroup,
    ) -> bool {
        self.finish(id, fate.clone(), |journal| journal.append_carried(id, fate, Box::new(tokens())))
    }

    fn finish(&mut self, id: DispatchId, fate: Fate, write: impl FnOnce(&LedgerWriter) -> Sequence) -> bool {
        let Some(mut entry) = self.open.remove(&id) else { return false };
        if let Some(journal) = &self.journal {
            write(journal);
        }
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

    /// Conservation, over the step and over the run.
    pub fn check(&self) -> Result<(), Violation> {
        invariants::conservation(&self.run, self.open.len())?;
        invariants::conservation(&self.step, self.open.len())
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
