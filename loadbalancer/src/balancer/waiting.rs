//! The waiting requests in the order in which they are served, and the servers of their groups.
//!
//! A group's server is the server of its last sample. If the policy keeps groups together, a server that gets room
//! prefers requests of its own groups ([`WaitingList::next_at`]): a prompt that several samples share takes space in a
//! KV cache once, and is computed once. In a fleet whose servers are all full, places get free one by one. Without this
//! preference, the samples of each group would be spread over all servers. The shorter the prompt, the fewer samples are
//! kept together ([`Ask::in_a_row`]): after as many, the group has no server until its next sample.
//!
//! # Invariants
//! - Each waiting request that prefers the server of its group is listed under exactly this server, or under none.
//! - The number of groups whose servers are noted is bounded ([`GROUPS_MAX`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use tokio::sync::oneshot;

use super::grant::Grant;
use crate::policy::Ask;
use crate::server::ServerId;
use crate::{BalancerError, Priority};

/// Number of requests, for each server of the fleet, that may be served before the first one because their groups run
/// on a server with room. It is the size of two usual groups: with less, groups are spread over more servers, and with
/// more, the order of groups is kept less.
const AHEAD_PER_SERVER: u64 = 32;
/// Maximum number of groups whose servers are noted. The oldest are forgotten first.
const GROUPS_MAX: usize = 1 << 16;

/// The answer to a waiting request: its places, or the reason why it gets no places.
pub(super) type Decision = Result<Grant, BalancerError>;

/// A request on the waiting list. Its task holds the receiver until the request has left the list.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) weight: u32,
    pub(super) tokens: u32,
    pub(super) group: Option<u64>,
    /// See [`Ask::in_a_row`]. The group's server should serve this request, if that does not take long. With 0 any server
    /// should.
    pub(super) in_a_row: u32,
    pub(super) exclude: Vec<ServerId>,
    pub(super) answer: oneshot::Sender<Decision>,
}

/// The server of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    /// Absent after the last sample of a row.
    server: Option<ServerId>,
    /// Number of samples that the server has got in a row.
    samples: u32,
}

/// The order in which requests are served: by priority, then in order of arrival.
pub(super) type WaiterKey = (Priority, u64);

/// The waiting requests, also by the servers of their groups. The [module](self) describes it.
#[derive(Debug, Default)]
pub(super) struct WaitingList {
    requests: BTreeMap<WaiterKey, Waiter>,
    next_number: u64,
    /// Whether the policy keeps groups together. If not, the fields below stay empty.
    keeps_groups: bool,
    homes: HashMap<u64, Home>,
    /// The groups of `homes`, the oldest first.
    order: VecDeque<u64>,
    /// The waiting requests of each group that prefer its server.
    of_groups: HashMap<u64, BTreeSet<WaiterKey>>,
    /// The requests of `of_groups` by server. A request is listed under the server that has its group, or under `None` if
    /// no server has its group.
    at_servers: BTreeMap<Option<ServerId>, BTreeSet<WaiterKey>>,
}

impl WaitingList {
    pub(super) fn new(keeps_groups: bool) -> Self {
        Self { keeps_groups, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn contains(&self, key: &WaiterKey) -> bool {
        self.requests.contains_key(key)
    }

    pub(super) fn get_mut(&mut self, key: &WaiterKey) -> Option<&mut Waiter> {
        self.requests.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&WaiterKey, &Waiter)> {
        self.requests.iter()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.requests.values_mut()
    }

    /// The first request, or the first request after `key`.
    pub(super) fn next(&self, key: Option<WaiterKey>) -> Option<WaiterKey> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.requests.range((from, Bound::Unbounded)).next().map(|(key, _)| *key)
    }

    /// Adds a request behind all requests of its priority.
    pub(super) fn push(&mut self, priority: Priority, waiter: Waiter) -> WaiterKey {
        let key = (priority, self.next_number);
        self.next_number += 1;
        if let Some(group) = self.kept_group(&waiter) {
            self.of_groups.entry(group).or_default().insert(key);
            self.at_servers.entry(self.server_of(Some(group))).or_default().insert(key);
        }
        self.requests.insert(key, waiter);
        key
    }

    pub(super) fn remove(&mut self, key: &WaiterKey) -> Option<Waiter> {
        let waiter = self.requests.remove(key)?;
        if let Some(group) = self.kept_group(&waiter) {
            let server = self.server_of(Some(group));
            remove_from(&mut self.at_servers, server, key);
            if let Some(keys) = self.of_groups.get_mut(&group) {
                keys.remove(key);
                if keys.is_empty() {
                    self.of_groups.remove(&group);
                }
            }
        }
        Some(waiter)
    }

    /// Removes all requests. The servers of groups stay known.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        self.of_groups.clear();
        self.at_servers.clear();
        std::mem::take(&mut self.requests).into_values()
    }

    /// The server of a group. `None` if it has none, or if the policy does not keep groups together.
    pub(super) fn server_of(&self, group: Option<u64>) -> Option<ServerId> {
        self.homes.get(&group?)?.server
    }

    /// Notes that the samples of a request go to a server.
    pub(super) fn settle(&mut self, ask: &Ask<'_>, server: ServerId) {
        let Some(group) = ask.group.filter(|_| self.keeps_groups) else { return };
        let known = self.homes.get(&group).copied();
        let before = known.unwrap_or_default();
        let earlier = if before.server == Some(server) { before.samples } else { 0 };
        let samples = earlier.saturating_add(ask.weight);
        let is_row_full = ask.in_a_row > 0 && samples >= ask.in_a_row;
        let home = if is_row_full { Home::default() } else { Home { server: Some(server), samples } };
        self.homes.insert(group, home);
        if before.server != home.server {
            self.relist(group, before.server, home.server);
        }
        if known.is_some() {
            return;
        }
        self.order.push_back(group);
        if self.order.len() > GROUPS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(Home { server: Some(server), .. }) = self.homes.remove(&oldest)
        {
            self.relist(oldest, Some(server), None);
        }
    }

    /// Forgets a server that has left the fleet.
    pub(super) fn forget(&mut self, server: ServerId) {
        self.homes.retain(|_, home| home.server != Some(server));
        let Self { homes, order, .. } = self;
        order.retain(|group| homes.contains_key(group));
        if let Some(keys) = self.at_servers.remove(&Some(server)) {
            self.at_servers.entry(None).or_default().extend(keys);
        }
    }

    /// The request that a server with room should serve: of the groups of this server, else of the groups that have no
    /// server. `None` if this request has a lower priority than the first request of all, or is too far behind it: for
    /// each of the `servers` of the fleet, by two rows of its group, and by [`AHEAD_PER_SERVER`] at most.
    pub(super) fn next_at(&self, server: ServerId, servers: usize) -> Option<WaiterKey> {
        let (priority, first) = self.next(None)?;
        let is_near = |key: &WaiterKey| {
            let row = self.requests.get(key).map_or(0, |waiter| u64::from(waiter.in_a_row));
            key.0 == priority && key.1 - first <= row.saturating_mul(2).min(AHEAD_PER_SERVER) * servers as u64
        };
        let firsts = [Some(server), None].into_iter().filter_map(|at| self.at_servers.get(&at)?.first());
        firsts.copied().find(is_near)
    }

    /// The group of a request that prefers the server of its group.
    fn kept_group(&self, waiter: &Waiter) -> Option<u64> {
        waiter.group.filter(|_| self.keeps_groups && waiter.in_a_row > 0)
    }

    /// Lists the waiting requests of a group under another server.
    fn relist(&mut self, group: u64, from: Option<ServerId>, to: Option<ServerId>) {
        let Some(keys) = self.of_groups.get(&group) else { return };
        for key in keys {
            remove_from(&mut self.at_servers, from, key);
        }
        self.at_servers.entry(to).or_default().extend(keys);
    }
}

fn remove_from(
    lists: &mut BTreeMap<Option<ServerId>, BTreeSet<WaiterKey>>,
    server: Option<ServerId>,
    key: &WaiterKey,
) {
    if let Some(keys) = lists.get_mut(&server) {
        keys.remove(key);
        if keys.is_empty() {
            lists.remove(&server);
        }
    }
}

#[cfg(test)]
mod tests;
