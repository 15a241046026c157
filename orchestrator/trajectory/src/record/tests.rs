use proptest::prelude::*;

use crate::tests::letters::{Habit, Letters, answer, sampled, says};
use crate::{Delivery, ErrorClass, HistoryPolicy, Record, Request, Trajectory, TrajectoryError, TurnId};

fn turn() -> Record {
    let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
    let request = Request::chat(vec![says("user", "q")], None).unwrap().with_body(b"body");
    let prompt = trajectory.prompt(&request, &Letters(Habit::Plain)).unwrap();
    let record = trajectory.record(&prompt, sampled("abc.", 7), &answer("abc."), Delivery::Pending);
    record.unwrap()
}

#[test]
fn records_survive_their_bytes() {
    let records = [
        turn(),
        Trajectory::record_delivery(TurnId(3), Delivery::Replayed),
        Trajectory::record_reward(TurnId(4), -0.25),
    ];
    for record in records {
        assert_eq!(Record::decode(&record.encode()).unwrap(), record);
    }
}

#[test]
fn a_turn_is_little_more_than_its_ids() {
    let record = turn();
    let ids = "U:q.A:abc.".len() * 4 + "abc.".len() * 4;
    let texts = "{\"content\":\"q\",\"role\":\"user\"}\n{\"content\":\"abc\",\"role\":\"assistant\"}".len();
    let bytes = record.encode().len();
    assert!(bytes <= ids + texts + 128, "{bytes} bytes for {ids} bytes of ids and {texts} of text");
}

#[test]
fn every_cut_and_every_longer_record_is_refused() {
    let bytes = turn().encode();
    for end in 0..bytes.len() {
        let error = Record::decode(&bytes[..end]).unwrap_err();
        assert!(matches!(error, TrajectoryError::Damaged { .. }), "cut at {end}: {error}");
        assert_eq!(error.class(), ErrorClass::Fault);
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(Record::decode(&longer).is_err());
    assert!(Record::decode(&[9, 1]).unwrap_err().to_string().contains("format=9"));
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic_and_are_never_applied_wrongly(at in 0_usize..200, value: u8, any: Vec<u8>) {
        let _ = Record::decode(&any);
        let mut bytes = turn().encode();
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(record) = Record::decode(&bytes) {
            let mut trajectory = Trajectory::new("t", HistoryPolicy::Append);
            if trajectory.apply(record).is_ok() {
                let _ = trajectory.rows();
            }
        }
    }
}
