use rolldock_dispatch::Inclusion;
use rolldock_dispatch::modes::StopUnlikely;

use super::*;

/// A board whose groups of 4 samples are stopped if a group with 2 alike samples is unlikely to become valid.
fn board(run_on: f64) -> Board {
    // Without evidence a group with 2 alike samples becomes valid with a probability of 1 - 5/6 x 7/8 = 0.27.
    let stop_unlikely = Some(StopUnlikely { below: 0.271, run_on });
    let config = config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch);
    Board::new(BoardConfig { stop_unlikely, gen_batch_size: 400, ..config })
}

/// Starts 400 groups, with 2 alike finished samples each. Returns those that are stopped and those that run on.
fn after_two_samples(board: &mut Board) -> [Vec<Dispatch>; 2] {
    board.begin_step(1, 200);
    let started = run_all(board, &mut 0);
    assert_eq!(started.len(), 400);
    let mut ends = [Vec::new(), Vec::new()];
    for dispatch in started {
        let mut hear =
            |count| board.finished(dispatch.id, dispatch.number, &graded(&dispatch, &vec![1.0; count]));
        assert!(!hear(1).stops_group, "one sample proves little");
        let runs_on = !hear(1).stops_group;
        ends[usize::from(runs_on)].push(dispatch);
    }
    ends
}

fn end_valid(board: &mut Board, dispatch: &Dispatch) {
    board.end(dispatch.id, dispatch.number, GroupEnd::Valid(group(dispatch, 0)));
}

#[test]
fn the_share_that_runs_on_has_the_inverse_weight() {
    let mut board = board(0.25);
    let [stopped, runs_on] = after_two_samples(&mut board);
    assert!((80..=120).contains(&runs_on.len()), "{} of 400", runs_on.len());
    for dispatch in &stopped {
        board.end(dispatch.id, dispatch.number, GroupEnd::Unlikely(GroupFigures::default()));
    }
    for dispatch in &runs_on {
        let heard = board.finished(dispatch.id, dispatch.number, &graded(dispatch, &[1.0]));
        assert!(!heard.stops_group, "a group is drawn once");
        end_valid(&mut board, dispatch);
    }
    let accepted: Vec<Option<f32>> = std::iter::from_fn(|| board.take_decided())
        .map(|decided| match decided {
            Decided::Group(group) => group.importance_weight(),
            Decided::StepEnd(_) => panic!("a single step"),
        })
        .collect();
    assert_eq!(accepted, vec![Some(4.0); runs_on.len()]);
    let filtered = &board.dispatches().run_totals().filtered_by_reason;
    assert_eq!(filtered["unlikely"], stopped.len() as u64);
}

#[test]
fn a_group_that_is_dispatched_again_keeps_its_draw() {
    let mut board = board(0.25);
    let [stopped, runs_on] = after_two_samples(&mut board);
    board.stop();
    let kept = &runs_on[0];
    for dispatch in stopped.iter().chain(&runs_on) {
        board.end(dispatch.id, dispatch.number, GroupEnd::Cancelled);
    }
    board.end_step().unwrap();
    board.begin_step(2, 200);
    for dispatch in run_all(&mut board, &mut 400) {
        let run_on = if runs_on.iter().any(|earlier| earlier.number == dispatch.number) { 0.25 } else { 1.0 };
        assert_eq!(dispatch.inclusion, Inclusion { chance: None, run_on });
        let heard = board.finished(dispatch.id, dispatch.number, &graded(&dispatch, &[0.0; 2]));
        if dispatch.number < 400 {
            assert_eq!(heard.stops_group, run_on == 1.0, "number={}", dispatch.number);
        }
    }
    assert_eq!(kept.inclusion, Inclusion::default(), "the worker's copy is older than the draw");
}

#[test]
fn groups_that_may_be_valid_and_complete_groups_are_not_stopped() {
    let mut board = board(0.01);
    board.begin_step(1, 200);
    let started = run_all(&mut board, &mut 0);
    let mut hear = |place: usize, accs: &[f32]| {
        let dispatch = &started[place];
        board.finished(dispatch.id, dispatch.number, &graded(dispatch, accs)).stops_group
    };
    for place in 0..100 {
        assert!(!hear(place, &[1.0, 0.0]), "proven valid");
        assert!(!hear(place, &[0.0]), "and remains so");
        assert!(!hear(100 + place, &[0.0; 4]), "complete");
    }
    let stopped = (200..300).filter(|place| hear(*place, &[0.0; 2])).count();
    assert!(stopped > 90, "{stopped} of 100");
}

#[test]
fn the_history_counts_the_finished_samples_of_a_stopped_group() {
    let mut board = board(0.25);
    board.config.history = Some(HistoryConfig::default());
    let [stopped, _] = after_two_samples(&mut board);
    let dispatch = &stopped[0];
    let figures = GroupFigures { samples: 2, tokens: 30, right: 2.0 };
    board.end(dispatch.id, dispatch.number, GroupEnd::Unlikely(figures));
    let history = board.dispatches().history();
    let record = history.prompt(dispatch.prompt.uid).unwrap();
    assert_eq!((history.prompts(), record.groups, record.valid), (1, 1, 0));
    assert_eq!((record.accuracy(), record.length()), (1.0, 15.0));
}

#[test]
fn without_the_rule_no_group_is_stopped() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    board.begin_step(1, 8);
    for dispatch in run_all(&mut board, &mut 0) {
        let heard = board.finished(dispatch.id, dispatch.number, &graded(&dispatch, &[0.0; 3]));
        assert!(!heard.stops_group);
    }
}
