//! The state of a run, computed as the fold of the records in its ledger.

mod questions;
mod reconcile;

use std::collections::BTreeMap;
use std::sync::Arc;

use rolldock_dispatch::bias::{BiasEvent, BiasMeter};
use rolldock_dispatch::history::PromptHistory;
use rolldock_dispatch::invariants::{conservation, token_conservation};
use rolldock_dispatch::{
    DispatchId, Fate, HandedOn, Inclusion, Position, PromptUid, StepEnd, TokenTotals, Totals,
};

use super::{
    DispatchRecord, FORMAT, LedgerError, MetersRecord, Next, Record, RunRecord, StepEndRecord, StepRecord,
    TokensPlace,
};

pub use reconcile::{OpenStep, Resumption};

/// A prompt that waits for its next dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedPrompt {
    /// The prompt's position in dispatch order, which the next dispatch keeps.
    pub number: u64,
    /// The dispatch that the next dispatch continues.
    pub parent: DispatchId,
    /// How the parent ended.
    pub fate: Fate,
    /// The prompt.
    pub prompt_uid: PromptUid,
    /// The row of the prompt in the data set.
    pub row: u64,
    /// Number of epochs before this visit to the row.
    pub visit: u32,
    /// The attempt with which its samples start.
    pub first_attempt: u32,
    /// The field `returns` of its last dispatch, plus 1 if that dispatch was too old.
    pub returns: u32,
    /// The location of its tokens so far, which [`read_carried`](super::read_carried) reads.
    pub tokens: Option<TokensPlace>,
    /// The probabilities with which the prompt was sent out and its group ran on.
    pub inclusion: Inclusion,
}

/// The state of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepState {
    /// Number of groups that the step must collect.
    pub target: u64,
    /// The policy version at the start of the step.
    pub policy_version: u64,
    /// Dispatches by fate, over all lives of the run. A dispatch counts in the step in which it ends, even if
    /// an earlier step sent it out.
    pub totals: Totals,
    /// New prompts that were sent out in the step, over all lives of the run.
    pub sent_new: u64,
    /// How the step ended; `None` while it continues. The value is `None` again if an accepted group of the
    /// step never reached the queue.
    pub end: Option<StepEnd>,
}

/// An accepted dispatch that is not settled.
#[derive(Debug, Clone, PartialEq)]
struct Accepted {
    dispatch: DispatchRecord,
    /// The step for which the dispatch counts.
    step: u64,
    /// Response tokens of the dispatch; none until their record has been applied.
    tokens: HandedOn,
}

/// The state after all records that were applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerState {
    run: Option<RunRecord>,
    lives: u32,
    totals: Totals,
    steps: BTreeMap<u64, StepState>,
    /// The step in progress.
    current: u64,
    /// Dispatches in flight.
    open: BTreeMap<DispatchId, DispatchRecord>,
    /// Dispatches that are accepted in the ledger and not settled. After a restart the queue decides about
    /// them.
    accepted: BTreeMap<DispatchId, Accepted>,
    /// Prompts that wait for their next dispatch, by number.
    queued: BTreeMap<u64, QueuedPrompt>,
    /// Numbers that are not settled and whose groups run on although they were unlikely to become valid, with the share
    /// of such groups that run on.
    running_on: BTreeMap<u64, f32>,
    /// Tokens of numbers that are not settled, by number.
    tokens: BTreeMap<u64, TokensPlace>,
    /// For each file of tokens, the number of its groups that are in `tokens`.
    token_files: BTreeMap<u64, u64>,
    next_id: u64,
    next_number: u64,
    position: Option<Position>,
    policy_version: u64,
    weights: Option<Arc<str>>,
    /// Response tokens of the run by bucket.
    run_tokens: TokenTotals,
    /// The last dispatch that was accepted, until its tokens are counted.
    last_accepted: Option<DispatchId>,
    meters: Option<MetersRecord>,
    outlook: Option<Arc<[u64]>>,
    bias: BiasMeter,
    history: PromptHistory,
    /// The early-stop mode that the bias guard has set.
    rule: Option<Arc<str>>,
}

impl LedgerState {
    /// Reads the state from all records of the ledger in `dir`. Blocks.
    ///
    /// # Errors
    /// The errors of [`read_log`](super::read_log) and [`LedgerState::apply`].
    pub fn read(dir: &std::path::Path) -> Result<(Self, super::LogEnd), LedgerError> {
        let mut state = Self::default();
        let end = super::read_log(dir, |_, record| state.apply(&record))?;
        Ok((state, end))
    }

    /// Applies the next record.
    ///
    /// # Errors
    /// [`LedgerError::Contradiction`] if the record contradicts earlier ones. The state is then unchanged.
    pub fn apply(&mut self, record: &Record) -> Result<(), LedgerError> {
        if self.run.is_none() && !matches!(record, Record::Run(_)) {
            return Err(contradiction("the first record does not begin a run".to_owned()));
        }
        match record {
            Record::Run(run) => self.begin(run),
            Record::Life(life) => {
                if life.number != self.lives + 1 {
                    return Err(contradiction(format!("life={} after life={}", life.number, self.lives)));
                }
                self.lives = life.number;
                Ok(())
            }
            Record::Step(step) => self.begin_step(step),
            Record::Dispatch(dispatch) => self.dispatch(dispatch),
            Record::End { id, fate, next } => self.end(*id, fate, next),
            Record::Settled { ids } => self.settle(ids),
            Record::StepEnd(ended) => self.end_step(*ended),
            Record::Version { version } => {
                self.policy_version = *version;
                Ok(())
            }
            Record::Weights { announcement } => {
                self.weights = Some(Arc::clone(announcement));
                Ok(())
            }
            Record::Tokens(tokens) => {
                self.count_tokens(tokens);
                Ok(())
            }
            Record::Meters(meters) => {
                self.meters = Some(meters.clone());
                Ok(())
            }
            Record::Bias { number, event } => {
                if let BiasEvent::RunsOn(share) = event {
                    self.running_on.insert(*number, *share);
                }
                self.bias.learn(*number, *event);
                Ok(())
            }
            Record::Rule { early_stop } => {
                self.rule = Some(Arc::clone(early_stop));
                Ok(())
            }
            Record::Outlook { bits } => {
                self.outlook = Some(Arc::clone(bits));
                Ok(())
            }
            Record::Graded(group) => {
                self.history.graded(group);
                Ok(())
            }
        }
    }

    fn begin(&mut self, run: &RunRecord) -> Result<(), LedgerError> {
        if self.run.is_some() {
            return Err(contradiction("a second run in one ledger".to_owned()));
        }
        if run.format != FORMAT {
            return Err(contradiction(format!("records of format={}, expected format={FORMAT}", run.format)));
        }
        self.run = Some(run.clone());
        Ok(())
    }

    fn begin_step(&mut self, step: &StepRecord) -> Result<(), LedgerError> {
        let (last, begins_again) = (self.last_step(), self.steps.get(&step.step));
        if step.step < last && begins_again.is_none_or(|earlier| earlier.end.is_some()) {
            return Err(contradiction(format!("step={} after step={last}", step.step)));
        }
        // Dispatches in flight move to the new step, because a dispatch counts in the step in which it ends.
        let in_flight = self.open.len() as u64;
        if let Some(left) = self.steps.get_mut(&self.current) {
            left.totals.dispatched -= in_flight;
            left.totals.in_flight = 0;
        }
        let begun = self
            .steps
            .entry(step.step)
            .or_insert_with(|| StepState { policy_version: step.policy_version, ..StepState::default() });
        begun.target = step.target;
        begun.end = None;
        begun.totals.dispatched += in_flight;
        begun.totals.in_flight = in_flight;
        self.current = step.step;
        self.policy_version = step.policy_version;
        Ok(())
    }

    fn dispatch(&mut self, dispatch: &DispatchRecord) -> Result<(), LedgerError> {
        let DispatchRecord { id, number, parent, .. } = *dispatch;
        let refused = |why: String| Err(contradiction(format!("dispatch={id} of number={number} {why}")));
        if id.0 < self.next_id {
            return refused("follows a dispatch with a greater id".to_owned());
        }
        let Some(step) = self.steps.get_mut(&self.current).filter(|_| dispatch.step == self.current) else {
            return refused(format!("belongs to step={}, not to step={}", dispatch.step, self.current));
        };
        match parent {
            None if number < self.next_number => {
                return refused("is new, but its number is already in use".to_owned());
            }
            None => {}
            Some(parent) => {
                let waits = self.queued.get(&number);
                let is_right = |queued: &QueuedPrompt| {
                    queued.parent == parent && queued.prompt_uid == dispatch.prompt_uid
                };
                if !waits.is_some_and(is_right) {
                    return refused(format!("continues parent={parent}, but no prompt waits for it"));
                }
            }
        }
        self.queued.remove(&number);
        if parent.is_none() {
            step.sent_new += 1;
            self.bias.sent(dispatch.step, number, Inclusion::chosen(dispatch.chance).weight());
            self.history.sent(dispatch.visit, number);
        }
        for totals in [&mut self.totals, &mut step.totals] {
            totals.dispatched += 1;
            totals.in_flight += 1;
        }
        self.next_id = id.0.saturating_add(1);
        self.next_number = self.next_number.max(number.saturating_add(1));
        if let Some(drawn_to) = dispatch.drawn_to
            && self.position.is_none_or(|position| place(drawn_to) > place(position))
        {
            self.position = Some(drawn_to);
        }
        self.open.insert(id, dispatch.clone());
        Ok(())
    }

    fn end(&mut self, id: DispatchId, fate: &Fate, next: &Next) -> Result<(), LedgerError> {
        if *fate == Fate::Accepted && *next != Next::Nothing {
            return Err(contradiction(format!("dispatch={id} is accepted, but its prompt continues")));
        }
        if *fate == Fate::Requeued && self.accepted.contains_key(&id) {
            return self.take_back(id, next);
        }
        let Some(dispatch) = self.open.remove(&id) else {
            return Err(contradiction(format!("dispatch={id} ends ({fate:?}), but is not in flight")));
        };
        self.totals.count(fate);
        if let Some(step) = self.steps.get_mut(&self.current) {
            step.totals.count(fate);
        }
        self.go_on(&dispatch, fate, next);
        if *fate == Fate::Accepted {
            self.accepted.insert(id, Accepted { dispatch, step: self.current, tokens: HandedOn::default() });
            self.last_accepted = Some(id);
        }
        Ok(())
    }

    /// Stores the counts of tokens. The increase of the accepted tokens belongs to the last accepted
    /// dispatch.
    fn count_tokens(&mut self, tokens: &TokenTotals) {
        if let Some(accepted) = self.last_accepted.take().and_then(|id| self.accepted.get_mut(&id)) {
            accepted.tokens = tokens.handed_on_since(&self.run_tokens);
        }
        self.run_tokens = *tokens;
    }

    /// Requeues an accepted group whose rows never reached the queue. Its step lacks a group, and continues.
    fn take_back(&mut self, id: DispatchId, next: &Next) -> Result<(), LedgerError> {
        let Some(Accepted { dispatch, step, tokens }) = self.accepted.remove(&id) else { return Ok(()) };
        self.run_tokens.take_back(tokens);
        let counted = self.steps.get_mut(&step).map(|step| {
            step.end = None;
            &mut step.totals
        });
        for totals in counted.into_iter().chain([&mut self.totals]) {
            totals.accepted -= 1;
            totals.requeued += 1;
        }
        self.go_on(&dispatch, &Fate::Requeued, next);
        Ok(())
    }

    /// Decides how the prompt continues, and whether its tokens are kept.
    fn go_on(&mut self, dispatch: &DispatchRecord, fate: &Fate, next: &Next) {
        let number = dispatch.number;
        let mut first_attempt = dispatch.first_attempt;
        match next {
            // The tokens of an accepted dispatch are kept until it is settled, because a restart may find
            // that the group is not in the queue.
            Next::Nothing if *fate == Fate::Accepted => return,
            Next::Nothing => return self.let_go_of(number),
            Next::Again => {}
            Next::Anew { first_attempt: anew } => {
                self.let_go_of_tokens(number);
                first_attempt = *anew;
            }
            Next::From(place) => {
                self.let_go_of_tokens(number);
                self.tokens.insert(number, *place);
                *self.token_files.entry(place.file).or_default() += 1;
            }
        }
        let queued = QueuedPrompt {
            number,
            parent: dispatch.id,
            fate: fate.clone(),
            prompt_uid: dispatch.prompt_uid,
            row: dispatch.row,
            visit: dispatch.visit,
            first_attempt,
            returns: dispatch.returns.saturating_add(u32::from(*fate == Fate::Stale)),
            tokens: self.tokens.get(&number).copied(),
            inclusion: Inclusion { chance: dispatch.chance, run_on: self.run_on(number) },
        };
        self.queued.insert(number, queued);
    }

    /// The share of the groups like that of `number` that run on.
    fn run_on(&self, number: u64) -> f32 {
        self.running_on.get(&number).copied().unwrap_or(1.0)
    }

    /// Forgets a number that is settled.
    fn let_go_of(&mut self, number: u64) {
        self.running_on.remove(&number);
        self.let_go_of_tokens(number);
    }

    fn let_go_of_tokens(&mut self, number: u64) {
        let Some(place) = self.tokens.remove(&number) else { return };
        if let Some(count) = self.token_files.get_mut(&place.file) {
            *count -= 1;
            if *count == 0 {
                self.token_files.remove(&place.file);
            }
        }
    }

    fn settle(&mut self, ids: &[DispatchId]) -> Result<(), LedgerError> {
        if let Some(id) = ids.iter().find(|id| !self.accepted.contains_key(id)) {
            return Err(contradiction(format!("dispatch={id} is settled, but was not accepted")));
        }
        for id in ids {
            if let Some(accepted) = self.accepted.remove(id) {
                self.let_go_of(accepted.dispatch.number);
            }
        }
        Ok(())
    }

    fn end_step(&mut self, ended: StepEndRecord) -> Result<(), LedgerError> {
        let Some(step) = self.steps.get_mut(&ended.step) else {
            return Err(contradiction(format!("step={} ends, but has not begun", ended.step)));
        };
        step.end = Some(ended.end);
        self.bias.close(ended.step);
        Ok(())
    }

    /// Checks conservation of dispatches over the run and over each step, and of tokens over the run.
    pub fn check(&self) -> Result<(), LedgerError> {
        token_conservation(&self.run_tokens)?;
        conservation(&self.totals, self.open.len())?;
        for (number, step) in &self.steps {
            let open = if *number == self.current { self.open.len() } else { 0 };
            conservation(&step.totals, open)?;
        }
        Ok(())
    }
}

fn place(position: Position) -> (u32, u64) {
    (position.epoch, position.offset)
}

fn contradiction(what: String) -> LedgerError {
    LedgerError::Contradiction(what)
}

#[cfg(test)]
mod tests;
