//! Compares the ledger with the queue after a restart, and decides where the run continues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rolldock_dispatch::bias::BiasMeter;
use rolldock_dispatch::history::PromptHistory;
use rolldock_dispatch::{DispatchId, Fate, Position, StepEnd, TokenTotals, Totals};

use super::{LedgerState, QueuedPrompt, StepState};
use crate::codec::SETTLED_MAX;
use crate::{DispatchRecord, LedgerError, MetersRecord, QueueRecord, Record};

/// A step that continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStep {
    /// The number of the step.
    pub step: u64,
    /// Number of groups that the step has to collect.
    pub target: u64,
    /// Number of accepted groups of the step. All of them are in the queue.
    pub accepted: u64,
    /// New prompts that were sent out in the step.
    pub sent_new: u64,
    /// The dispatches of the step so far, by fate. No dispatch is in flight.
    pub totals: Totals,
}

/// Where a run continues.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumption {
    /// Records that must be appended and synced before anything else. After that the queue may forget all of
    /// its records.
    pub records: Vec<Record>,
    /// Prompts that are sent out before any new one, in dispatch order.
    pub queued: Vec<QueuedPrompt>,
    /// Steps that lack groups, in order. These are steps that have not ended, the last step if an interrupt
    /// ended it, and steps with a group that was recorded as accepted and is not in the queue. A
    /// [`StepRecord`](crate::StepRecord) with the number of a step continues it.
    pub open_steps: Vec<OpenStep>,
    /// The last step that has begun; 0 before the first one.
    pub last_step: u64,
    /// The policy version that generates tokens.
    pub policy_version: u64,
    /// The first step that began with `policy_version`; `None` if there is no such step.
    pub version_since_step: Option<u64>,
    /// The weights that servers were given last: an announcement, as JSON.
    pub weights: Option<Arc<str>>,
    /// The id of the next dispatch.
    pub next_dispatch: DispatchId,
    /// The number of the next new prompt.
    pub next_number: u64,
    /// Where the data continues; `None` before the first dispatch, or if the source of the data has no
    /// positions.
    pub position: Option<Position>,
    /// Dispatches of the run by fate. No dispatch is in flight.
    pub run_totals: Totals,
    /// Response tokens of the run by bucket. Tokens in flight were lost with the process, except the tokens
    /// of waiting prompts; see [`TokenTotals::after_restart`].
    pub run_tokens: TokenTotals,
    /// The measurements of the run; `None` if there are none yet.
    pub meters: Option<MetersRecord>,
    /// The evidence from which the launch estimates how many groups will be valid; `None` if there is none
    /// yet.
    pub outlook: Option<Arc<[u64]>>,
    /// The bias meter. It no longer follows numbers that were lost with the process.
    pub bias: BiasMeter,
    /// The history of the prompts. It is empty if the run keeps none.
    pub history: PromptHistory,
    /// The early-stop mode that the bias guard has set; `None` if the guard has not acted.
    pub rule: Option<Arc<str>>,
    /// The number of the process that continues the run.
    pub life: u32,
}

impl LedgerState {
    /// Decides the fate of open and accepted dispatches from the queue's records, applies the decisions as
    /// further records, and returns where the run continues. Once the returned records are in the ledger,
    /// another call makes no further decision, even after a crash.
    ///
    /// # Errors
    /// [`LedgerError::UnknownDispatch`] and [`LedgerError::QueueDiffers`] if ledger and queue do not belong
    /// together. Such a run cannot continue.
    pub fn reconcile(&mut self, queue: &[QueueRecord]) -> Result<Resumption, LedgerError> {
        let in_queue = self.compare(queue)?;
        let mut records = Vec::new();
        for id in self.open.keys() {
            let fate = if in_queue.contains(id) { Fate::Accepted } else { Fate::Requeued };
            records.push(Record::end(*id, fate));
        }
        let not_there = self.accepted.keys().filter(|id| !in_queue.contains(id));
        records.extend(not_there.map(|id| Record::end(*id, Fate::Requeued)));
        for record in &records {
            self.apply(record)?;
        }
        for (number, event) in self.bias.after_restart(|number| self.queued.contains_key(&number)) {
            let record = Record::Bias { number, event };
            self.apply(&record)?;
            records.push(record);
        }
        let accepted: Vec<DispatchId> = self.accepted.keys().copied().collect();
        for ids in accepted.chunks(SETTLED_MAX) {
            let settled = Record::Settled { ids: ids.to_vec() };
            self.apply(&settled)?;
            records.push(settled);
        }
        self.check()?;
        Ok(self.resumption(records))
    }

    fn resumption(&self, records: Vec<Record>) -> Resumption {
        let last = self.last_step();
        let goes_on = |number: u64, step: &StepState| {
            step.end.is_none() || number == last && step.end == Some(StepEnd::Interrupted)
        };
        let of_version = |(_, step): &(&u64, &StepState)| step.policy_version == self.policy_version;
        let open_steps = self.steps.iter().filter(|(number, step)| goes_on(**number, step));
        Resumption {
            records,
            queued: self.queued.values().cloned().collect(),
            open_steps: open_steps
                .map(|(number, step)| OpenStep {
                    step: *number,
                    target: step.target,
                    accepted: step.totals.accepted,
                    sent_new: step.sent_new,
                    totals: step.totals.clone(),
                })
                .collect(),
            last_step: last,
            policy_version: self.policy_version,
            version_since_step: self.steps.iter().find(of_version).map(|(number, _)| *number),
            weights: self.weights.clone(),
            next_dispatch: self.next_dispatch(),
            next_number: self.next_number,
            position: self.position,
            run_totals: self.totals.clone(),
            run_tokens: self.run_tokens,
            meters: self.meters.clone(),
            outlook: self.outlook.clone(),
            bias: self.bias.clone(),
            history: self.history.clone(),
            rule: self.rule.clone(),
            life: self.lives + 1,
        }
    }

    /// Checks that the queue's records agree with the ledger, and returns the dispatches that they name.
    fn compare(&self, queue: &[QueueRecord]) -> Result<BTreeSet<DispatchId>, LedgerError> {
        let running: BTreeMap<u64, DispatchId> =
            self.open.values().map(|dispatch| (dispatch.number, dispatch.id)).collect();
        let mut by_number: BTreeMap<u64, DispatchId> = BTreeMap::new();
        let mut there = BTreeSet::new();
        for record in queue {
            let (id, number) = (DispatchId(record.dispatch), record.number);
            let differs = |what: String| Err(LedgerError::QueueDiffers { dispatch: id, what });
            if id.0 >= self.next_id {
                return Err(LedgerError::UnknownDispatch { dispatch: id });
            }
            if let Some(other) = by_number.insert(number, id)
                && other != id
            {
                return differs(format!("the queue has number={number} as dispatch={other} too"));
            }
            let accepted = || self.accepted.get(&id).map(|accepted| &accepted.dispatch);
            if let Some(dispatch) = self.open.get(&id).or_else(accepted) {
                if let Some(what) = difference(dispatch, record) {
                    return differs(what);
                }
            } else if self.queued.contains_key(&number) || running.contains_key(&number) {
                // This dispatch is not in flight and not accepted in the ledger, so it should be settled. But a
                // number that waits or is in flight cannot belong to a settled dispatch.
                return differs(format!("the queue has it, and number={number} is not accepted yet"));
            }
            there.insert(id);
        }
        Ok(there)
    }
}

fn difference(dispatch: &DispatchRecord, record: &QueueRecord) -> Option<String> {
    let uid = dispatch.prompt_uid.to_string();
    if (dispatch.number, &uid) == (record.number, &record.prompt_uid) {
        return None;
    }
    Some(format!(
        "the ledger has number={} prompt_uid={uid}, the queue number={} prompt_uid={}",
        dispatch.number, record.number, record.prompt_uid
    ))
}
