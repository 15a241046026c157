//! When a generation batch is sent out, and when the next one is opened.

use rolldock_dispatch::history::Sampling;
use rolldock_dispatch::modes::OnStale;

use super::*;

#[test]
fn generation_batches_have_an_end() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 3);
    for batch in 1..=4 {
        let started = run_all(&mut board, &mut row);
        assert_eq!(started.len(), 8);
        assert_eq!(board.counts().batches_opened, batch);
        for dispatch in &started {
            assert!(!board.is_finished());
            board.end(
                dispatch.id,
                dispatch.number,
                GroupEnd::Filtered("no_variance", GroupFigures::default()),
            );
        }
    }
    assert!(board.is_finished() && !board.is_stopped());
    board.end_step().unwrap();
}

#[test]
fn the_next_batch_waits_until_the_ones_before_have_certainly_fallen_short() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 3);
    let started = run_all(&mut board, &mut row);
    for dispatch in &started[..5] {
        board.end(dispatch.id, dispatch.number, GroupEnd::Filtered("no_variance", GroupFigures::default()));
    }
    assert_eq!(run_all(&mut board, &mut row).len(), 0, "three are under way and may all be valid");
    board.end(started[5].id, started[5].number, GroupEnd::Filtered("no_variance", GroupFigures::default()));
    assert_eq!(run_all(&mut board, &mut row).len(), 8);
}

/// The number of prompts that a step for one group starts at once, if all prompts are from this epoch.
fn started_of_epoch(visit: u32, sampling: Sampling, launch: Launch) -> usize {
    let history = Some(HistoryConfig { sampling, ..HistoryConfig::default() });
    let config = config(EarlyStop::Fifo, OnStop::Requeue, launch);
    let mut board = Board::new(BoardConfig { history, ..config });
    board.begin_step(1, 1);
    let wanted = board.draw_wanted();
    let drawn = |row| Drawn { prompt: Prompt { visit, ..prompt(row) }, drawn_to: None, counts: None };
    board.add_prompts(wanted, (0..wanted as u64).map(drawn).collect());
    std::iter::from_fn(|| matches!(board.next(), Next::Run(_)).then_some(())).count()
}

#[test]
fn a_batch_has_spare_prompts_only_if_they_are_not_chosen_by_their_history() {
    let needed = started_of_epoch(0, Sampling::All, Launch::OnDemand);
    assert!((2..8).contains(&needed), "{needed}");
    assert_eq!(started_of_epoch(1, Sampling::Difficulty, Launch::Batch), needed);
    assert_eq!(started_of_epoch(0, Sampling::Difficulty, Launch::Batch), 8, "no prompt has a history yet");
    assert_eq!(started_of_epoch(1, Sampling::All, Launch::Batch), 8, "no prompt is chosen");
}

/// Without pacing, generation may be so far ahead of the trainer that every group would be too old from its first token
/// on. Nothing is sent out then, and nothing is given up, until the trainer's next version.
#[test]
fn without_pacing_no_group_is_sent_out_that_is_too_old_already() {
    let mut config = config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch);
    config.staleness = Staleness { pacing: false, is_announced: true, max: 1, ..Staleness::default() };
    let mut board = Board::new(config);
    let mut next_row = 0;
    board.begin_flow(1, 9, 1);
    feed(&mut board, &mut next_row);
    // The groups of steps 1 and 2 are claimed at the versions 0 and 1, and the group of step 3 at 2.
    for _ in 0..2 {
        let Next::Run(dispatch) = board.next() else { panic!("expected a group") };
        let accepted = group(&dispatch, 0);
        board.end(dispatch.id, dispatch.number, GroupEnd::Valid(accepted));
        board.was_put();
    }
    assert_eq!(board.step(), 3);
    assert!(matches!(board.next(), Next::Wait));
    assert_eq!(board.hold(), Some(Hold::Trainer));
    assert_eq!(board.dispatches().run_totals().stale, 0);
    board.set_policy_version(1);
    assert!(matches!(board.next(), Next::Run(_)));

    // Groups that are delivered although they are too old are sent out at any time.
    let mut masks = self::config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch);
    masks.staleness = Staleness {
        pacing: false,
        is_announced: true,
        max: 0,
        on_stale: OnStale::MaskTokens,
        ..Staleness::default()
    };
    let mut board = Board::new(masks);
    board.begin_flow(5, 9, 1);
    feed(&mut board, &mut next_row);
    assert!(matches!(board.next(), Next::Run(_)));
}

/// Nothing may be sent out before the trainer's first version, but the flow finds out that its data has ended, and ends
/// with its last group instead of waiting in an empty step.
#[test]
fn a_flow_ends_with_its_data_and_not_with_the_version_after_it() {
    let mut config = config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch);
    config.staleness = Staleness { is_announced: true, max: 1, ..Staleness::default() };
    let mut board = Board::new(config);
    board.begin_flow(1, 9, 1);
    let drawn = (0..2).map(|row| Drawn { prompt: prompt(row), drawn_to: None, counts: None });
    board.add_prompts(2, drawn.collect());
    let running = [board.next(), board.next()];
    assert_eq!(board.hold(), Some(Hold::Trainer));
    let wanted = board.draw_wanted();
    assert!(wanted > 0);
    board.add_prompts(wanted, Vec::new());
    for next in running {
        let Next::Run(dispatch) = next else { panic!("expected a group") };
        let valid = group(&dispatch, 0);
        board.end(dispatch.id, dispatch.number, GroupEnd::Valid(valid));
    }
    assert!(board.is_stopped() && board.is_finished());
    assert_eq!((board.step(), board.counts().accepted), (2, 1));
}

/// Three groups run in a flow with steps of two. When the second and the third are valid, only the first keeps the step
/// from its end, and the flow could send out one more group before the trainer's next version.
#[test]
fn the_oldest_groups_of_a_flow_block_it_when_valid_groups_wait_behind_them() {
    let mut config = config(EarlyStop::Fifo, OnStop::Carry, Launch::Batch);
    config.staleness = Staleness { is_announced: true, max: 1, ..Staleness::default() };
    let mut board = Board::new(config);
    board.begin_flow(1, 9, 2);
    feed(&mut board, &mut 0);
    let mut run = || match board.next() {
        Next::Run(dispatch) => dispatch,
        next => panic!("expected a group, found {next:?}"),
    };
    let running = [run(), run(), run()];
    assert!(board.blocking().is_empty(), "no group has ended");
    for (dispatch, is_enough) in [(&running[1], false), (&running[2], true)] {
        let valid = group(dispatch, 0);
        board.end(dispatch.id, dispatch.number, GroupEnd::Valid(valid));
        let blocking: Vec<rolldock_dispatch::DispatchId> = board.blocking().into_iter().collect();
        assert_eq!(blocking, if is_enough { vec![running[0].id] } else { Vec::new() });
    }
    // With a further version, the flow can send out more than a whole step.
    board.set_policy_version(1);
    assert!(board.blocking().is_empty());
}
