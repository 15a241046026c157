//! The decisions of a board, case by case. [`batches`] has those about generation batches, [`surplus`] has those about
//! groups that a step cannot need, [`restored`] has those after a restart, and [`schedules`] plays random schedules
//! against a board.

mod batches;
mod restored;
mod schedules;
mod surplus;
mod unlikely;

use std::time::Duration;

use rolldock_dispatch::{FinishReason, PromptUid, Spent};
use rolldock_reward::{GateConfig, GateRule, GatesConfig, GroupFilter, Rejection};

use crate::data::Prompt;

use super::*;
use crate::rollout::Sample;

fn prompt(row: u64) -> Prompt {
    Prompt {
        uid: PromptUid(row),
        row,
        visit: 0,
        ids: vec![1, 2, 3].into(),
        text: "1 + 1".into(),
        messages: [].into(),
        answer: "2".into(),
        source: "test".into(),
        difficulty: None,
        fields: Default::default(),
    }
}

fn group(dispatch: &Dispatch, version: u64) -> Box<Group> {
    let sample = Sample {
        index: 0,
        attempt: dispatch.first_attempt,
        response_ids: vec![1],
        logprobs: vec![-0.5],
        finish_reason: FinishReason::Stop,
        version_spans: Vec::new(),
        policy_version_min: version,
        policy_version_max: version,
        versions_reported: true,
        segments: 1,
        server: "s0".into(),
        score: 1.0,
        acc: 1.0,
        parts: Default::default(),
        overlong_penalty: 0.0,
        reward: 1.0,
        is_masked: false,
        prediction: None,
        advantage: 0.0,
        spent: Spent::default(),
        turn_advantages: None,
        trajectory: None,
    };
    Box::new(Group {
        dispatch: dispatch.id,
        number: dispatch.number,
        prompt: Arc::clone(&dispatch.prompt),
        samples: vec![sample],
        dispatched_at: Duration::ZERO,
        ended_at: Duration::ZERO,
        set_aside: None,
        step: 0,
        staleness: 0,
        is_stale: false,
        mask_before: 0,
        inclusion: dispatch.inclusion,
        is_weighted: false,
        returns: dispatch.returns,
    })
}

fn set_aside(dispatch: &Dispatch) -> Box<Group> {
    let rejection = Rejection { gate: "length".into(), reason: "too_short", value: 1.0, yields: true };
    Box::new(Group { set_aside: Some(rejection), ..*group(dispatch, 0) })
}

fn carried(dispatch: &Dispatch, version: u64) -> Box<CarriedGroup> {
    let graded = group(dispatch, version).samples;
    Box::new(CarriedGroup { graded, samples: Vec::new() })
}

fn config(early_stop: EarlyStop, on_stop: OnStop, launch: Launch) -> BoardConfig {
    BoardConfig {
        early_stop,
        on_stop,
        launch,
        launch_confidence: 0.9,
        samples_per_prompt: 4,
        gen_batch_size: 8,
        max_gen_batches: 4,
        staleness: Staleness::default(),
        ledger_entries_max: 16,
        gates: published(),
        audits: false,
        seed: 42,
        history: None,
        stop_unlikely: None,
    }
}

/// The published filter.
fn published() -> Arc<Gates> {
    Arc::new(Gates::new(&GatesConfig::from(GroupFilter::default())).unwrap())
}

/// Samples of a group with these accuracies.
fn graded(dispatch: &Dispatch, accs: &[f32]) -> Vec<Sample> {
    let sample = group(dispatch, 0).samples.remove(0);
    accs.iter().map(|acc| Sample { acc: *acc, reward: *acc, ..sample.clone() }).collect()
}

fn feed(board: &mut Board, next_row: &mut u64) {
    let wanted = board.draw_wanted();
    let drawn = |i: usize| Drawn { prompt: prompt(*next_row + i as u64), drawn_to: None, counts: None };
    let prompts = (0..wanted).map(drawn).collect();
    *next_row += wanted as u64;
    board.add_prompts(wanted, prompts);
}

fn run_all(board: &mut Board, next_row: &mut u64) -> Vec<Dispatch> {
    feed(board, next_row);
    let mut started = Vec::new();
    while let Next::Run(dispatch) = board.next() {
        started.push(dispatch);
        feed(board, next_row);
    }
    started
}

fn accepted(board: &mut Board) -> Vec<u64> {
    let decided = std::iter::from_fn(|| board.take_decided());
    decided
        .filter_map(|decided| match decided {
            Decided::Group(group) => Some(group.number),
            Decided::StepEnd(_) => None,
        })
        .collect()
}

#[test]
fn fifo_accepts_the_shortest_prefix_whatever_ends_first() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 2);
    feed(&mut board, &mut row);
    let started: Vec<Dispatch> = (0..5)
        .map(|_| match board.next() {
            Next::Run(dispatch) => dispatch,
            other => panic!("{other:?}"),
        })
        .collect();
    for late in [4, 3] {
        board.end(started[late].id, started[late].number, GroupEnd::Valid(group(&started[late], 0)));
    }
    assert!(!board.is_stopped(), "two valid groups, but nothing before them has ended");
    board.end(started[0].id, 0, GroupEnd::Filtered("no_variance", GroupFigures::default()));
    board.end(started[1].id, 1, GroupEnd::Valid(group(&started[1], 0)));
    assert_eq!(accepted(&mut board), [1]);
    board.end(started[2].id, 2, GroupEnd::Failed("lost".into()));
    assert_eq!(accepted(&mut board), [3], "the prefix 0..=3 holds two valid groups");
    assert!(board.is_stopped() && board.is_finished());
    board.end_step().unwrap();
    assert_eq!(board.dispatches().step_totals().held, 1);
    board.begin_step(2, 1);
    assert_eq!(accepted(&mut board), [4], "the held group is first in the next step");
}

#[test]
fn a_held_group_waits_for_requeued_ones_before_it() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 1);
    let started = run_all(&mut board, &mut row);
    board.end(started[2].id, 2, GroupEnd::Valid(group(&started[2], 0)));
    board.end(started[0].id, 0, GroupEnd::Valid(group(&started[0], 0)));
    assert!(board.is_stopped());
    for cut in started.iter().filter(|dispatch| ![0, 2].contains(&dispatch.number)) {
        board.end(cut.id, cut.number, GroupEnd::Cancelled);
    }
    board.end_step().unwrap();
    assert_eq!(accepted(&mut board), [0]);

    board.begin_step(2, 2);
    assert_eq!(accepted(&mut board), [] as [u64; 0]);
    let Next::Run(again) = board.next() else { panic!("number 1 is queued") };
    assert_eq!((again.number, again.first_attempt), (1, 0), "same number, same draw");
    board.end(again.id, 1, GroupEnd::Valid(group(&again, 0)));
    assert_eq!(accepted(&mut board), [1, 2]);
    board.stop();
    board.end_step().unwrap();
}

#[test]
fn a_held_group_beyond_the_staleness_bound_is_generated_again() {
    let mut board = Board::new(config(EarlyStop::First, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 1);
    let started = run_all(&mut board, &mut row);
    board.end(started[0].id, 0, GroupEnd::Valid(group(&started[0], 0)));
    board.end(started[1].id, 1, GroupEnd::Valid(group(&started[1], 0)));
    for cut in &started[2..] {
        board.end(cut.id, cut.number, GroupEnd::Cancelled);
    }
    board.end_step().unwrap();
    board.set_policy_version(2);
    board.begin_step(2, 1);
    assert_eq!(board.dispatches().step_totals().stale, 1);
    let Next::Run(again) = board.next() else { panic!("it is queued") };
    assert_eq!((again.number, again.first_attempt), (1, 0), "the same draw, with newer weights");
}

#[test]
fn a_step_on_policy_generates_every_held_group_again_and_loses_none() {
    let staleness = Staleness { max: 0, is_announced: true, ..Staleness::default() };
    let config = BoardConfig { staleness, ..config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch) };
    let mut board = Board::new(config);
    let (mut row, mut handed) = (0, Vec::new());
    // There are more steps than `RETURNS_MAX`. That limit does not count groups that became too old while they
    // were held.
    for step in 1..=8 {
        let version = step - 1;
        board.set_policy_version(version);
        board.begin_step(step, 1);
        assert_eq!(board.dispatches().step_totals().stale, 7 * version, "all that is held is too old");
        let started = run_all(&mut board, &mut row);
        let numbers: Vec<u64> = started.iter().map(|dispatch| dispatch.number).collect();
        assert_eq!(numbers, (version..8 * step).collect::<Vec<_>>(), "under their numbers, in their order");
        assert!(
            started.iter().all(|dispatch| dispatch.policy_version == version && dispatch.carried.is_none())
        );
        for dispatch in started.iter().rev() {
            board.end(dispatch.id, dispatch.number, GroupEnd::Valid(group(dispatch, version)));
        }
        handed.extend(accepted(&mut board));
        board.end_step().unwrap();
        assert_eq!(board.dispatches().step_totals().held, 7 * step);
    }
    assert_eq!(handed, (0..8).collect::<Vec<_>>(), "the order of the data");
}

#[test]
fn off_awaits_everything_and_hands_on_exactly_the_target() {
    let mut board = Board::new(config(EarlyStop::Off, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 3);
    let started = run_all(&mut board, &mut row);
    assert_eq!(started.len(), 8, "one generation batch");
    for dispatch in started.iter().rev() {
        assert!(!board.is_finished());
        board.end(dispatch.id, dispatch.number, GroupEnd::Valid(group(dispatch, 0)));
    }
    assert_eq!(accepted(&mut board), [0, 1, 2]);
    assert!(board.is_finished());
    board.end_step().unwrap();
    assert_eq!(board.dispatches().step_totals().held, 5);
}

#[test]
fn on_demand_sends_out_what_the_accept_rate_asks_for() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand));
    let mut row = 0;
    board.begin_step(1, 4);
    let started = run_all(&mut board, &mut row);
    assert!((8..=32).contains(&started.len()), "4 groups at an unknown rate: {}", started.len());
    for dispatch in &started {
        board.end(dispatch.id, dispatch.number, GroupEnd::Filtered("no_variance", GroupFigures::default()));
    }
    assert!(!run_all(&mut board, &mut row).is_empty(), "none was valid: more are needed");
}

#[test]
fn on_demand_launches_nothing_beyond_what_is_proven_and_more_for_what_is_useless() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand));
    let mut row = 0;
    board.begin_step(1, 4);
    let started = run_all(&mut board, &mut row);
    let launched = started.len();
    for dispatch in &started[..4] {
        let heard = board.finished(dispatch.id, dispatch.number, &graded(dispatch, &[1.0, 0.0]));
        assert_eq!(heard, Heard::default());
    }
    // The target is certain to be reached, so no result of the other groups makes new prompts necessary.
    for dispatch in &started[4..] {
        let heard = board.finished(dispatch.id, dispatch.number, &graded(dispatch, &[1.0; 4]));
        assert_eq!(heard, Heard::default());
    }
    assert!(run_all(&mut board, &mut row).is_empty());

    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand));
    board.begin_step(1, 4);
    let started = run_all(&mut board, &mut row);
    assert_eq!(started.len(), launched);
    let woken: Vec<bool> = started
        .iter()
        .map(|dispatch| board.finished(dispatch.id, dispatch.number, &graded(dispatch, &[1.0; 4])).needs_more)
        .collect();
    assert_eq!(woken.iter().filter(|woken| **woken).count(), 1, "workers are woken once: {woken:?}");
    assert!(run_all(&mut board, &mut row).len() >= 4, "before the first group has ended");
}

#[test]
fn a_higher_confidence_launches_more() {
    let launched = [0.5, 0.9, 0.99].map(|launch_confidence| {
        let config = config(EarlyStop::Fifo, OnStop::Requeue, Launch::OnDemand);
        let mut board = Board::new(BoardConfig { launch_confidence, ..config });
        board.begin_step(1, 6);
        run_all(&mut board, &mut 0).len()
    });
    assert!(launched.is_sorted() && launched[0] < launched[2], "{launched:?}");
}

#[test]
fn carried_samples_prove_what_they_proved_before() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Carry, Launch::OnDemand));
    let mut row = 0;
    board.begin_step(1, 1);
    let started = run_all(&mut board, &mut row);
    let (first, rest) = started.split_first().unwrap();
    board.end(first.id, 0, GroupEnd::Valid(group(first, 0)));
    for dispatch in rest {
        let kept = CarriedGroup { graded: graded(dispatch, &[1.0, 0.0]), samples: Vec::new() };
        board.end(dispatch.id, dispatch.number, GroupEnd::Carried(Box::new(kept)));
    }
    board.end_step().unwrap();
    board.begin_step(2, rest.len());
    let again = run_all(&mut board, &mut row);
    assert_eq!(again.len(), rest.len(), "all of them are proven, so no new prompt is needed");
    assert_eq!(board.outlook.counts(), (rest.len(), 0, 0));
}

#[test]
fn what_was_set_aside_fills_a_step_that_would_be_short_and_no_other() {
    for valid in [0_usize, 2, 3] {
        let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
        let mut row = 0;
        board.begin_step(1, 3);
        let mut ended = 0;
        loop {
            let started = run_all(&mut board, &mut row);
            for dispatch in &started {
                let end = match dispatch.number {
                    number if (number as usize) >= 32 - valid => GroupEnd::Valid(group(dispatch, 0)),
                    number if number % 2 == 0 => GroupEnd::SetAside(set_aside(dispatch)),
                    _ => GroupEnd::Filtered("no_variance", GroupFigures::default()),
                };
                board.end(dispatch.id, dispatch.number, end);
                ended += 1;
            }
            if started.is_empty() {
                break;
            }
        }
        assert_eq!(ended, 32, "every batch that is allowed");
        board.finish();
        let kept: Vec<u64> = [0, 2, 4].into_iter().take(3 - valid).collect();
        let first: Vec<u64> = (32 - valid as u64..32).collect();
        assert_eq!(accepted(&mut board), [first, kept].concat());
        board.end_step().unwrap();
        let totals = board.dispatches().step_totals();
        assert_eq!((totals.accepted, totals.filtered, totals.in_flight), (3, 29, 0));
    }
}

#[test]
fn a_second_end_changes_nothing() {
    let mut board = Board::new(config(EarlyStop::First, OnStop::Discard, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 2);
    let started = run_all(&mut board, &mut row);
    let first = &started[0];
    board.end(first.id, 0, GroupEnd::Valid(group(first, 0)));
    board.end(first.id, 0, GroupEnd::Cancelled);
    board.end(first.id, 0, GroupEnd::Valid(group(first, 0)));
    assert_eq!(accepted(&mut board), [0]);
    assert_eq!(board.dispatches().step_totals().cancelled, 0);
}

#[test]
fn nothing_is_sent_out_while_a_reward_is_out_but_groups_end() {
    let mut board = Board::new(config(EarlyStop::Fifo, OnStop::Requeue, Launch::Batch));
    let mut row = 0;
    board.begin_step(1, 2);
    feed(&mut board, &mut row);
    let [first, second, third] = [(); 3].map(|()| match board.next() {
        Next::Run(dispatch) => dispatch,
        next => panic!("{next:?}"),
    });
    board.end(third.id, third.number, GroupEnd::GivenUp);
    board.set_reward_is_out(true);
    assert_eq!(board.counts().hold, Some(Hold::Reward));
    assert!(matches!(board.next(), Next::Wait), "neither the prompt that waits nor a new one");
    assert_eq!(board.draw_wanted(), 0);
    assert!(!board.is_finished());
    board.end(second.id, second.number, GroupEnd::Valid(group(&second, 0)));
    assert!(accepted(&mut board).is_empty());
    board.set_reward_is_out(false);
    let Next::Run(again) = board.next() else { panic!("the prompt that waits goes first") };
    assert_eq!(again.number, third.number);
    board.set_reward_is_out(true);
    board.end(first.id, first.number, GroupEnd::Valid(group(&first, 0)));
    assert_eq!(accepted(&mut board), [0, 1]);
    assert!(board.is_stopped(), "a step also stops early while a reward is out");
    assert!(matches!(board.next(), Next::Done));
    board.end(again.id, again.number, GroupEnd::Cancelled);
    board.end_step().unwrap();
}
