//! Unused user ids, one for each candidate that a privileged process runs.
//!
//! If a candidate has its own user, its limit of processes counts only its own processes. The candidate
//! cannot access the files of this process's user, and all of the candidate's processes can be recognised on
//! the host.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

/// The range on a host that maps all user ids; it lies above the ids that systems, people and containers use.
const WIDE: Range = Range { first: 1_879_048_192, count: 1 << 28 };
/// The range in a container that maps 65,536 user ids.
const NARROW: Range = Range { first: 62_000, count: 2048 };
/// The distance between the first user ids of two processes of this program whose process ids differ by 1.
const STRIDE: u32 = 1024;

#[derive(Debug, Clone, Copy)]
struct Range {
    first: u32,
    count: u32,
}

/// Gives out user ids. An id belongs to one candidate at a time. It is not reused soon, because the kernel
/// may still count zombies of its previous candidate.
#[derive(Debug, Clone)]
pub(super) struct Users(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    range: Range,
    next: u32,
    used: HashSet<u32>,
}

/// A user id. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct User {
    /// The id of the user and of its group.
    pub(super) id: u32,
    users: Users,
}

/// The ids that all sandboxes of this process share.
static USERS: LazyLock<Users> = LazyLock::new(|| {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Users::new(&map, std::process::id())
});

impl Users {
    /// The ids that this process may give out.
    pub(super) fn of_this_process() -> Self {
        USERS.clone()
    }

    /// `map` is the text of `/proc/self/uid_map`, `process` is this process's id.
    fn new(map: &str, process: u32) -> Self {
        let range = if is_mapped(map, WIDE) { WIDE } else { NARROW };
        let next = process.wrapping_mul(STRIDE) % range.count;
        Self(Arc::new(Mutex::new(State { range, next, used: HashSet::new() })))
    }

    /// Takes a user id; `None` when all are in use.
    pub(super) fn take(&self) -> Option<User> {
        let mut state = self.0.lock();
        let range = state.range;
        for _ in 0..=state.used.len() {
            let id = range.first + state.next;
            state.next = (state.next + 1) % range.count;
            if state.used.insert(id) {
                return Some(User { id, users: self.clone() });
            }
        }
        None
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.users.0.lock().used.remove(&self.id);
    }
}

/// Whether one line of the map contains the whole range.
fn is_mapped(map: &str, range: Range) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first, _, count] = numbers[..] else { return false };
        let end = u64::from(range.first) + u64::from(range.count);
        first <= u64::from(range.first) && end <= first.saturating_add(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_given_once_at_a_time() {
        let users = Users::new("0 0 65536", 7);
        let all: Vec<User> = (0..NARROW.count).map(|_| users.take().unwrap()).collect();
        let ids: HashSet<u32> = all.iter().map(|user| user.id).collect();
        assert_eq!(ids.len(), NARROW.count as usize);
        assert!(ids.iter().all(|id| (62_000..64_048).contains(id)));
        assert!(users.take().is_none());
        drop(all);
        assert!(users.take().is_some());
    }

    #[test]
    fn the_wide_range_of_users_is_used_if_it_exists() {
        assert_eq!(
            Users::new("         0          0 4294967295\n", 3).take().unwrap().id,
            WIDE.first + 3 * STRIDE
        );
        assert_eq!(Users::new("0 100000 65536\n", 1).take().unwrap().id, NARROW.first + STRIDE);
        assert_eq!(Users::new("", 0).take().unwrap().id, NARROW.first);
        assert_eq!(Users::new("what", 0).take().unwrap().id, NARROW.first);
    }
}
