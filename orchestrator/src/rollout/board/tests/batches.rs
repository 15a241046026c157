//! When a generation batch is sent out, and when the next one is opened.

use rolldock_dispatch::history::Sampling;

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
