use futures::FutureExt;
use proptest::prelude::*;

use super::*;

const SAMPLES: usize = 4;

fn places(fill: Fill, groups: usize) -> Arc<Places> {
    Arc::new(Places::new(fill, groups, SAMPLES))
}

/// Whether the worker of these places is woken now.
fn woken(places: &Places) -> Option<()> {
    places.freed.notified().now_or_never()
}

/// Starts groups until there is no room, and returns them.
fn filled(places: &Arc<Places>) -> Vec<Taken> {
    let mut groups = Vec::new();
    while places.room(groups.len(), || false) == Room::Free {
        groups.push(places.take(SAMPLES));
    }
    groups
}

#[test]
fn a_group_starts_when_a_whole_group_of_samples_has_ended() {
    let places = places(Fill::Samples, 2);
    let groups = filled(&places);
    assert_eq!(groups.len(), 2);
    groups[0].ended(3);
    assert_eq!(places.room(2, || true), Room::NoPlaces, "three places are too few");
    assert!(woken(&places).is_none());
    groups[1].ended(1);
    assert_eq!(places.room(2, || false), Room::Free);
    assert!(woken(&places).is_some(), "the worker is woken");
    groups[1].ended(1);
    assert!(woken(&places).is_none(), "and only once");
}

#[test]
fn samples_are_counted_in_at_most_twice_as_many_groups() {
    let places = places(Fill::Samples, 2);
    let mut groups = filled(&places);
    groups.iter().for_each(|group| group.ended(3));
    for running in 2..4 {
        assert_eq!(places.room(running, || false), Room::Free);
        let group = places.take(SAMPLES);
        group.ended(3);
        groups.push(group);
    }
    assert_eq!(places.in_flight.load(Ordering::Acquire), 4, "there are places for a group's samples");
    assert_eq!([3, 4].map(|running| places.room(running, || false)), [Room::Free, Room::NoPlaces]);
}

#[test]
fn no_further_group_starts_while_the_fleet_is_full() {
    let places = places(Fill::Samples, 2);
    let groups = filled(&places);
    groups[0].ended(4);
    assert!(woken(&places).is_some());
    assert_eq!([1, 2].map(|running| places.room(running, || true)), [Room::Free, Room::FullFleet]);
    assert!(woken(&places).is_none());
    groups[1].ended(1);
    assert!(woken(&places).is_some(), "the worker looks again when a sample has ended");
    assert_eq!(places.room(2, || false), Room::Free);
    groups[1].ended(1);
    assert!(woken(&places).is_none(), "it does not wait for the fleet any more");
}

#[tokio::test(start_paused = true)]
async fn a_worker_looks_again_whether_the_fleet_is_full() {
    let places = places(Fill::Samples, 2);
    let groups = filled(&places);
    groups[0].ended(4);
    places.may_have_room().await;
    assert_eq!(places.room(2, || true), Room::FullFleet);
    let before = tokio::time::Instant::now();
    places.may_have_room().await;
    assert_eq!(before.elapsed(), LOOK_AGAIN);
    assert_eq!(places.room(2, || false), Room::Free);
    let waits = tokio::time::timeout(100 * LOOK_AGAIN, places.may_have_room()).await;
    assert!(waits.is_err(), "nothing is looked at while the fleet is not awaited");
}

#[test]
fn groups_are_counted_as_published() {
    let places = places(Fill::Groups, 2);
    let groups = filled(&places);
    assert_eq!(groups.len(), 2);
    groups[0].ended(4);
    assert_eq!([1, 2].map(|running| places.room(running, || false)), [Room::Free, Room::NoPlaces]);
    assert!(woken(&places).is_none(), "a worker that counts groups is not woken for samples");
}

#[test]
fn workers_that_may_start_no_group_are_counted() {
    let held = HeldWorkers::default();
    let counts = || (held.by_places(), held.by_fleet());
    let (mut one, mut other) = (Counted::new(&held), Counted::new(&held));
    assert!(one.note(Room::Free) && counts() == (0, 0));
    assert!(!one.note(Room::NoPlaces) && !other.note(Room::FullFleet) && counts() == (1, 1));
    assert!(!one.note(Room::FullFleet) && !one.note(Room::FullFleet) && counts() == (0, 2));
    drop(one);
    assert_eq!(counts(), (0, 1), "a worker that has ended is not counted");
    assert!(other.note(Room::Free) && counts() == (0, 0));
}

proptest! {
    /// Whatever order groups take and give back places in, no place is lost, and the limit holds.
    #[test]
    fn places_are_conserved(
        actions in proptest::collection::vec((0..3_u8, 0..8_usize, 1..=SAMPLES), 1..200),
        groups_max in 1..5_usize,
    ) {
        let places = places(Fill::Samples, groups_max);
        let mut groups: Vec<Taken> = Vec::new();
        for (action, which, samples) in actions {
            match action {
                0 if places.room(groups.len(), || false) == Room::Free => groups.push(places.take(samples)),
                1 if which < groups.len() => drop(groups.swap_remove(which)),
                2 if which < groups.len() && groups[which].left.load(Ordering::Acquire) > 0 => groups[which].ended(1),
                _ => {}
            }
            let left: usize = groups.iter().map(|group| group.left.load(Ordering::Acquire)).sum();
            prop_assert_eq!(places.in_flight.load(Ordering::Acquire), left);
            prop_assert!(left <= groups_max * SAMPLES && groups.len() <= GROUPS_MAX_FACTOR * groups_max);
        }
        drop(groups);
        prop_assert_eq!(places.in_flight.load(Ordering::Acquire), 0);
    }
}
