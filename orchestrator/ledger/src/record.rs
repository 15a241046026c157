//! The records of the ledger: one for each change of a fate, and further records that a restart needs.

use std::sync::Arc;

use rolldock_dispatch::bias::BiasEvent;
use rolldock_dispatch::history::{Chance, GradedGroup};
use rolldock_dispatch::{DispatchId, Fate, Position, PromptUid, StepEnd, TokenTotals};
use serde::{Deserialize, Serialize};

use super::LedgerError;

/// Version of the record format. The first record of a run contains it.
pub const FORMAT: u32 = 1;

/// The first record of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRecord {
    /// The id of the run, which all of its lives share. Request ids start with it.
    pub run_id: String,
    /// Unix seconds.
    pub started_s: u64,
    /// The version of the record format: [`FORMAT`].
    pub format: u32,
}

/// The start of a life: a new process works on the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifeRecord {
    /// The number of the life, counted from 1.
    pub number: u32,
    /// The id of the process.
    pub pid: u32,
    /// Unix seconds.
    pub started_s: u64,
}

/// A step begins, or continues in another life. Every later end of a dispatch counts for this step, even if
/// an earlier step sent the dispatch out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRecord {
    /// The number of the step, counted from 1.
    pub step: u64,
    /// Number of groups that the step must collect in all of its lives.
    pub target: u64,
    /// The policy version that generates tokens when the step begins.
    pub policy_version: u64,
}

/// A group is sent out.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchRecord {
    /// The id of the dispatch, greater than all earlier ids.
    pub id: DispatchId,
    /// The position in dispatch order. A new prompt gets a number above all earlier numbers. A continued
    /// prompt keeps its number.
    pub number: u64,
    /// The earlier dispatch of the prompt, which this dispatch continues.
    pub parent: Option<DispatchId>,
    /// The prompt.
    pub prompt_uid: PromptUid,
    /// The row of the prompt in the data set.
    pub row: u64,
    /// Number of epochs before this visit to the row.
    pub visit: u32,
    /// The step that sends the dispatch out.
    pub step: u64,
    /// The policy version at the moment of sending.
    pub policy_version: u64,
    /// The attempt with which its samples start. A carried sample continues with its own attempt.
    pub first_attempt: u32,
    /// How many earlier dispatches of its prompt were too old, or were given up by the watchdog. A held group
    /// starts again from 0.
    pub returns: u32,
    /// The position in the data after a new prompt. It is `None` for a continued prompt, or if the source of
    /// the data has no positions.
    pub drawn_to: Option<Position>,
    /// The probabilities by which the prompt was chosen; `None` if the prompt had no history. A continued
    /// prompt keeps them.
    pub chance: Option<Chance>,
}

/// The location of a group's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokensPlace {
    /// The step in the file's name.
    pub file: u64,
    /// The offset of its block in the file.
    pub offset: u64,
    /// Number of bytes in the body of its block.
    pub length: u32,
}

/// How the prompt of a dispatch continues after the dispatch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The prompt is not sent out again.
    Nothing,
    /// The prompt is sent out again unchanged: with its first attempt, and with its tokens if it had any.
    Again,
    /// The prompt is sent out again without tokens.
    Anew {
        /// The attempt with which its samples start.
        first_attempt: u32,
    },
    /// The prompt is sent out again, and continues from these tokens.
    From(TokensPlace),
}

/// A step has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepEndRecord {
    /// The step.
    pub step: u64,
    /// Why it ended.
    pub end: StepEnd,
}

/// The counts of a gate in the run so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRecord {
    /// The name of the gate.
    pub name: Arc<str>,
    /// Groups that the gate passed.
    pub passed: u64,
    /// Groups that the gate rejected.
    pub rejected: u64,
    /// Rejected groups that a short step accepted after all.
    pub kept: u64,
}

/// The measurements of a run so far, for the next process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetersRecord {
    /// Counts of groups whose samples differ: the groups that the other gates passed, and the groups that the
    /// other gates rejected. Without other gates, no group is counted. Each count is stored as the bits of an
    /// `f64`. Older counts lose weight with every step, so the counts are not integers.
    pub accept_rate: [u64; 2],
    /// Rows that were dropped because they are too long, up to the last prompt that was sent out.
    pub overlong_dropped: u64,
    /// Prompts that were cut to the maximum length, up to the last prompt that was sent out.
    pub overlong_truncated: u64,
    /// The counts of each gate of the filter.
    pub gates: Vec<GateRecord>,
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// The first record of the ledger.
    Run(RunRecord),
    /// See [`LifeRecord`].
    Life(LifeRecord),
    /// See [`StepRecord`].
    Step(StepRecord),
    /// A group is sent out. The record is written before the group's first request is sent.
    Dispatch(DispatchRecord),
    /// A dispatch gets a fate. Only [`LedgerState::reconcile`](super::LedgerState::reconcile) changes a fate
    /// later: it requeues a dispatch that was recorded as accepted, but whose rows never reached the queue.
    End {
        /// The dispatch.
        id: DispatchId,
        /// How it ended.
        fate: Fate,
        /// How its prompt continues.
        next: Next,
    },
    /// These accepted dispatches are final: their fate does not depend on the queue any more. This record
    /// must be synced before the queue may forget the records of these dispatches.
    Settled {
        /// The accepted dispatches.
        ids: Vec<DispatchId>,
    },
    /// See [`StepEndRecord`].
    StepEnd(StepEndRecord),
    /// The policy version that generates tokens from now on.
    Version {
        /// The version.
        version: u64,
    },
    /// The weights that servers have from now on. This record is written before the [version](Self::Version)
    /// of the weights.
    Weights {
        /// The announcement, as JSON.
        announcement: Arc<str>,
    },
    /// Response tokens of the run so far, over all of its lives. This record follows the record of each
    /// [end](Self::End). The difference to the previous record therefore gives the tokens of an accepted
    /// dispatch.
    Tokens(TokenTotals),
    /// See [`MetersRecord`]; written when it has changed.
    Meters(MetersRecord),
    /// An event of a dispatch number for the bias meter. A decision precedes the end of its dispatch.
    /// Dispatches and ends of steps, which the meter also counts, have other records.
    Bias {
        /// The number.
        number: u64,
        /// The event.
        event: BiasEvent,
    },
    /// The early-stop mode that the bias guard has set, by its name in recipes.
    Rule {
        /// The name.
        early_stop: Arc<str>,
    },
    /// The evidence from which the launch estimates how many groups will be valid, as bits of `f64`. It is
    /// written when a step begins and when a step ends.
    Outlook {
        /// The numbers.
        bits: Arc<[u64]>,
    },
    /// The result of a complete group, for the history of its prompt. This record precedes the end of the
    /// dispatch.
    Graded(GradedGroup),
}

impl Record {
    /// The record of a dispatch that ends with `fate`. A requeued, carried or held prompt is sent out again
    /// unchanged; other prompts are not sent out again.
    pub fn end(id: DispatchId, fate: Fate) -> Self {
        let next = match fate {
            Fate::Requeued | Fate::Carried | Fate::Held => Next::Again,
            Fate::Accepted | Fate::Filtered(_) | Fate::Stale | Fate::Cancelled | Fate::Failed(_) => {
                Next::Nothing
            }
        };
        Self::End { id, fate, next }
    }

    /// The record of a dispatch that ends with `fate`, and whose prompt is sent out again without tokens.
    pub fn end_anew(id: DispatchId, fate: Fate, first_attempt: u32) -> Self {
        Self::End { id, fate, next: Next::Anew { first_attempt } }
    }
}

/// The record that a put carries in the queue. It names the dispatch of the rows, and the step for which the
/// dispatch counts. The put is submitted after the ledger has synced the end of the dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRecord {
    /// The accepted dispatch.
    pub dispatch: u64,
    /// The number of the dispatch.
    pub number: u64,
    /// The step for which the dispatch counts.
    pub step: u64,
    /// The prompt, in the form in which [`PromptUid`] is printed. It is a text because some JSON readers
    /// cannot represent numbers of 64 bits.
    pub prompt_uid: String,
}

impl QueueRecord {
    /// The record for the put of a group.
    pub fn new(dispatch: DispatchId, number: u64, step: u64, prompt_uid: PromptUid) -> Self {
        Self { dispatch: dispatch.0, number, step, prompt_uid: prompt_uid.to_string() }
    }

    /// The record in the form that a put carries.
    pub fn to_json(&self) -> String {
        let Self { dispatch, number, step, prompt_uid } = self;
        serde_json::json!({ "dispatch": dispatch, "number": number, "step": step, "prompt_uid": prompt_uid })
            .to_string()
    }

    /// Parses the output of [`QueueRecord::to_json`].
    pub fn parse(record: &str) -> Result<Self, LedgerError> {
        let foreign = |reason: String| LedgerError::ForeignRecord { record: record.to_owned(), reason };
        let parsed: Self = serde_json::from_str(record).map_err(|error| foreign(error.to_string()))?;
        parsed.uid().ok_or_else(|| foreign("expected 16 hexadecimal digits in prompt_uid".to_owned()))?;
        Ok(parsed)
    }

    /// The prompt.
    pub fn uid(&self) -> Option<PromptUid> {
        u64::from_str_radix(&self.prompt_uid, 16).ok().map(PromptUid)
    }
}
