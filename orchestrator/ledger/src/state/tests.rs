#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod lives;

use rolldock_dispatch::bias::{BiasEvent, Decision, GroupFigures};

use super::*;
use crate::{QueueRecord, fixture};

fn fold(records: &[Record]) -> Result<LedgerState, LedgerError> {
    let mut state = LedgerState::default();
    records.iter().try_for_each(|record| state.apply(record))?;
    Ok(state)
}

fn state(records: &[Record]) -> LedgerState {
    let beginning = [fixture::run(), fixture::life(1), fixture::step(1)];
    fold(&[&beginning, records].concat()).unwrap()
}

fn accepted(id: u64) -> Record {
    Record::end(DispatchId(id), Fate::Accepted)
}

fn in_queue(id: u64, number: u64) -> QueueRecord {
    QueueRecord::new(DispatchId(id), number, 1, fixture::dispatched(id, number, 1).prompt_uid)
}

/// The bias meter's record of a number whose decision is lost.
fn lost(number: u64) -> Record {
    Record::Bias { number, event: BiasEvent::Decided(Decision::Failed) }
}

#[test]
fn the_fold_counts_every_fate() {
    let fates = [
        Fate::Accepted,
        Fate::Filtered("no_variance"),
        Fate::Filtered("too_hard"),
        Fate::Stale,
        Fate::Cancelled,
        Fate::Requeued,
        Fate::Carried,
        Fate::Held,
        Fate::Failed("lost".to_owned()),
    ];
    let mut records: Vec<Record> = (0..10).map(|id| fixture::dispatch(id, id, 1)).collect();
    records.extend((0..).zip(fates).map(|(id, fate)| Record::end(DispatchId(id), fate)));
    let state = state(&records);
    let totals = state.totals();
    assert_eq!((totals.dispatched, totals.in_flight, totals.filtered), (10, 1, 2));
    let others =
        [totals.accepted, totals.stale, totals.cancelled, totals.requeued, totals.carried, totals.held];
    assert_eq!((others, totals.failed), ([1; 6], 1));
    assert_eq!(totals.filtered_by_reason["too_hard"], 1);
    assert_eq!(state.steps()[&1].totals, *totals);
    let waiting: Vec<u64> = state.queued().map(|queued| queued.number).collect();
    assert_eq!(waiting, [5, 6, 7]);
    assert_eq!((state.next_dispatch(), state.next_number()), (DispatchId(10), 10));
    assert_eq!(state.position(), Some(Position { epoch: 0, offset: 10 }));
    state.check().unwrap();
}

#[test]
fn tokens_of_a_group_that_never_came_into_the_queue_are_not_accepted() {
    let counted = |tokens: u64| {
        Record::Tokens(TokenTotals { generated: tokens, accepted: tokens, ..TokenTotals::default() })
    };
    let mut state = state(&[
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        accepted(0),
        counted(70),
        accepted(1),
        counted(100),
    ]);
    let tokens = state.reconcile(&[in_queue(0, 0)]).unwrap().run_tokens;
    assert_eq!((tokens.accepted, tokens.in_flight), (70, 30));
    let after = tokens.after_restart(0, 0);
    assert_eq!((after.accepted, after.wasted.lost_answer, after.in_flight), (70, 30, 0));
    state.check().unwrap();
}

#[test]
fn the_bias_of_every_life_is_that_of_the_run() {
    let group = |tokens: u64| Decision::Accepted(GroupFigures { samples: 1, tokens, right: 1.0 });
    let decided = |number: u64, decision| Record::Bias { number, event: BiasEvent::Decided(decision) };
    let mut records = vec![fixture::run(), fixture::life(1), fixture::step(1)];
    records.extend((0..4).map(|id| fixture::dispatch(id, id, 1)));
    records.extend([decided(0, group(100)), accepted(0), decided(1, group(300)), accepted(1), accepted(2)]);
    // The rows of number 1 never reached the queue, the decision about number 2 is lost, number 3 is in
    // flight.
    let queue = [in_queue(0, 0), in_queue(2, 2)];
    let mut first = fold(&records).unwrap();
    let resumed = first.reconcile(&queue).unwrap();
    let events: Vec<&Record> =
        resumed.records.iter().filter(|record| matches!(record, Record::Bias { .. })).collect();
    let taken_back = Record::Bias { number: 1, event: BiasEvent::TakenBack };
    assert_eq!(events, [&taken_back, &lost(2)]);

    records.extend(resumed.records);
    let mut again = fold(&records).unwrap();
    let resumed_again = again.reconcile(&queue).unwrap();
    assert_eq!((resumed_again.records.len(), &resumed_again.bias), (0, &resumed.bias));

    records.extend([fixture::life(2), fixture::step(1)]);
    records.extend([fixture::continued(4, 1, 1, 1), fixture::continued(5, 3, 3, 1)]);
    records.extend([decided(1, group(200)), accepted(4), decided(3, Decision::Filtered), accepted(5)]);
    records.push(Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::Reached }));
    let reading = fold(&records).unwrap().bias.reading(false);
    assert_eq!(reading.steps, Some((1, 1)), "all numbers are decided, two of them in the second life");
}

#[test]
fn a_record_that_does_not_follow_is_refused_and_changes_nothing() {
    let before = state(&[
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        accepted(1),
        fixture::dispatch(2, 2, 1),
        Record::end(DispatchId(2), Fate::Requeued),
    ]);
    let wrong = [
        fixture::run(),
        fixture::life(3),
        fixture::step(0),
        fixture::dispatch(1, 9, 1),
        fixture::dispatch(5, 1, 1),
        fixture::dispatch(5, 9, 2),
        fixture::continued(5, 1, 2, 1),
        fixture::continued(5, 2, 7, 1),
        fixture::continued(5, 0, 0, 1),
        Record::end(DispatchId(7), Fate::Cancelled),
        Record::end(DispatchId(2), Fate::Cancelled),
        Record::end(DispatchId(1), Fate::Cancelled),
        accepted(1),
        Record::End { id: DispatchId(0), fate: Fate::Accepted, next: Next::Again },
        Record::Settled { ids: vec![DispatchId(1), DispatchId(0)] },
        Record::StepEnd(StepEndRecord { step: 4, end: StepEnd::Reached }),
    ];
    for record in wrong {
        let mut after = before.clone();
        let refused = after.apply(&record);
        assert!(matches!(refused, Err(LedgerError::Contradiction(_))), "{record:?}: {refused:?}");
        assert_eq!(after, before, "{record:?}");
    }
    assert!(fold(&[fixture::life(1)]).is_err(), "the run comes first");
    assert!(before.clone().apply(&fixture::continued(5, 2, 2, 1)).is_ok());
}

#[test]
fn open_and_accepted_groups_follow_from_the_queue() {
    let mut state = state(&[
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        fixture::dispatch(2, 2, 1),
        fixture::dispatch(3, 3, 1),
        accepted(0),
        accepted(1),
        Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::Reached }),
    ]);
    // Of the accepted dispatches, the queue has dispatch 0. Of the dispatches in flight, it has dispatch 2.
    let resumed = state.reconcile(&[in_queue(0, 0), in_queue(2, 2)]).unwrap();
    let settled = Record::Settled { ids: vec![DispatchId(0), DispatchId(2)] };
    let requeued = |id| Record::end(DispatchId(id), Fate::Requeued);
    let expected = [accepted(2), requeued(3), requeued(1), lost(0), lost(2), settled];
    assert_eq!(resumed.records, expected);
    let queued: Vec<(u64, DispatchId)> =
        resumed.queued.iter().map(|queued| (queued.number, queued.parent)).collect();
    assert_eq!(queued, [(1, DispatchId(1)), (3, DispatchId(3))]);
    let step = &resumed.open_steps[0];
    assert_eq!((step.step, step.target, step.accepted), (1, 4, 2));
    assert_eq!((step.totals.accepted, step.totals.requeued), (2, 2));
    assert_eq!((resumed.next_dispatch, resumed.next_number, resumed.life), (DispatchId(4), 4, 2));
}

#[test]
fn a_step_continues_if_it_has_not_ended() {
    let with_end = |end: Option<StepEnd>| {
        let mut records = vec![fixture::dispatch(0, 0, 1), accepted(0)];
        records.extend(end.map(|end| Record::StepEnd(StepEndRecord { step: 1, end })));
        let resumed = state(&records).reconcile(&[in_queue(0, 0)]).unwrap();
        assert_eq!(resumed.last_step, 1);
        resumed.open_steps.first().map(|step| step.accepted)
    };
    assert_eq!(with_end(None), Some(1));
    assert_eq!(with_end(Some(StepEnd::Interrupted)), Some(1));
    assert_eq!(with_end(Some(StepEnd::Reached)), None);
    assert_eq!(with_end(Some(StepEnd::OutOfPrompts)), None);
}

#[test]
fn a_group_that_runs_on_keeps_its_weight_until_it_is_settled() {
    let runs_on = |number| Record::Bias { number, event: BiasEvent::RunsOn(0.25) };
    let mut records = vec![
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        fixture::dispatch(2, 2, 1),
        runs_on(0),
        runs_on(1),
        // One group is cut off, one is accepted and does not reach the queue, and one is in flight.
        Record::end(DispatchId(0), Fate::Requeued),
        accepted(1),
    ];
    let shares = |records: &[Record]| -> Vec<(u64, f32)> {
        let resumed = state(records).reconcile(&[]).unwrap();
        resumed.queued.iter().map(|queued| (queued.number, queued.inclusion.run_on)).collect()
    };
    assert_eq!(shares(&records), [(0, 0.25), (1, 0.25), (2, 1.0)]);
    records.push(fixture::continued(3, 0, 0, 1));
    assert_eq!(shares(&records), [(0, 0.25), (1, 0.25), (2, 1.0)], "dispatched again");

    records.extend([accepted(3), Record::Settled { ids: vec![DispatchId(1), DispatchId(3)] }]);
    assert!(state(&records).running_on.is_empty(), "nothing is kept of settled groups");
}

#[test]
fn settled_is_for_good() {
    let mut state = state(&[
        fixture::dispatch(0, 0, 1),
        lost(0),
        accepted(0),
        Record::Settled { ids: vec![DispatchId(0)] },
        Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::Reached }),
    ]);
    let mut other = state.clone();
    let forgotten = state.reconcile(&[]).unwrap();
    let still_there = other.reconcile(&[in_queue(0, 0)]).unwrap();
    assert_eq!(forgotten, still_there);
    assert_eq!((forgotten.records, forgotten.queued), (vec![], vec![]));
    assert_eq!(forgotten.run_totals.accepted, 1);
}

#[test]
fn a_queue_of_another_run_is_refused() {
    let state = state(&[
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        Record::end(DispatchId(1), Fate::Requeued),
    ]);
    let refused = |queue: &[QueueRecord]| {
        let mut other = state.clone();
        let error = other.reconcile(queue).unwrap_err();
        assert_eq!(other, state, "nothing is changed");
        error
    };
    assert!(matches!(refused(&[in_queue(2, 2)]), LedgerError::UnknownDispatch { .. }));
    assert!(matches!(refused(&[in_queue(0, 1)]), LedgerError::QueueDiffers { .. }));
    let error = refused(&[in_queue(1, 1)]);
    assert!(error.to_string().contains("number=1 is not accepted yet"), "{error}");
    let twice = refused(&[in_queue(0, 0), in_queue(1, 0)]);
    assert!(matches!(twice, LedgerError::QueueDiffers { .. }), "{twice}");
}

#[test]
fn a_dispatch_counts_for_the_step_in_which_it_ends() {
    let mut state = state(&[
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        fixture::dispatch(2, 2, 1),
        accepted(0),
        Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::Reached }),
        fixture::step(2),
        accepted(1),
    ]);
    let of = |state: &LedgerState, step: u64| {
        let totals = &state.steps()[&step].totals;
        (totals.dispatched, totals.in_flight, totals.accepted)
    };
    assert_eq!((of(&state, 1), of(&state, 2)), ((1, 0, 1), (2, 1, 1)));
    state.check().unwrap();
    assert!(state.clone().apply(&fixture::step(1)).is_err(), "the first step has ended");

    // The group of the first step is not in the queue. Both steps continue, one after the other.
    let resumed = state.reconcile(&[in_queue(1, 1)]).unwrap();
    let lacking: Vec<_> = resumed.open_steps.iter().map(|step| (step.step, step.accepted)).collect();
    assert_eq!(lacking, [(1, 0), (2, 1)]);
    for (record, expected) in [
        (fixture::step(1), 1),
        (fixture::continued(3, 0, 0, 1), 1),
        (accepted(3), 1),
        (Record::StepEnd(StepEndRecord { step: 1, end: StepEnd::Reached }), 1),
        (fixture::step(2), 2),
    ] {
        state.apply(&record).unwrap();
        assert_eq!(state.current_step(), expected);
        state.check().unwrap();
    }
    assert_eq!((of(&state, 1), of(&state, 2)), ((2, 0, 1), (2, 0, 1)));
}

#[test]
fn groups_that_are_returned_as_too_old_are_counted() {
    let mut state = state(&[fixture::dispatch(0, 0, 1), Record::end_anew(DispatchId(0), Fate::Stale, 3)]);
    let queued = state.queued().next().unwrap().clone();
    assert_eq!((queued.returns, queued.first_attempt), (1, 3));
    let again = DispatchRecord { parent: Some(DispatchId(0)), returns: 1, ..fixture::dispatched(1, 0, 1) };
    state.apply(&Record::Dispatch(again)).unwrap();
    state.apply(&Record::end(DispatchId(1), Fate::Requeued)).unwrap();
    assert_eq!(state.queued().next().unwrap().returns, 1, "only its age counts");
}
