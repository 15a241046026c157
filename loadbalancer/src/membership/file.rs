//! Adds the servers that a file lists to the fleet, and removes those that the file no longer lists.
//!
//! A server that does not answer while it joins delays neither other servers nor the next reading of the
//! file. The file removes no server that was added by a call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Membership, MembershipError, NewMember, base_of};
use crate::server::{AdminState, ServerId};
use crate::snapshot::ServerSnapshot;

/// Time between two readings of the file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of servers that join concurrently.
const JOINS_MAX: usize = 16;

/// The file's content.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    endpoints: Vec<String>,
}

/// A server's address in canonical form, so that `http://a:1` and `http://a:1/` are equal.
type Address = String;

/// The URLs of the file by address.
type Endpoints = BTreeMap<Address, String>;

type Joined = Result<ServerId, MembershipError>;

fn address_of(url: &str) -> Address {
    // An invalid URL is refused later, when its server should join.
    base_of(url).unwrap_or_else(|_| url.to_owned())
}

fn endpoints_of(text: &str) -> Result<Endpoints, String> {
    let file: FleetFile = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(file.endpoints.into_iter().map(|url| (address_of(&url), url)).collect())
}

/// The contents of the file so far, and the servers that are joining because of them.
#[derive(Default)]
struct Followed {
    last: Option<Result<Endpoints, String>>,
    /// The endpoints of the last successful reading.
    endpoints: Endpoints,
    /// Addresses that the file listed earlier and no longer lists.
    delisted: BTreeSet<Address>,
    /// Addresses that are joining.
    joining: BTreeSet<Address>,
    /// Addresses whose failure to join has been logged.
    refused: BTreeSet<Address>,
}

pub(super) async fn follow(members: &Membership, path: &Path, end: &CancellationToken) {
    let mut followed = Followed::default();
    let mut joins = FuturesUnordered::new();
    let (mut next, mut queue) = (Instant::now(), VecDeque::new());
    loop {
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            Some((address, joined)) = joins.next() => followed.note(members, address, joined),
            () = tokio::time::sleep_until(next) => {
                next = Instant::now() + FILE_INTERVAL;
                let read = tokio::fs::read_to_string(path).await.map_err(|error| error.to_string());
                followed.look(members, path, read.and_then(|text| endpoints_of(&text)));
                members.dismiss_departed(|_| false);
                queue = followed.missing(members);
            }
        }
        while joins.len() < JOINS_MAX
            && let Some((address, url)) = queue.pop_front()
        {
            followed.joining.insert(address.clone());
            let member = NewMember { url, name: None, capacity: None };
            joins.push(async move { (address, members.add(member).await.map(|server| server.id)) });
        }
    }
}

impl Followed {
    fn look(&mut self, members: &Membership, path: &Path, read: Result<Endpoints, String>) {
        let is_new = self.last.as_ref() != Some(&read);
        match &read {
            Ok(endpoints) if is_new => self.change_to(members, endpoints.clone()),
            Err(reason) if is_new => {
                tracing::warn!(file = %path.display(), reason, "the fleet stays as it is");
            }
            Ok(_) | Err(_) => {}
        }
        self.last = Some(read);
        self.remove_drained(members);
    }

    fn change_to(&mut self, members: &Membership, endpoints: Endpoints) {
        let before = std::mem::replace(&mut self.endpoints, endpoints);
        self.delisted.extend(before.into_keys());
        self.delisted.retain(|address| !self.endpoints.contains_key(address));
        self.refused.clear();
        for server in members.balancer.snapshot().servers {
            let Some(address) = address_of_server(&server) else { continue };
            let is_draining = server.admin_state == AdminState::Draining;
            let leaves = self.delisted.contains(&address) && !is_draining;
            let comes_back = self.endpoints.contains_key(&address) && is_draining;
            let changed = match (leaves, comes_back) {
                (true, _) => members.balancer.set_draining(server.id),
                (_, true) => members.balancer.set_paused(server.id, false),
                _ => continue,
            };
            if changed.is_ok() {
                tracing::info!(server = %server.name, leaves, "the fleet's file has changed");
            }
        }
    }

    /// Removes the drained servers that the file no longer lists.
    fn remove_drained(&mut self, members: &Membership) {
        let fleet = members.balancer.snapshot().servers;
        let there: BTreeSet<Address> = fleet.iter().filter_map(address_of_server).collect();
        self.delisted.retain(|address| there.contains(address) || self.joining.contains(address));
        for server in fleet {
            let is_delisted =
                address_of_server(&server).is_some_and(|address| self.delisted.contains(&address));
            if is_delisted && server.admin_state == AdminState::Draining && server.in_use == 0 {
                // The server may have left the fleet in the meantime.
                let _ = members.remove(&server.name);
            }
        }
    }

    /// Listed servers that are neither in the fleet nor joining. A server that could not join is tried again
    /// after every reading.
    fn missing(&self, members: &Membership) -> VecDeque<(Address, String)> {
        let fleet = members.balancer.snapshot().servers;
        let there: BTreeSet<Address> = fleet.iter().filter_map(address_of_server).collect();
        let is_missing = |address: &Address| !there.contains(address) && !self.joining.contains(address);
        let missing = self.endpoints.iter().filter(|(address, _)| is_missing(address));
        missing.map(|(address, url)| (address.clone(), url.clone())).collect()
    }

    fn note(&mut self, members: &Membership, address: Address, joined: Joined) {
        self.joining.remove(&address);
        match joined {
            // The file no longer lists the server.
            Ok(server) if self.delisted.contains(&address) => drop(members.balancer.set_draining(server)),
            Ok(_) => drop(self.refused.remove(&address)),
            Err(error) if self.refused.insert(address) => {
                tracing::warn!(%error, "a server of the fleet's file does not join");
            }
            Err(error) => tracing::debug!(%error, "a server of the fleet's file still does not join"),
        }
    }
}

fn address_of_server(server: &ServerSnapshot) -> Option<Address> {
    server.url.as_deref().map(address_of)
}
