use serde_json::{Value, json};

use crate::invariants::spliced;
use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{Emitted, HistoryPolicy, Origin, Plan, Prompt, Request, Template, Trajectory, TurnId};

fn chat(messages: &[Value]) -> Request {
    Request::chat(messages.to_vec(), None).unwrap()
}

/// A trajectory whose only turn answered "q" with the sampled text.
fn answered(policy: HistoryPolicy, template: &Letters, text: &str) -> (Trajectory, TurnId) {
    let mut trajectory = Trajectory::new("t", policy);
    let prompt = trajectory.prompt(&chat(&[says("user", "q")]), template).unwrap();
    assert_eq!(prompt.origin(), Origin::Started);
    let turn = trajectory.add(&prompt, sampled(text, 1), &answer(text)).unwrap();
    (trajectory, turn)
}

/// The prompt for a request with the answer `returned` and a next message of this role.
fn next(trajectory: &Trajectory, template: &Letters, returned: &str, role: &str) -> Prompt {
    let messages = [says("user", "q"), says("assistant", returned), says(role, "next")];
    trajectory.prompt(&chat(&messages), template).unwrap()
}

#[test]
fn sampled_ids_stay_and_only_what_follows_is_encoded() {
    let template = Letters(Habit::Plain);
    let (trajectory, turn) = answered(HistoryPolicy::Append, &template, "abcd.");
    let prompt = next(&trajectory, &template, "abcd", "user");
    assert_eq!((prompt.parent(), prompt.origin()), (Some(turn), Origin::Spliced));
    assert_eq!(template.decode(prompt.ids()), "U:q.A:abcd.U:next.A:");
    assert_eq!(spliced(&trajectory, &prompt), Ok(()));
    let reencoded = Trajectory::render_whole(
        &chat(&[says("user", "q"), says("assistant", "abcd"), says("user", "next")]),
        &template,
    );
    let reencoded = Prompt { ids: reencoded.unwrap(), ..prompt };
    assert!(spliced(&trajectory, &reencoded).is_err(), "single letters became pairs");
}

#[test]
fn an_end_that_was_cut_off_is_added() {
    let template = Letters(Habit::Plain);
    let (mut trajectory, _) = answered(HistoryPolicy::Append, &template, "abcd");
    let prompt = next(&trajectory, &template, "abcd", "user");
    assert_eq!(template.decode(prompt.ids()), "U:q.A:abcd.U:next.A:");
    trajectory.add(&prompt, sampled("x.", 1), &answer("x.")).unwrap();
    let rows = trajectory.rows();
    assert_eq!(template.decode(&rows[0].response_ids), "abcd.U:next.A:x.");
    assert_eq!(rows[0].response_mask[..5], [1, 1, 1, 1, 0], "the added end is masked");
}

#[test]
fn append_keeps_thoughts_that_the_template_drops() {
    let template = Letters(Habit::DropsThoughts);
    let (trajectory, _) = answered(HistoryPolicy::Append, &template, "(th)ab.");
    let prompt = next(&trajectory, &template, "(th)ab", "user");
    assert_eq!(prompt.origin(), Origin::Spliced);
    assert_eq!(template.decode(prompt.ids()), "U:q.A:(th)ab.U:next.A:");
}

#[test]
fn template_forks_where_the_template_drops_thoughts() {
    let template = Letters(Habit::DropsThoughts);
    let (mut trajectory, turn) = answered(HistoryPolicy::Template, &template, "(th)ab.");
    let kept = next(&trajectory, &template, "(th)ab", "tool");
    assert_eq!(kept.origin(), Origin::Spliced, "a tool's result drops nothing");
    assert_eq!(template.decode(kept.ids()), "U:q.A:(th)ab.T:next.A:");
    let prompt = next(&trajectory, &template, "(th)ab", "user");
    assert_eq!((prompt.parent(), prompt.origin()), (Some(turn), Origin::Dropped));
    assert_eq!(template.decode(prompt.ids()), "U:q.A:ab.U:next.A:");
    trajectory.add(&prompt, sampled("xy.", 2), &answer("xy.")).unwrap();
    assert_eq!(trajectory.count(Origin::Dropped), 1);
    let rows = trajectory.rows();
    let trained: Vec<u32> =
        rows.iter().map(|row| row.response_mask.iter().map(|bit| u32::from(*bit)).sum()).collect();
    assert_eq!(trained, [7, 3], "both paths train what was sampled on them");
    assert_eq!(template.decode(&rows[1].prompt_ids), "U:q.A:ab.U:next.A:");
}

#[test]
fn a_template_that_hides_or_moves_the_sentinel_forks() {
    for (habit, role) in [(Habit::Cuts, "user"), (Habit::Hoists, "system"), (Habit::WantsCalls, "tool")] {
        let template = Letters(habit);
        let (trajectory, turn) = answered(HistoryPolicy::Append, &template, "abcdef.");
        let call = json!({ "id": "c", "function": { "name": "f", "arguments": "{}" } });
        let emitted = json!({ "role": "assistant", "content": "abcdef", "tool_calls": [call] });
        let returned = if role == "tool" { emitted } else { says("assistant", "abcdef") };
        let messages = [says("user", "q"), returned, says(role, "next")];
        let mut trajectory = trajectory;
        if role == "tool" {
            let prompt = trajectory.prompt(&chat(&[says("user", "q")]), &template).unwrap();
            let emitted = Emitted { message: messages[1].clone(), ids: Vec::new() };
            trajectory.add(&prompt, sampled("abcdef[f].", 1), &emitted).unwrap();
        }
        let plan = trajectory.plan(&chat(&messages), &template).unwrap();
        let Plan::Whole(whole) = plan else { panic!("{habit:?}: {plan:?}") };
        assert_eq!(whole.origin(), Origin::SentinelLost, "{habit:?}");
        let ids = Trajectory::render_whole(&chat(&messages), &template).unwrap();
        let prompt = whole.with_ids(ids);
        assert!(prompt.parent() >= Some(turn));
        trajectory.add(&prompt, sampled("x.", 1), &answer("x.")).unwrap();
        assert_eq!(trajectory.count(Origin::SentinelLost), 1);
    }
}

#[test]
fn a_text_prompt_continues_by_its_text_and_an_id_prompt_by_its_ids() {
    let template = Letters(Habit::Plain);
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let first = trajectory.prompt(&Request::text("say "), &template).unwrap();
    let turn = trajectory.add(&first, sampled("abcd", 1), &Emitted::text("abcd")).unwrap();
    let second = trajectory.prompt(&Request::text("say abcd, and"), &template).unwrap();
    assert_eq!((second.parent(), second.origin()), (Some(turn), Origin::Spliced));
    assert_eq!(spliced(&trajectory, &second), Ok(()));
    assert_eq!(template.decode(second.ids()), "say abcd, and");
    let edited = trajectory.prompt(&Request::text("say abce, and"), &template).unwrap();
    assert_eq!(edited.origin(), Origin::Started);

    let first = trajectory.prompt(&Request::ids(vec![7, 8]), &template).unwrap();
    let turn = trajectory.add(&first, sampled("ab", 1), &Emitted::text("ab")).unwrap();
    let mut ids = trajectory.path_ids(turn).unwrap();
    ids.push(9);
    let second = trajectory.prompt(&Request::ids(ids.clone()), &template).unwrap();
    assert_eq!((second.parent(), second.ids()), (Some(turn), ids.as_slice()));
}

#[test]
fn given_ids_extend_a_path() {
    let template = Letters(Habit::Plain);
    let (mut trajectory, turn) = answered(HistoryPolicy::Append, &template, "ab.");
    let prompt = trajectory.extend(turn, &[1, 2]).unwrap();
    let next = trajectory.add(&prompt, sampled("x", 1), &answer("x")).unwrap();
    let stored = trajectory.turn(next).unwrap();
    assert_eq!(
        (stored.base(), stored.input_ids()),
        (Some((turn, prompt.ids().len() as u32 - 2)), &[1, 2][..])
    );
    assert!(trajectory.extend(TurnId(9), &[]).is_err());
}
