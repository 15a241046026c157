//! Who is in the fleet, while it runs: by calls, or by a file that is looked at again and again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{BalancerError, LoadBalancer, ServerSnapshot, ServerSpec, ServerState};

/// Between two looks at the file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// An answer to a caller is not kept longer by a server that is drained.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What has to be done for a server before it gets requests, and after it had its last.
pub trait Enlist: Send + Sync + 'static {
    /// Makes it ready; an error keeps it out. Cancel-safe.
    fn enlist<'a>(&'a self, name: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// It has left.
    fn dismiss(&self, name: &str);
}

/// A server that is to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Base URL, `http://host:port`.
    pub url: String,
    /// Unique in the fleet; the URL's host and port if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Samples that may run at a time; as many as on the others if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

/// Why the fleet stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// It cannot be a server.
    #[error("expected a base URL like http://host:port, found url={url}: {reason}")]
    BadUrl {
        /// As given.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// It cannot be used.
    #[error("server={server} cannot join: {reason}")]
    Unfit {
        /// Its name.
        server: String,
        /// Why.
        reason: String,
    },
    /// See [`BalancerError`].
    #[error(transparent)]
    Balancer(#[from] BalancerError),
}

/// "http://10.0.0.1:8000/" is called "10.0.0.1:8000".
pub fn name_of(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

/// A file that says who is in the fleet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    endpoints: Vec<String>,
}

/// See the module's documentation. Clones speak of the same fleet.
#[derive(Clone)]
pub struct Membership {
    balancer: LoadBalancer,
    enlist: Arc<dyn Enlist>,
    capacity: u32,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Membership").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Membership {
    /// Of a balancer's fleet; servers of which nothing else is said have `capacity`.
    pub fn new(balancer: LoadBalancer, enlist: Arc<dyn Enlist>, capacity: u32) -> Self {
        Self { balancer, enlist, capacity }
    }

    /// Its balancer.
    pub fn balancer(&self) -> &LoadBalancer {
        &self.balancer
    }

    /// Adds a server; it gets requests from then on.
    ///
    /// Cancel-safe: it joins or it does not.
    pub async fn add(&self, member: NewMember) -> Result<ServerSnapshot, MembershipError> {
        let NewMember { url, name, capacity } = member;
        let bad = |reason: String| MembershipError::BadUrl { url: url.clone(), reason };
        let parsed = url::Url::parse(&url).map_err(|error| bad(error.to_string()))?;
        if parsed.scheme() != "http" || parsed.host().is_none() {
            return Err(bad("only http is spoken".to_owned()));
        }
        let name = name.unwrap_or_else(|| name_of(&url).to_owned());
        if self.balancer.find(&name).is_some() {
            return Err(BalancerError::DuplicateServer { server: name }.into());
        }
        let unfit = |reason| MembershipError::Unfit { server: name.clone(), reason };
        self.enlist.enlist(&name, &url).await.map_err(unfit)?;
        let spec = ServerSpec::new(name.clone(), url, capacity.unwrap_or(self.capacity));
        self.balancer.add(spec)?;
        tracing::info!(server = %name, "a server joins");
        self.find(&name)
    }

    fn find(&self, name: &str) -> Result<ServerSnapshot, MembershipError> {
        let found = self.balancer.snapshot().servers.into_iter().find(|server| *server.name == *name);
        found.ok_or_else(|| BalancerError::UnknownServer { server: name.to_owned() }.into())
    }

    /// Gives a server no more requests, and waits for those that it has, at most for `wait`. Says how many it still has.
    ///
    /// Cancel-safe: it stays draining.
    pub async fn drain(&self, name: &str, wait: Duration) -> Result<u32, MembershipError> {
        let server = self.find(name)?.id;
        let drained = self.balancer.drain(server);
        if let Ok(drained) = tokio::time::timeout(wait, drained).await {
            drained?;
            return Ok(0);
        }
        self.balancer.set_draining(server)?;
        Ok(self.find(name)?.in_use)
    }

    /// Takes a server out of the fleet; what it has is lost, and begins anew elsewhere.
    pub fn remove(&self, name: &str) -> Result<(), MembershipError> {
        self.balancer.remove(self.find(name)?.id)?;
        self.enlist.dismiss(name);
        tracing::info!(server = name, "a server has left");
        Ok(())
    }

    /// Pauses or resumes a server; resuming also ends draining.
    pub fn set_paused(&self, name: &str, paused: bool) -> Result<(), MembershipError> {
        Ok(self.balancer.set_paused(self.find(name)?.id, paused)?)
    }

    /// The fleet once it has changed, or after `limit`.
    pub async fn changed(&self, limit: Duration) -> crate::FleetSnapshot {
        self.balancer.changed(limit.min(LOOK_MAX)).await;
        self.balancer.snapshot()
    }

    /// Keeps the fleet as a file says, until `end`: `endpoints = ["http://host:port", ...]`. Who is new there joins; who is
    /// not there any more is drained, and removed when it has nothing left. A file that cannot be read changes nothing.
    ///
    /// Cancel-safe.
    pub async fn follow(&self, path: PathBuf, end: CancellationToken) {
        let mut last = None;
        loop {
            let read = tokio::fs::read_to_string(&path).await.map_err(|error| error.to_string());
            let endpoints = read.and_then(|text| endpoints_of(&text));
            let is_news = last.as_ref() != Some(&endpoints);
            match &endpoints {
                Ok(endpoints) => {
                    self.become_as(endpoints, is_news).await;
                    self.let_go(endpoints);
                }
                Err(reason) if is_news => warn_of(&path, reason),
                Err(_) => {}
            }
            last = Some(endpoints);
            if end.run_until_cancelled(tokio::time::sleep(FILE_INTERVAL)).await.is_none() {
                return;
            }
        }
    }

    /// Who could not join is asked again at every look.
    async fn become_as(&self, endpoints: &BTreeSet<String>, is_news: bool) {
        for server in self.balancer.snapshot().servers.into_iter().filter(|_| is_news) {
            let stays = server.url.as_deref().is_some_and(|url| endpoints.contains(url));
            let leaves = !stays && server.state != ServerState::Draining;
            let comes_back = stays && server.state == ServerState::Draining;
            let changed = match (leaves, comes_back) {
                (true, _) => self.balancer.set_draining(server.id),
                (_, true) => self.balancer.set_paused(server.id, false),
                _ => continue,
            };
            if changed.is_ok() {
                tracing::info!(server = %server.name, leaves, "the fleet's file has changed");
            }
        }
        for url in endpoints {
            let known = self.balancer.snapshot().servers;
            if known.iter().any(|server| server.url.as_deref() == Some(url)) {
                continue;
            }
            let member = NewMember { url: url.clone(), name: None, capacity: None };
            match self.add(member).await {
                Ok(_) => {}
                Err(error) if is_news => tracing::warn!(%error, "a server of the fleet's file does not join"),
                Err(error) => tracing::debug!(%error, "it still does not join"),
            }
        }
    }

    /// Removes those that are drained or dead and not in the file. Who was added by a call stays.
    fn let_go(&self, endpoints: &BTreeSet<String>) {
        for server in self.balancer.snapshot().servers {
            let stays = server.url.as_deref().is_some_and(|url| endpoints.contains(url));
            let is_leaving = matches!(server.state, ServerState::Draining | ServerState::Dead);
            if !stays && is_leaving && server.in_use == 0 {
                // It may have left since.
                let _ = self.remove(&server.name);
            }
        }
    }
}

fn endpoints_of(text: &str) -> Result<BTreeSet<String>, String> {
    let file: FleetFile = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(file.endpoints.into_iter().collect())
}

fn warn_of(path: &Path, reason: &str) {
    tracing::warn!(file = %path.display(), reason, "the fleet stays as it is");
}

#[cfg(test)]
mod tests;
