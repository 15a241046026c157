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
    while places.have_room(groups.len(), || false) {
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
    assert!(!places.have_room(2, || false), "three places are too few");
    assert!(woken(&places).is_none());
    groups[1].ended(1);
    assert!(places.have_room(2, || false));
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
        assert!(places.have_room(running, || false));
        let group = places.take(SAMPLES);
        group.ended(3);
        groups.push(group);
    }
    assert_eq!(places.in_flight.load(Ordering::Acquire), 4, "there are places for a group's samples");
    assert!(!places.have_room(4, || false) && places.have_room(3, || false));
}

#[test]
fn no_further_group_starts_while_the_fleet_is_full() {
    let places = places(Fill::Samples, 2);
    let groups = filled(&places);
    groups[0].ended(4);
    assert!(woken(&places).is_some());
    assert!(places.have_room(1, || true) && !places.have_room(2, || true));
    assert!(woken(&places).is_none());
    groups[1].ended(1);
    assert!(woken(&places).is_some(), "the worker looks again when a sample has ended");
    assert!(places.have_room(2, || false));
    groups[1].ended(1);
    assert!(woken(&places).is_none(), "it does not wait for the fleet any more");
}

#[tokio::test(start_paused = true)]
async fn a_worker_looks_again_whether_the_fleet_is_full() {
    let places = places(Fill::Samples, 2);
    let groups = filled(&places);
    groups[0].ended(4);
    places.may_have_room().await;
    assert!(!places.have_room(2, || true));
    let before = tokio::time::Instant::now();
    places.may_have_room().await;
    assert_eq!(before.elapsed(), LOOK_AGAIN);
    assert!(places.have_room(2, || false));
    let waits = tokio::time::timeout(100 * LOOK_AGAIN, places.may_have_room()).await;
    assert!(waits.is_err(), "nothing is looked at while the fleet is not awaited");
}

#[test]
fn groups_are_counted_as_published() {
    let places = places(Fill::Groups, 2);
    let groups = filled(&places);
    assert_eq!(groups.len(), 2);
    groups[0].ended(4);
    assert!(!places.have_room(2, || false) && places.have_room(1, || false));
    assert!(woken(&places).is_none(), "a worker that counts groups is not woken for samples");
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
                0 if places.have_room(groups.len(), || false) => groups.push(places.take(samples)),
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
