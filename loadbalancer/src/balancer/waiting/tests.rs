//! The lists by server are compared with a search of all requests, after random changes.

use proptest::prelude::*;

use super::*;

/// Number of samples in a row of groups 3 and 4. Group 5 has no preference, and all samples of the other groups should
/// go to one server.
const ROW: u32 = 3;

fn in_a_row(group: Option<u64>) -> u32 {
    match group {
        Some(3 | 4) => ROW,
        Some(5) => 0,
        _ => u32::MAX,
    }
}

fn waiter(group: Option<u64>) -> Waiter {
    let (answer, _) = oneshot::channel();
    Waiter { weight: 1, tokens: 0, group, in_a_row: in_a_row(group), exclude: Vec::new(), answer }
}

/// Notes that a sample of the group goes to the server.
fn settle(list: &mut WaitingList, group: u64, server: ServerId) {
    let in_a_row = in_a_row(Some(group));
    let ask = Ask { weight: 1, tokens: 0, group: Some(group), home: None, in_a_row, avoid: &[] };
    list.settle(&ask, server);
}

/// What [`WaitingList::next_at`] should return, by a search of all requests.
fn searched(list: &WaitingList, server: ServerId, servers: usize) -> Option<WaiterKey> {
    let ((priority, first), _) = list.iter().next()?;
    let at = |of: Option<ServerId>| {
        let mut own = list
            .iter()
            .filter(|(_, waiter)| list.kept_group(waiter).is_some() && list.server_of(waiter.group) == of);
        own.next().map(|(key, _)| *key)
    };
    let is_near = |key: &WaiterKey| {
        let ahead = match list.requests[key].group {
            Some(3 | 4) => 6,
            _ => 32,
        };
        key.0 == *priority && key.1 - first <= ahead * servers as u64
    };
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
                4 | 5 => settle(&mut list, group, server),
                6 | 7 if !list.is_empty() => {
                    let key = list.iter().nth(index.index(list.len())).map(|(key, _)| *key);
                    prop_assert!(key.is_some_and(|key| list.remove(&key).is_some()));
                }
                8 => list.forget(server),
                _ => {}
            }
            for server in (0..4).map(ServerId) {
                for servers in [0, 1, 4] {
                    prop_assert_eq!(list.next_at(server, servers), searched(&list, server, servers));
                }
            }
        }
        let waiting = list.len();
        prop_assert_eq!(list.clear().count(), waiting);
        prop_assert_eq!(list.next_at(ServerId(0), 4), None);
    }
}

#[test]
fn the_oldest_groups_are_forgotten_and_their_requests_have_no_server() {
    let mut list = WaitingList::new(true);
    let key = list.push(Priority::New, waiter(Some(0)));
    settle(&mut list, 0, ServerId(1));
    assert_eq!(list.next_at(ServerId(2), 9), None);
    (1..=GROUPS_MAX as u64).for_each(|group| settle(&mut list, group, ServerId(1)));
    assert_eq!((list.server_of(Some(0)), list.homes.len()), (None, GROUPS_MAX));
    assert_eq!(list.next_at(ServerId(2), 9), Some(key));
}

#[test]
fn a_policy_that_does_not_keep_groups_together_costs_no_memory_for_them() {
    let mut list = WaitingList::new(false);
    let key = list.push(Priority::New, waiter(Some(1)));
    settle(&mut list, 1, ServerId(0));
    assert_eq!((list.server_of(Some(1)), list.next_at(ServerId(0), 9)), (None, None));
    assert!(list.homes.is_empty() && list.at_servers.is_empty() && list.of_groups.is_empty());
    assert!(list.remove(&key).is_some());
}

#[test]
fn a_group_has_no_server_after_the_last_sample_of_a_row() {
    let mut list = WaitingList::new(true);
    let key = list.push(Priority::New, waiter(Some(3)));
    let first = ServerId(1);
    for _ in 1..ROW {
        settle(&mut list, 3, first);
        assert_eq!((list.server_of(Some(3)), list.next_at(ServerId(2), 9)), (Some(first), None));
    }
    settle(&mut list, 3, first);
    assert_eq!((list.server_of(Some(3)), list.next_at(ServerId(2), 9)), (None, Some(key)));
    // A sample that goes elsewhere begins a new row there.
    settle(&mut list, 3, first);
    settle(&mut list, 3, ServerId(2));
    settle(&mut list, 3, ServerId(2));
    assert_eq!(list.server_of(Some(3)), Some(ServerId(2)));
    settle(&mut list, 3, ServerId(2));
    assert_eq!((list.server_of(Some(3)), list.order.len()), (None, 1));
}
