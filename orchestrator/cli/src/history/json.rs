//! The answer of `rolldock ledger` as JSON.

use rolldock_dispatch::{Fate, StepEnd, Totals};
use rolldock_ledger::{DispatchHistory, History, LedgerError, Next, StepState};
use serde_json::{Value, json};

use super::Question;
use super::queue::QueueSide;

pub(super) fn answer(
    question: Question,
    history: &History,
    queue: &QueueSide,
    checked: &Result<(), LedgerError>,
) -> Value {
    let state = &history.state;
    let conservation = checked.as_ref().map_or_else(|broken| json!(broken.to_string()), |()| json!("holds"));
    match question {
        Question::Prompt(_) | Question::Row(_) => json!({
            "dispatches": history.dispatches.iter().map(dispatch).collect::<Vec<_>>(),
            "conservation": conservation,
        }),
        Question::Step(number) => {
            let failures = history.failures();
            let failures =
                failures.iter().map(|(reason, count)| json!({ "reason": reason, "groups": count }));
            json!({
                "step": state.steps().get(&number).map(|found| step(number, found)),
                "failures": failures.collect::<Vec<_>>(),
                "dispatches": history.dispatches.iter().map(dispatch).collect::<Vec<_>>(),
                "conservation": conservation,
            })
        }
        Question::Whole => json!({
            "run_id": state.run().map(|run| &run.run_id),
            "started_s": state.run().map(|run| run.started_s),
            "lives": state.lives(),
            "policy_version": state.policy_version(),
            "totals": totals(state.totals()),
            "tokens": state.run_tokens(),
            "conservation": conservation,
            "queued": state.queued().count(),
            "not_settled": state.accepted().count(),
            "next_dispatch": state.next_dispatch().0,
            "next_number": state.next_number(),
            "position": state.position(),
            "torn_bytes": history.end.torn_bytes,
            "steps": state.steps().iter().map(|(number, found)| step(*number, found)).collect::<Vec<_>>(),
            "queue": match &queue.found {
                Ok(found) => json!({ "records": found.records, "inspection": found.inspection }),
                Err(error) => json!({ "error": error.to_string() }),
            },
        }),
    }
}

fn step(number: u64, step: &StepState) -> Value {
    json!({
        "step": number,
        "target": step.target,
        "policy_version": step.policy_version,
        "end": step.end.map(StepEnd::as_str),
        "totals": totals(&step.totals),
    })
}

fn totals(totals: &Totals) -> Value {
    let Totals { dispatched, in_flight, accepted, filtered, stale, cancelled, requeued, carried, .. } =
        totals;
    json!({
        "dispatched": dispatched,
        "in_flight": in_flight,
        "accepted": accepted,
        "filtered": filtered,
        "stale": stale,
        "cancelled": cancelled,
        "requeued": requeued,
        "carried": carried,
        "held": totals.held,
        "failed": totals.failed,
        "filtered_by_reason": totals.filtered_by_reason,
    })
}

fn dispatch(history: &DispatchHistory) -> Value {
    let dispatch = &history.dispatch;
    let (fate, reason) = history.fate.as_ref().map(words_of).unzip();
    json!({
        "dispatch": dispatch.id.0,
        "number": dispatch.number,
        "parent": dispatch.parent.map(|parent| parent.0),
        "prompt_uid": dispatch.prompt_uid.to_string(),
        "row": dispatch.row,
        "visit": dispatch.visit,
        "step": dispatch.step,
        "ended_in": history.ended_in,
        "policy_version": dispatch.policy_version,
        "first_attempt": dispatch.first_attempt,
        "fate": fate,
        "reason": reason.flatten(),
        "goes_on": history.next.map(|next| next != Next::Nothing),
        "taken_back": history.is_taken_back,
    })
}

/// The name of a fate, and its reason if it has one.
pub(super) fn words_of(fate: &Fate) -> (&'static str, Option<&str>) {
    match fate {
        Fate::Accepted => ("accepted", None),
        Fate::Filtered(reason) => ("filtered", Some(reason)),
        Fate::Stale => ("stale", None),
        Fate::Cancelled => ("cancelled", None),
        Fate::Requeued => ("requeued", None),
        Fate::Carried => ("carried", None),
        Fate::Held => ("held", None),
        Fate::Failed(reason) => ("failed", Some(reason)),
    }
}
