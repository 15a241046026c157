use rolldock_dispatch::{CarriedSample, FinishReason, PartialOutput, Stamp, VersionSpan};
use serde_json::json;

use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{
    Delivery, Emitted, ErrorClass, HistoryPolicy, Prompt, Request, Sampled, Template, Trajectory,
    TrajectoryError, TurnId,
};

const TEMPLATE: Letters = Letters(Habit::Plain);

fn first(trajectory: &Trajectory) -> Prompt {
    trajectory.prompt(&Request::chat(vec![says("user", "q")], None).unwrap(), &TEMPLATE).unwrap()
}

#[test]
fn a_turn_is_invisible_until_it_is_applied() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let prompt = first(&trajectory);
    let lost = trajectory.record(&prompt, sampled("ab.", 1), &answer("ab."), Delivery::Pending).unwrap();
    let prompt = first(&trajectory);
    let kept = trajectory.record(&prompt, sampled("ab.", 1), &answer("ab."), Delivery::Pending).unwrap();
    assert_eq!((lost.turn(), kept.turn()), (TurnId(0), TurnId(1)));
    assert_eq!(trajectory.turns().count(), 0);
    trajectory.apply(kept.clone()).unwrap();
    assert_eq!(trajectory.turn(TurnId(1)).unwrap().base(), None, "it builds on nothing that may be lost");
    assert_eq!(
        trajectory.path_ids(TurnId(1)).unwrap(),
        TEMPLATE.encode("U:q.A:").unwrap().into_iter().chain(sampled("ab.", 1).ids).collect::<Vec<_>>()
    );
    let rebuilt = Trajectory::rebuild("t", HistoryPolicy::Append, [kept]).unwrap();
    assert_eq!(rebuilt, trajectory);
}

#[test]
fn records_that_do_not_fit_are_refused_and_change_nothing() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let turn = trajectory.add(&first(&trajectory), sampled("ab.", 1), &answer("ab.")).unwrap();
    let prompt = trajectory.extend(turn, &[1]).unwrap();
    let next = trajectory.record(&prompt, sampled("x.", 1), &answer("x."), Delivery::Pending).unwrap();
    let mut empty = Trajectory::new("t", HistoryPolicy::Append);
    let error = empty.apply(next.clone()).unwrap_err();
    assert!(matches!(error, TrajectoryError::Misplaced { turn: TurnId(1), .. }), "{error}");
    assert_eq!(empty, Trajectory::new("t", HistoryPolicy::Append));
    trajectory.apply(next.clone()).unwrap();
    let error = trajectory.apply(next).unwrap_err();
    assert!(error.to_string().contains("expected a new number"), "{error}");
    for record in [
        Trajectory::record_reward(TurnId(7), 1.0),
        Trajectory::record_delivery(TurnId(7), Delivery::Delivered),
    ] {
        assert_eq!(trajectory.apply(record), Err(TrajectoryError::UnknownTurn { turn: TurnId(7) }));
    }
}

#[test]
fn parts_that_do_not_fit_together_are_no_turn() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let sound = sampled("ab", 1);
    let span = |start, end| VersionSpan { version: "1".into(), start, end };
    for (unsound, expected) in [
        (Sampled { ids: Vec::new(), ..sound.clone() }, "found none"),
        (Sampled { logprobs: vec![0.0], ..sound.clone() }, "found 1 log-probabilities for 2"),
        (Sampled { version_spans: vec![span(0, 1)], ..sound.clone() }, "cover 1 of 2"),
        (Sampled { version_spans: vec![span(1, 2)], ..sound.clone() }, "starts at 0"),
    ] {
        let prompt = first(&trajectory);
        let error = trajectory.record(&prompt, unsound, &answer("ab"), Delivery::Pending).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.class(), ErrorClass::Fault);
    }
    let user = Emitted { message: says("user", "x"), ids: Vec::new() };
    let prompt = first(&trajectory);
    assert!(trajectory.record(&prompt, sound, &user, Delivery::Pending).is_err());
    let error = Request::chat(vec![says("user", "q"), json!(3)], None).unwrap_err();
    assert!(error.to_string().starts_with("messages[1]: expected an object"), "{error}");
    assert_eq!(error.class(), ErrorClass::Client);
}

#[test]
fn a_sample_of_several_requests_is_one_turn() {
    let mut sample = CarriedSample::new(0, 0);
    let part = |ids: &[u32], finish_reason| PartialOutput {
        response_ids: ids.to_vec(),
        logprobs: vec![-1.0; ids.len()],
        version_spans: Vec::new(),
        finish_reason,
    };
    assert!(sample.extend(part(&[1, 2], None), Stamp { sent: 3, now: 3, newest: u64::MAX }));
    assert!(Sampled::try_from(sample.clone()).is_err(), "it was cut off");
    assert!(sample.extend(part(&[3], Some(FinishReason::Stop)), Stamp { sent: 4, now: 4, newest: u64::MAX }));
    let sampled = Sampled::try_from(sample).unwrap();
    assert_eq!((sampled.ids.as_slice(), sampled.versions_reported), (&[1, 2, 3][..], false));
    let versions: Vec<&str> = sampled.version_spans.iter().map(|span| &*span.version).collect();
    assert_eq!(versions, ["3", "4"]);
}

#[test]
fn a_conversation_is_told_with_what_was_emitted() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let emitted = Emitted {
        message: json!({ "role": "assistant", "content": "ab", "reasoning": "hm", "refusal": null }),
        ids: Vec::new(),
    };
    trajectory.add(&first(&trajectory), sampled("ab.", 1), &emitted).unwrap();
    let messages = vec![says("user", "q"), says("assistant", "ab"), says("user", "r")];
    let request = Request::chat(messages, None).unwrap();
    let prompt = trajectory.prompt(&request, &TEMPLATE).unwrap();
    let turn = trajectory.add(&prompt, sampled("x.", 1), &answer("x.")).unwrap();
    let told = json!({ "role": "assistant", "content": "ab", "reasoning": "hm" });
    let expected = [says("user", "q"), told, says("user", "r"), says("assistant", "x")];
    assert_eq!(trajectory.conversation(turn).unwrap(), expected);
}

#[test]
fn siblings_share_prompts_and_messages() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let text = "long ".repeat(200);
    let request = Request::chat(vec![says("user", &text)], None).unwrap();
    let mut grown = Vec::new();
    for _ in 0..4 {
        let before = trajectory.bytes();
        let prompt = trajectory.prompt(&request, &TEMPLATE).unwrap();
        trajectory.add(&prompt, sampled("ab.", 1), &answer("ab.")).unwrap();
        grown.push(trajectory.bytes() - before);
    }
    assert!(grown[0] > 2_000 && grown[1..].iter().all(|bytes| *bytes < 500), "{grown:?}");
}
