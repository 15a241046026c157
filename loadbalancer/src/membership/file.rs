//! The members that a file names.
//!
//! A server that is silent when it is asked to join keeps nobody else waiting, and not the next look at the file. Who was
//! added otherwise is not the file's to remove.

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

/// Between two looks at the file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// Servers that are asked to join at the same time.
const JOINS_MAX: usize = 16;

/// A file that says who is in the fleet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    endpoints: Vec<String>,
}

/// A server's address, however it is written: `http://a:1` and `http://a:1/` are the same.
type Address = String;

/// Addresses, and how they are written in the file.
type Endpoints = BTreeMap<Address, String>;

type Joined = Result<ServerId, MembershipError>;

fn address_of(url: &str) -> Address {
    // What cannot be one is refused when it is to join.
    base_of(url).unwrap_or_else(|_| url.to_owned())
}

fn endpoints_of(text: &str) -> Result<Endpoints, String> {
    let file: FleetFile = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(file.endpoints.into_iter().map(|url| (address_of(&url), url)).collect())
}

/// What the file has said so far.
#[derive(Default)]
struct Followed {
    last: Option<Result<Endpoints, String>>,
    /// When it could last be read.
    endpoints: Endpoints,
    /// Was there once and is not any more.
    gone: BTreeSet<Address>,
    /// Who is asked to join at the moment.
    joining: BTreeSet<Address>,
    /// Of whom it was said already that they cannot join.
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
                members.let_leave(|_| false);
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
    fn look(&mut self, members: &Membership, path: &Path, said: Result<Endpoints, String>) {
        let is_news = self.last.as_ref() != Some(&said);
        match &said {
            Ok(endpoints) if is_news => self.become_as(members, endpoints.clone()),
            Err(reason) if is_news => {
                tracing::warn!(file = %path.display(), reason, "the fleet stays as it is");
            }
            Ok(_) | Err(_) => {}
        }
        self.last = Some(said);
        self.let_go(members);
    }

    fn become_as(&mut self, members: &Membership, endpoints: Endpoints) {
        let before = std::mem::replace(&mut self.endpoints, endpoints);
        self.gone.extend(before.into_keys());
        self.gone.retain(|address| !self.endpoints.contains_key(address));
        self.refused.clear();
        for server in members.balancer.snapshot().servers {
            let Some(address) = address_of_server(&server) else { continue };
            let is_draining = server.admin_state == AdminState::Draining;
            let leaves = self.gone.contains(&address) && !is_draining;
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

    /// Removes those that have nothing left.
    fn let_go(&mut self, members: &Membership) {
        let fleet = members.balancer.snapshot().servers;
        let there: BTreeSet<Address> = fleet.iter().filter_map(address_of_server).collect();
        self.gone.retain(|address| there.contains(address) || self.joining.contains(address));
        for server in fleet {
            let is_gone = address_of_server(&server).is_some_and(|address| self.gone.contains(&address));
            if is_gone && server.admin_state == AdminState::Draining && server.in_use == 0 {
                // It may have left since.
                let _ = members.remove(&server.name);
            }
        }
    }

    /// Who is to join and is not asked yet; whoever could not is asked again and again.
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
            // It is not wanted any more.
            Ok(server) if self.gone.contains(&address) => drop(members.balancer.set_draining(server)),
            Ok(_) => drop(self.refused.remove(&address)),
            Err(error) if self.refused.insert(address) => {
                tracing::warn!(%error, "a server of the fleet's file does not join");
            }
            Err(error) => tracing::debug!(%error, "it still does not join"),
        }
    }
}

fn address_of_server(server: &ServerSnapshot) -> Option<Address> {
    server.url.as_deref().map(address_of)
}
