//! Groups that a step cannot need: when they are known, when they are cut off, and what happens to their prompts.

use super::*;
use crate::rollout::OnStale;

/// A run in which each step is generated and claimed at a new version, as in `sync`.
const SYNC: Staleness = Staleness {
    max: 0,
    is_announced: true,
    on_stale: OnStale::Requeue,
    pacing: true,
    first_version: 0,
    steps_per_version: 1,
};

fn board_with(change: impl FnOnce(&mut BoardConfig)) -> Board {
    let mut config = config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch);
    config.staleness = SYNC;
    change(&mut config);
    Board::new(config)
}

/// Proves a running group valid.
fn prove(board: &mut Board, dispatch: &Dispatch) {
    board.finished(dispatch.id, dispatch.number, &graded(dispatch, &[1.0, 0.0]));
}

/// The first surplus number of a step that needs 2 groups, after the groups 1 and 3 were proven valid.
fn surplus_after_proofs(board: &mut Board, begin: impl FnOnce(&mut Board)) -> u64 {
    begin(board);
    let started = run_all(board, &mut 0);
    assert!(started.len() > 3);
    prove(board, &started[1]);
    assert_eq!(board.surplus_from(), u64::MAX, "one group is not enough");
    prove(board, &started[3]);
    board.surplus_from()
}

#[test]
fn groups_after_enough_certain_ones_are_surplus_and_are_sent_out_in_the_next_step() {
    let mut board = board_with(|_| {});
    let mut row = 0;
    board.begin_step(1, 2);
    let started = run_all(&mut board, &mut row);
    for certain in [1, 5] {
        prove(&mut board, &started[certain]);
    }
    assert_eq!(board.surplus_from(), 6);
    prove(&mut board, &started[3]);
    assert_eq!(board.surplus_from(), 4, "an earlier group is certain now");
    for surplus in &started[4..] {
        board.end(surplus.id, surplus.number, GroupEnd::Surplus);
    }
    assert!(run_all(&mut board, &mut row).is_empty(), "neither the surplus nor a new prompt");
    assert!(!board.is_finished(), "the step waits for the groups before them");
    for needed in [3, 0, 1, 2] {
        let end = match needed % 2 {
            0 => GroupEnd::Filtered("no_variance", GroupFigures::default()),
            _ => GroupEnd::Valid(group(&started[needed], 0)),
        };
        board.end(started[needed].id, started[needed].number, end);
    }
    assert_eq!(accepted(&mut board), [1, 3]);
    assert!(board.is_stopped());
    board.end_step().unwrap();
    let totals = board.dispatches().step_totals();
    assert_eq!((totals.requeued, totals.stale, totals.held), (4, 0, 0));

    board.set_policy_version(1);
    board.begin_step(2, 2);
    let again: Vec<u64> = run_all(&mut board, &mut row).iter().map(|dispatch| dispatch.number).collect();
    assert_eq!(again[..4], [4, 5, 6, 7], "with the same numbers, before new prompts");
}

#[test]
fn a_certain_group_that_fails_makes_later_groups_needed_again() {
    let mut board = board_with(|_| {});
    let mut row = 0;
    board.begin_step(1, 1);
    let started = run_all(&mut board, &mut row);
    prove(&mut board, &started[0]);
    assert_eq!(board.surplus_from(), 1);
    for surplus in &started[1..] {
        board.end(surplus.id, surplus.number, GroupEnd::Surplus);
    }
    board.end(started[0].id, 0, GroupEnd::Failed("its server died".into()));
    assert_eq!(board.surplus_from(), u64::MAX);
    let again = run_all(&mut board, &mut row);
    assert_eq!(again[..7].iter().map(|dispatch| dispatch.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn there_is_surplus_only_if_the_next_step_could_not_use_it() {
    let begin = |board: &mut Board| board.begin_step(1, 2);
    let surplus = |change: fn(&mut BoardConfig)| surplus_after_proofs(&mut board_with(change), begin);
    assert_eq!(surplus(|_| {}), 4);
    assert_eq!(surplus(|config| config.staleness.on_stale = OnStale::Drop), 4);
    let on_demand = |config: &mut BoardConfig| {
        (config.launch, config.launch_confidence) = (Launch::OnDemand, 0.999);
    };
    assert_eq!(surplus(on_demand), 4);
    const NONE: u64 = u64::MAX;
    assert_eq!(surplus(|config| config.staleness.max = 1), NONE, "one version behind is fresh enough");
    assert_eq!(surplus(|config| config.staleness.steps_per_version = 2), NONE, "the version is the same");
    assert_eq!(surplus(|config| config.staleness.is_announced = false), NONE, "the version never changes");
    assert_eq!(surplus(|config| config.staleness.on_stale = OnStale::DeliverFlagged), NONE);
    assert_eq!(surplus(|config| config.early_stop = EarlyStop::First), NONE, "the first ones are accepted");
    assert_eq!(surplus(|config| config.early_stop = EarlyStop::Off), NONE, "all groups are awaited");
    let discard = |config: &mut BoardConfig| config.on_stop = OnStop::Discard;
    assert_eq!(surplus(discard), NONE, "if a certain group failed, only short ones would be left");
    assert_eq!(surplus(|config| config.gates = schedules::with_length()), NONE, "the other gate may reject");
    let mut unpaced = board_with(|config| (config.staleness.max, config.staleness.pacing) = (1, false));
    let flow = surplus_after_proofs(&mut unpaced, |board| board.begin_flow(2, 9, 2));
    assert_eq!(flow, NONE, "their prompts would be sent out again immediately");
}

#[test]
fn a_step_that_is_one_version_behind_has_surplus_at_staleness_1() {
    // As in `one_step_off`: the second step begins while the trainer trains on the first one.
    let mut board = board_with(|config| config.staleness.max = 1);
    board.begin_step(1, 0);
    board.end_step().unwrap();
    assert_eq!(surplus_after_proofs(&mut board, |board| board.begin_step(2, 2)), 4);
}
