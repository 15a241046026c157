#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use super::*;

/// Adds a lease of one row that expires `seconds` after `now`, and returns its number.
fn hold(leases: &mut Leases, now: Instant, seconds: u64) -> u64 {
    let id = leases.next_id();
    leases.hold(id, 0, vec![RowHandle { slot: 0, generation: 0 }], now + Duration::from_secs(seconds), 0);
    id
}

#[test]
fn leases_expire_in_order_and_renewal_postpones_the_expiry() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let (late, early) = (hold(&mut leases, now, 2), hold(&mut leases, now, 1));
    assert_eq!(leases.next_expiry(), Some((now + Duration::from_secs(1), early)));
    leases.renew(early, now + Duration::from_secs(3)).unwrap();
    assert_eq!(leases.next_expiry().map(|(_, id)| id), Some(late));
    assert_eq!(leases.check(), Ok(()));
    leases.end(late).unwrap();
    leases.end(early).unwrap();
    assert_eq!((leases.next_expiry(), leases.len(), leases.given()), (None, 0, 2));
    assert_eq!(leases.renew(late, now), Err(QueueError::LeaseGone { lease: late }));
    assert!(matches!(leases.end(late), Err(QueueError::LeaseGone { .. })));
    assert_eq!(leases.check(), Ok(()));
}

#[test]
fn the_last_members_ack_ends_the_lease_and_can_be_repeated() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let id = hold(&mut leases, now, 1);
    leases.get_mut(id).unwrap().members = 2;
    for _ in 0..2 {
        assert!(matches!(leases.ack(id, 0), Ok(BeginAck::Counted)), "the other member has not acked yet");
    }
    let Ok(BeginAck::Begun { task: 0, rows }) = leases.ack(id, 1) else {
        panic!("expected Begun for the last ack")
    };
    assert_eq!((rows.len(), leases.len()), (1, 0));
    assert!(matches!(leases.ack(id, 0), Ok(BeginAck::UnderWay)));
    assert_eq!(leases.check(), Ok(()));
    leases.remember_ack(id);
    assert!(matches!(leases.ack(id, 0), Ok(BeginAck::Done)));
    assert_eq!(leases.check(), Ok(()));
}

#[test]
fn an_ack_that_is_undone_leaves_no_lease() {
    let mut leases = Leases::default();
    let id = hold(&mut leases, Instant::now(), 1);
    assert!(matches!(leases.ack(id, 0), Ok(BeginAck::Begun { .. })));
    leases.undo_ack(id);
    assert!(matches!(leases.ack(id, 0), Err(QueueError::LeaseGone { .. })));
    assert_eq!(leases.check(), Ok(()));
}

#[test]
fn the_oldest_acks_are_forgotten() {
    let mut leases = Leases::default();
    for id in 0..=ACKS_MAX as u64 {
        leases.remember_ack(id);
        leases.remember_ack(id);
    }
    assert!(matches!(leases.ack(0, 0), Err(QueueError::LeaseGone { lease: 0 })));
    assert!(matches!(leases.ack(1, 0), Ok(BeginAck::Done)));
    assert_eq!(leases.remembered_acks().count(), ACKS_MAX);
    assert_eq!(leases.check(), Ok(()));
}

#[test]
fn the_end_of_a_recorded_lease_is_to_be_recorded_too() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let [recorded, shared, acked, other] = [(); 4].map(|()| hold(&mut leases, now, 1));
    leases.get_mut(shared).unwrap().members = 2;
    assert!(leases.record(recorded).is_some() && leases.record(acked).is_some());
    assert!(leases.record(shared).is_none(), "the acks of its members are only in memory");
    for id in [recorded, shared, other] {
        leases.end(id).unwrap();
    }
    assert!(matches!(leases.ack(acked, 0), Ok(BeginAck::Begun { .. })), "the ack itself is recorded");
    assert_eq!(leases.take_ends_to_record(), [recorded]);
    assert!(leases.take_ends_to_record().is_empty());
}
