#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use smallvec::SmallVec;

use super::*;

fn row() -> Box<Row> {
    let (parts, progress) = (SmallVec::new(), SmallVec::new());
    Box::new(Row { group: 0, place: 0, length: 0, away: 0, label: None, parts, progress })
}

fn fill(slots: &mut Slots, rows: usize) -> Vec<RowHandle> {
    let handles: Vec<RowHandle> = (0..rows).map(|_| slots.reserve()).collect();
    handles.iter().for_each(|handle| slots.fill(*handle, row()));
    handles
}

#[test]
fn a_slot_whose_generations_are_used_up_is_not_used_again() {
    let mut slots = Slots { generation_floor: GENERATION_MAX - 1, ..Slots::default() };
    for round in 1..=12 {
        let rows = fill(&mut slots, 2);
        assert!(rows.iter().all(|row| row.generation < GENERATION_MAX));
        assert!(rows.iter().all(|row| slots.take(*row).is_some()));
        assert!(rows.iter().all(|row| slots.row(*row).is_none() && slots.take(*row).is_none()));
        assert_eq!(slots.check(0, 0), Ok(()), "round {round}");
    }
    assert!(slots.free.is_empty() && slots.slots.len() == 24);
}

#[test]
fn slots_are_used_again_in_turn_so_that_their_generations_grow_slowly() {
    let mut slots = Slots::default();
    for _ in 0..500 {
        fill(&mut slots, 1).iter().for_each(|row| drop(slots.take(*row)));
    }
    assert!(slots.slots.len() > SLOTS_AT_REST);
    let most = slots.slots.iter().map(|slot| slot.generation).max().unwrap();
    assert!(most as usize <= 500 / SLOTS_AT_REST + 1, "a slot was used {most} times");
}

#[test]
fn slots_that_are_given_back_come_again_with_handles_that_were_never_given_out() {
    let mut slots = Slots::default();
    let mut seen = HashSet::new();
    for _ in 0..6 {
        let rows = fill(&mut slots, 16);
        assert!(rows.iter().all(|row| seen.insert(*row)), "a handle came twice");
        let kept = rows[3];
        rows.iter().filter(|row| **row != kept).for_each(|row| drop(slots.take(*row)));
        slots.shrink(1);
        assert!(slots.slots.len() <= kept.slot as usize + 1 + 8, "slots={}", slots.slots.len());
        assert_eq!(slots.check(1, 0), Ok(()));
        assert!(slots.take(kept).is_some());
    }
}

#[test]
fn a_reserved_slot_is_not_a_row_and_is_reused_after_its_release() {
    let mut slots = Slots::default();
    let handle = slots.reserve();
    assert!(slots.is_reserved(handle) && slots.row(handle).is_none() && slots.take(handle).is_none());
    assert_eq!(slots.check(0, 1), Ok(()));
    assert!(slots.check(1, 0).is_err() && slots.check(0, 0).is_err());
    slots.release(handle);
    assert!(!slots.is_reserved(handle));
    assert_eq!(slots.check(0, 0), Ok(()));
}
