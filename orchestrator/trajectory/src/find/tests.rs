use serde_json::{Value, json};

use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{Delivery, Emitted, HistoryPolicy, Origin, Request, Trajectory, TurnId};

const TEMPLATE: Letters = Letters(Habit::Plain);

fn call(id: &str, arguments: &str) -> Value {
    let function = json!({ "name": "add", "arguments": arguments });
    json!({ "role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [{ "id": id, "function": function }] })
}

fn request(messages: Vec<Value>) -> Request {
    Request::chat(messages, None).unwrap()
}

/// Two turns that answered the same request with the same call from different tokens.
fn twins() -> (Trajectory, [TurnId; 2]) {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let turns = ["call-1", "call-2"].map(|id| {
        let prompt = trajectory.prompt(&request(vec![says("user", "q")]), &TEMPLATE).unwrap();
        let emitted = Emitted { message: call(id, "{\"a\": 1, \"b\": 2}"), ids: vec![format!("of-{id}")] };
        trajectory.add(&prompt, sampled(&format!("{id}."), 1), &emitted).unwrap()
    });
    (trajectory, turns)
}

#[test]
fn equal_calls_of_different_tokens_find_their_own_turn_by_id() {
    let (trajectory, turns) = twins();
    for (id, turn) in ["call-1", "call-2"].into_iter().zip(turns) {
        let mut returned = call(id, "{\"b\":2,\"a\":1}");
        returned.as_object_mut().unwrap().remove("reasoning");
        let messages = vec![says("user", "q"), returned, says("tool", "3")];
        let found = trajectory.find(&request(messages));
        assert_eq!((found.turn, found.used), (Some(turn), 2));
        assert_eq!(trajectory.turn_of_minted(id), Some(turn));
        assert_eq!(trajectory.turn_of_minted(&format!("of-{id}")), Some(turn));
    }
    let [first, second] = trajectory.turns().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((second.base(), second.input_ids().len()), (Some((first.id(), first.prompt_tokens())), 0));
}

#[test]
fn an_edited_call_is_not_the_turns_own() {
    let (trajectory, _) = twins();
    let messages = vec![says("user", "q"), call("call-1", "{\"a\": 1, \"b\": 3}"), says("tool", "3")];
    assert_eq!(trajectory.find(&request(messages)).turn, None);
}

#[test]
fn of_equal_texts_the_newest_that_was_delivered_is_taken() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let mut turns = Vec::new();
    for delivery in [Delivery::Delivered, Delivery::Delivered, Delivery::Failed] {
        let prompt = trajectory.prompt(&request(vec![says("user", "q")]), &TEMPLATE).unwrap();
        let record = trajectory.record(&prompt, sampled("ab.", 1), &answer("ab."), delivery).unwrap();
        turns.push(record.turn());
        trajectory.apply(record).unwrap();
    }
    let messages = vec![says("user", "q"), says("assistant", " ab\n"), says("user", "r")];
    assert_eq!(trajectory.find(&request(messages)).turn, Some(turns[1]));
}

#[test]
fn the_tool_list_is_part_of_the_key() {
    let tools = |name: &str| Some(json!([{ "type": "function", "function": { "name": name } }]));
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let first = Request::chat(vec![says("user", "q")], tools("add")).unwrap();
    let prompt = trajectory.prompt(&first, &TEMPLATE).unwrap();
    let turn = trajectory.add(&prompt, sampled("ab.", 1), &answer("ab.")).unwrap();
    let messages = || vec![says("user", "q"), says("assistant", "ab"), says("user", "r")];
    let same = Request::chat(messages(), tools("add")).unwrap();
    assert_eq!(trajectory.find(&same).turn, Some(turn));
    let other = Request::chat(messages(), tools("sub")).unwrap();
    let found = trajectory.find(&other);
    assert_eq!((found.turn, found.tools_changed), (None, true));
    let prompt = trajectory.prompt(&other, &TEMPLATE).unwrap();
    assert_eq!((prompt.parent(), prompt.origin()), (None, Origin::ToolsChanged));
    let thinking = Request::chat(messages(), tools("add")).unwrap();
    let thinking = thinking.with_arguments(json!({ "enable_thinking": false }));
    assert_eq!(trajectory.find(&thinking).turn, None);
    let without = Request::chat(messages(), Some(json!([]))).unwrap();
    assert_eq!(without.tools(), None, "an empty list is no list");
}

#[test]
fn history_may_be_edited_behind_a_turn() {
    let (mut trajectory, [turn, _]) = twins();
    let mut messages = vec![says("user", "q"), call("call-1", "{\"a\":1,\"b\":2}"), says("tool", "3")];
    let prompt = trajectory.prompt(&request(messages.clone()), &TEMPLATE).unwrap();
    trajectory.add(&prompt, sampled("x.", 1), &answer("x.")).unwrap();
    messages[2] = says("tool", "4");
    messages.push(says("assistant", "x"));
    messages.push(says("user", "why"));
    let found = trajectory.find(&request(messages));
    assert_eq!((found.turn, found.used), (Some(turn), 2), "the answer belongs to another history");
}

#[test]
fn a_retry_is_found_by_its_body() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let body = b"body";
    let first = request(vec![says("user", "q")]).with_body(body);
    let mut newest = None;
    for _ in 0..2 {
        let prompt = trajectory.prompt(&first, &TEMPLATE).unwrap();
        newest = Some(trajectory.add(&prompt, sampled("ab.", 1), &answer("ab.")).unwrap());
    }
    assert_eq!(trajectory.retried(body), newest);
    assert_eq!(trajectory.retried(b"other"), None);
}
