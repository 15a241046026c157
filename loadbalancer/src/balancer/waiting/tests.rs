//! The lists by server are compared with a search of all requests, after random changes.

use proptest::prelude::*;

use super::*;

/// A request of a group that prefers the group's server, except of group 5.
fn waiter(group: Option<u64>) -> Waiter {
    let (answer, _) = oneshot::channel();
    let prefers_home = group != Some(5);
    Waiter { weight: 1, tokens: 0, group, prefers_home, exclude: Vec::new(), answer }
}

/// What [`WaitingList::next_at`] should return, by a search of all requests.
fn searched(list: &WaitingList, server: ServerId, ahead_max: u64) -> Option<WaiterKey> {
    let ((priority, first), _) = list.iter().next()?;
    let at = |of: Option<ServerId>| {
        let mut own = list
            .iter()
            .filter(|(_, waiter)| list.kept_group(waiter).is_some() && list.server_of(waiter.group) == of);
        own.next().map(|(key, _)| *key)
    };
    let is_near = |key: &WaiterKey| key.0 == *priority && key.1 - first <= ahead_max;
    at(Some(server)).filter(is_near).or_else(|| at(None).filter(is_near))
}

proptest! {
    #[test]
    fn the_lists_by_server_are_those_of_a_search(
        changes in prop::collection::vec((0..9_u8, 0..6_u64, 0..4_u32, any::<prop::sample::Index>()), 1..80),
    ) {
        let mut list = WaitingList::new(true);
        let priorities = [Priority::Started, Priority::New, Priority::Validation];
        for (change, group, server, index) in changes {
            let server = ServerId(server);
            match change {
                0..=3 => {
                    let group = (group > 0).then_some(group);
                    list.push(priorities[index.index(3)], waiter(group));
                }
                4 | 5 => list.settle(Some(group), server),
                6 | 7 if !list.is_empty() => {
                    let key = list.iter().nth(index.index(list.len())).map(|(key, _)| *key);
                    prop_assert!(key.is_some_and(|key| list.remove(&key).is_some()));
                }
                8 => list.forget(server),
                _ => {}
            }
            for server in (0..4).map(ServerId) {
                for ahead_max in [0, 3, u64::MAX] {
                    prop_assert_eq!(list.next_at(server, ahead_max), searched(&list, server, ahead_max));
                }
            }
        }
        let waiting = list.len();
        prop_assert_eq!(list.clear().count(), waiting);
        prop_assert_eq!(list.next_at(ServerId(0), u64::MAX), None);
    }
}

#[test]
fn the_oldest_groups_are_forgotten_and_their_requests_have_no_server() {
    let mut list = WaitingList::new(true);
    let key = list.push(Priority::New, waiter(Some(0)));
    list.settle(Some(0), ServerId(1));
    assert_eq!(list.next_at(ServerId(2), 9), None);
    (1..=GROUPS_MAX as u64).for_each(|group| list.settle(Some(group), ServerId(1)));
    assert_eq!((list.server_of(Some(0)), list.servers.len()), (None, GROUPS_MAX));
    assert_eq!(list.next_at(ServerId(2), 9), Some(key));
}

#[test]
fn a_policy_that_does_not_keep_groups_together_costs_no_memory_for_them() {
    let mut list = WaitingList::new(false);
    let key = list.push(Priority::New, waiter(Some(1)));
    list.settle(Some(1), ServerId(0));
    assert_eq!((list.server_of(Some(1)), list.next_at(ServerId(0), 9)), (None, None));
    assert!(list.servers.is_empty() && list.at_servers.is_empty() && list.of_groups.is_empty());
    assert!(list.remove(&key).is_some());
}
