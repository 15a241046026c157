use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{Delivery, HistoryPolicy, Request, Row, Sampled, Template, Trajectory, TurnId};

const TEMPLATE: Letters = Letters(Habit::Plain);

/// Adds a turn that answers the messages with a text.
fn turn(trajectory: &mut Trajectory, messages: &[(&str, &str)], text: &str, delivery: Delivery) -> TurnId {
    let messages = messages.iter().map(|(role, content)| says(role, content)).collect();
    let prompt = trajectory.prompt(&Request::chat(messages, None).unwrap(), &TEMPLATE).unwrap();
    let version = trajectory.turns().count() as u32;
    let record = trajectory.record(&prompt, sampled(text, version), &answer(text), delivery).unwrap();
    let turn = record.turn();
    trajectory.apply(record).unwrap();
    turn
}

fn text_of(row: &Row) -> (String, String, String) {
    let mask = row.response_mask.iter().map(|bit| bit.to_string()).collect();
    (TEMPLATE.decode(&row.prompt_ids), TEMPLATE.decode(&row.response_ids), mask)
}

#[test]
fn a_shared_prefix_is_trained_in_its_first_row_only() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let begun = [("user", "q")];
    turn(&mut trajectory, &begun, "ab.", Delivery::Delivered);
    for question in ["R", "S"] {
        let messages = [("user", "q"), ("assistant", "ab"), ("user", question)];
        turn(&mut trajectory, &messages, "xy.", Delivery::Delivered);
    }
    trajectory.apply(Trajectory::record_reward(TurnId(1), 0.5)).unwrap();
    let rows = trajectory.rows();
    let texts: Vec<_> = rows.iter().map(text_of).collect();
    let row = |response: &str, mask: &str| ("U:q.A:".to_owned(), response.to_owned(), mask.to_owned());
    assert_eq!(texts, [row("ab.U:R.A:xy.", "111000000111"), row("ab.U:S.A:xy.", "000000000111")]);
    assert_eq!(rows.iter().map(|row| row.branch).collect::<Vec<_>>(), [0, 1]);
    let turns = &rows[1].turns;
    assert_eq!((turns[0].turn, turns[0].is_trained, turns[0].reward), (TurnId(0), false, None));
    assert_eq!((turns[1].turn, turns[1].start, turns[1].end), (TurnId(2), 9, 12));
    assert_eq!(rows[0].turns[1].reward, Some(0.5));
    // Log-probabilities show the position within the turn, and versions show the number of the turn.
    assert_eq!(rows[1].logprobs, [0.0, -0.125, -0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.125, -0.25]);
    let spans: Vec<_> =
        rows[1].version_spans.iter().map(|span| (&*span.version, span.start, span.end)).collect();
    assert_eq!(spans, [("0", 0, 3), ("2", 9, 12)]);
}

#[test]
fn an_answer_that_nobody_had_trains_nothing() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let lost = turn(&mut trajectory, &[("user", "q")], "ab.", Delivery::Failed);
    assert!(trajectory.rows().is_empty());
    turn(&mut trajectory, &[("user", "q")], "cd.", Delivery::Delivered);
    assert_eq!(trajectory.rows().len(), 1);
    assert_eq!(trajectory.rows()[0].branch, 1);
    trajectory.apply(Trajectory::record_delivery(lost, Delivery::Replayed)).unwrap();
    assert_eq!(trajectory.rows().len(), 2);
}

#[test]
fn an_answer_that_is_continued_was_received() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    turn(&mut trajectory, &[("user", "q")], "ab.", Delivery::Pending);
    let messages = [("user", "q"), ("assistant", "ab"), ("user", "R")];
    turn(&mut trajectory, &messages, "xy.", Delivery::Pending);
    let rows = trajectory.rows();
    assert_eq!(text_of(&rows[0]).2, "111000000000", "the last answer is on its way");
}

#[test]
fn without_log_probabilities_a_row_has_none() {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let begun = turn(&mut trajectory, &[("user", "q")], "ab.", Delivery::Delivered);
    let prompt = trajectory.extend(begun, &[7]).unwrap();
    let text_only = Sampled { logprobs: Vec::new(), versions_reported: false, ..sampled("x.", 1) };
    trajectory.add(&prompt, text_only, &answer("x.")).unwrap();
    let rows = trajectory.rows();
    assert_eq!((rows[0].logprobs.len(), rows[0].versions_reported), (0, false));
}
