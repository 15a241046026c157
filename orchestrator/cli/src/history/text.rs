//! The answer of `rolldock ledger` as text for people.

use rolldock_dispatch::{Fate, StepEnd, Totals};
use rolldock_ledger::{DispatchHistory, History, LedgerError, LedgerState, Next, QueuedPrompt, StepState};
use rolldock_process::{new_table, plural, token_words};

use super::Question;
use super::json::words_of;
use super::queue::QueueSide;

/// Maximum number of steps that are listed. JSON has all of them.
const STEPS_LISTED_MAX: usize = 40;
/// Maximum number of reasons of failures that are listed.
const FAILURES_LISTED_MAX: usize = 16;

pub(super) fn answer(
    question: Question,
    history: &History,
    queue: &QueueSide,
    checked: &Result<(), LedgerError>,
) -> String {
    let mut lines = match question {
        Question::Whole => whole(history, queue),
        Question::Prompt(uid) => prompt(&format!("prompt {uid}"), history),
        Question::Row(row) => prompt(&format!("the prompt in row {row}"), history),
        Question::Step(number) => history
            .state
            .steps()
            .get(&number)
            .map(|step| step_lines(number, step, history))
            .unwrap_or_default(),
    };
    if history.end.torn_bytes > 0 {
        lines.push(format!(
            "the last write is incomplete ({} bytes): it is under way, or was cut off",
            history.end.torn_bytes
        ));
    }
    match checked {
        Ok(()) => lines.push(
            "conservation holds: every dispatch is in flight or has one fate, and every token is in one bucket"
                .to_owned(),
        ),
        Err(broken) => lines.push(format!("conservation is BROKEN: {broken}")),
    }
    lines.join("\n")
}

fn whole(history: &History, queue: &QueueSide) -> Vec<String> {
    let state = &history.state;
    let Some(run) = state.run() else { return vec!["the ledger is empty".to_owned()] };
    let mut lines = vec![format!(
        "run {}: life {}, {}, policy version {}",
        run.run_id,
        state.lives(),
        plural(state.steps().len() as u64, "step"),
        state.policy_version()
    )];
    lines.push(format!("dispatches: {}", fates(state.totals())));
    lines.extend(reasons(state.totals()));
    lines.push(format!("tokens: {}", token_words(state.run_tokens())));
    lines.push(waiting(state));
    let place = state
        .position()
        .map_or(String::new(), |place| format!(", data at epoch {} position {}", place.epoch, place.offset));
    lines.push(format!("next: dispatch {}, number {}{place}", state.next_dispatch(), state.next_number()));
    lines.extend(queue_lines(state, queue));
    lines.push(steps_table(state));
    lines
}

fn fates(totals: &Totals) -> String {
    let Totals { dispatched, in_flight, accepted, filtered, stale, cancelled, requeued, carried, .. } =
        totals;
    format!(
        "{dispatched} = {in_flight} in flight + {accepted} accepted + {filtered} filtered + {stale} stale + \
         {cancelled} cancelled + {requeued} requeued + {carried} carried + {} held + {} failed",
        totals.held, totals.failed
    )
}

fn reasons(totals: &Totals) -> Option<String> {
    let reasons: Vec<String> =
        totals.filtered_by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    (!reasons.is_empty()).then(|| format!("filtered for: {}", reasons.join(", ")))
}

fn waiting(state: &LedgerState) -> String {
    let with = |holds: fn(&QueuedPrompt) -> bool| state.queued().filter(|queued| holds(queued)).count();
    format!(
        "prompts that wait to be sent out again: {} ({} with tokens, of which {} are held groups)",
        state.queued().count(),
        with(|queued| queued.tokens.is_some()),
        with(|queued| queued.tokens.is_some() && queued.fate == Fate::Held)
    )
}

fn queue_lines(state: &LedgerState, queue: &QueueSide) -> Vec<String> {
    let found = match &queue.found {
        Ok(found) => found,
        Err(error) => return vec![format!("queue: cannot be read: {error}")],
    };
    let mut lines: Vec<String> = found
        .inspection
        .partitions
        .iter()
        .map(|partition| {
            let gone = &partition.dispositions;
            format!(
                "queue, partition {}: {} rows of {} groups are there; rows gone: {} acked, {} dropped, {} cleared, \
                 {} stale, {} lost",
                partition.name,
                partition.rows,
                partition.groups,
                gone.acked,
                gone.dropped,
                gone.cleared,
                gone.stale,
                gone.lost
            )
        })
        .collect();
    lines.push(format!(
        "accepted groups that are not settled yet: {} in the ledger, {} in the queue",
        state.accepted().count(),
        found.records
    ));
    lines
}

/// The dispatches with one fate.
type Count = fn(&Totals) -> u64;

/// The steps as a table. Columns without a count are left out.
fn steps_table(state: &LedgerState) -> String {
    let left_out = state.steps().len().saturating_sub(STEPS_LISTED_MAX);
    let listed: Vec<(&u64, &StepState)> = state.steps().iter().skip(left_out).collect();
    let fates: [(&str, Count); 9] = [
        ("accepted", |totals| totals.accepted),
        ("filtered", |totals| totals.filtered),
        ("stale", |totals| totals.stale),
        ("cancelled", |totals| totals.cancelled),
        ("requeued", |totals| totals.requeued),
        ("carried", |totals| totals.carried),
        ("held", |totals| totals.held),
        ("failed", |totals| totals.failed),
        ("in flight", |totals| totals.in_flight),
    ];
    let occurs = |count: Count| listed.iter().any(|(_, step)| count(&step.totals) > 0);
    let fates: Vec<_> = fates.into_iter().filter(|(_, count)| occurs(*count)).collect();
    let has_versions = listed.iter().any(|(_, step)| step.policy_version > 0);
    let names = fates.iter().map(|(name, _)| *name).chain(has_versions.then_some("version"));
    let mut table = new_table(["step", "target"].into_iter().chain(names).chain(["end"]));
    for (number, step) in &listed {
        let counts = fates.iter().map(|(_, count)| count(&step.totals));
        let version = has_versions.then_some(step.policy_version);
        let cells = [**number, step.target].into_iter().chain(counts).chain(version);
        table.add_row(cells.map(|cell| cell.to_string()).chain([ending(step.end).to_owned()]));
    }
    if left_out > 0 {
        return format!("{left_out} earlier steps are not shown; --json has them\n{table}");
    }
    table.to_string()
}

fn ending(end: Option<StepEnd>) -> &'static str {
    match end {
        None => "in progress",
        Some(StepEnd::Reached) => "target reached",
        Some(StepEnd::OutOfBatches) => "every generation batch is used up (rollout.max_gen_batches)",
        Some(StepEnd::OutOfPrompts) => "the data set has no more prompts",
        Some(StepEnd::Interrupted) => "interrupted",
    }
}

fn prompt(what: &str, history: &History) -> Vec<String> {
    let Some(first) = history.dispatches.first() else {
        return vec![format!("{what} was never sent out")];
    };
    let mut lines = vec![format!(
        "{what}: {} dispatches (prompt_uid {}, row {})",
        history.dispatches.len(),
        first.dispatch.prompt_uid,
        first.dispatch.row
    )];
    let mut table =
        new_table(["dispatch", "number", "parent", "visit", "step", "version", "attempt", "fate"]);
    for history in &history.dispatches {
        let dispatch = &history.dispatch;
        table.add_row([
            dispatch.id.to_string(),
            dispatch.number.to_string(),
            dispatch.parent.map_or("-".to_owned(), |parent| parent.to_string()),
            dispatch.visit.to_string(),
            dispatch.step.to_string(),
            dispatch.policy_version.to_string(),
            dispatch.first_attempt.to_string(),
            fate_words(history),
        ]);
    }
    lines.push(table.to_string());
    lines
}

fn fate_words(history: &DispatchHistory) -> String {
    let Some(fate) = &history.fate else { return "in flight".to_owned() };
    let mut words = match words_of(fate) {
        (name, None) => name.to_owned(),
        (name, Some(reason)) => format!("{name}: {reason}"),
    };
    if history.is_taken_back {
        words.push_str(", was recorded as accepted, but its rows never reached the queue");
    }
    match history.next {
        Some(Next::Anew { .. }) => words.push_str(", to be sent out anew"),
        Some(Next::From(_)) => words.push_str(", its tokens are kept"),
        Some(Next::Nothing | Next::Again) | None => {}
    }
    words
}

fn step_lines(number: u64, step: &StepState, history: &History) -> Vec<String> {
    let totals = &step.totals;
    let missing = step.target.saturating_sub(totals.accepted);
    let short = match step.end {
        _ if missing == 0 => String::new(),
        Some(_) => format!(", {missing} short"),
        // The ledger has only decisions. `rolldock why` also counts valid groups that wait for a decision.
        None => format!(", {missing} to go (valid groups without a decision are in flight here)"),
    };
    let mut lines = vec![
        format!(
            "step {number}: {} accepted of {} wanted{short}; {}",
            plural(totals.accepted, "group"),
            step.target,
            ending(step.end)
        ),
        format!("dispatches: {}", fates(totals)),
    ];
    lines.extend(reasons(totals));
    let taken_back = history.dispatches.iter().filter(|history| history.is_taken_back).count();
    if taken_back > 0 {
        lines.push(format!("{taken_back} were recorded as accepted, but their rows never reached the queue"));
    }
    let failures = history.failures();
    for (reason, count) in failures.iter().take(FAILURES_LISTED_MAX) {
        lines.push(format!("failed {count}: {reason}"));
    }
    if failures.len() > FAILURES_LISTED_MAX {
        lines.push(format!("and {} other reasons", failures.len() - FAILURES_LISTED_MAX));
    }
    lines
}
