//! Who is in the fleet, while it runs: by calls, or by a file that is looked at again and again.

mod file;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::balancer::Life;
use crate::snapshot::ServerSnapshot;
use crate::{BalancerError, LoadBalancer, ServerSpec};

/// Who watches the fleet sees its numbers so often, whatever else happens: nobody is told of single permits.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// After a server's last permit is back, the aborts of what ran there have so long to be sent and sent again.
const ABORT_GRACE: Duration = Duration::from_secs(5);
/// Permits of a server that has left which are not back by then are not waited for.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// What has to be done for a server before it gets requests, and after it had its last.
pub trait Enlist: Send + Sync + 'static {
    /// Makes it ready; an error keeps it out. Cancel-safe.
    fn enlist<'a>(&'a self, name: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// It has left, and nothing runs there any more that somebody might want to end.
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
    url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/')
}

/// The address of a server, however it is written: `HTTP://a:1/` is `http://a:1`.
///
/// # Errors
/// Why it cannot be one.
fn base_of(url: &str) -> Result<String, String> {
    let parsed = url::Url::parse(url).map_err(|error| error.to_string())?;
    if parsed.scheme() != "http" || parsed.host().is_none() {
        return Err("only http is spoken".to_owned());
    }
    let is_plain = parsed.query().is_none() && parsed.fragment().is_none();
    if !is_plain || !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("a base URL has no user, password, query or fragment".to_owned());
    }
    let base = parsed.as_str().trim_end_matches('/');
    if base.ends_with("/v1") {
        return Err("the /v1 is of its endpoints".to_owned());
    }
    Ok(base.to_owned())
}

/// Whether it can stand in a path, in metrics and in a terminal.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\'))
}

/// A server that has left, and is dismissed when nothing runs there any more.
struct Leaving {
    name: String,
    /// Its permits share it.
    life: Arc<Life>,
    idle_since: Option<Instant>,
    until: Instant,
}

impl Leaving {
    fn is_over(&mut self, now: Instant) -> bool {
        if Arc::strong_count(&self.life) > 1 {
            return now >= self.until;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        now >= (idle_since + ABORT_GRACE).min(self.until)
    }
}

/// See the module's documentation. Clones speak of the same fleet.
#[derive(Clone)]
pub struct Membership {
    balancer: LoadBalancer,
    enlist: Arc<dyn Enlist>,
    capacity: u32,
    capacity_tokens: Option<u32>,
    /// Looked at with every call.
    leaving: Arc<Mutex<Vec<Leaving>>>,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Membership").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Membership {
    /// Of a balancer's fleet; servers of which nothing else is said have `capacity`.
    pub fn new(balancer: LoadBalancer, enlist: Arc<dyn Enlist>, capacity: u32) -> Self {
        Self { balancer, enlist, capacity, capacity_tokens: None, leaving: Arc::default() }
    }

    /// The same, and servers that are added have at most so many expected tokens outstanding.
    pub fn with_capacity_tokens(self, capacity_tokens: Option<u32>) -> Self {
        Self { capacity_tokens, ..self }
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
        let base = base_of(&url).map_err(|reason| MembershipError::BadUrl { url: url.clone(), reason })?;
        let name = name.unwrap_or_else(|| name_of(&url).to_owned());
        if self.balancer.find(&name).is_some() {
            return Err(BalancerError::DuplicateServer { server: name }.into());
        }
        let unfit = |reason| MembershipError::Unfit { server: name.clone(), reason };
        if !is_name(&name) {
            return Err(unfit("expected a name of visible ASCII letters, without quotes".to_owned()));
        }
        let capacity = capacity.unwrap_or(self.capacity);
        if capacity == 0 {
            return Err(unfit("expected a capacity above 0".to_owned()));
        }
        self.let_leave(|leaving| leaving.name == name);
        self.enlist.enlist(&name, &base).await.map_err(unfit)?;
        let spec = ServerSpec {
            capacity_tokens: self.capacity_tokens,
            ..ServerSpec::new(name.clone(), base, capacity)
        };
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
        Ok(self.find(name)?.in_use)
    }

    /// Takes a server out of the fleet; what it has is lost, and begins anew elsewhere. It can still be told to abort that.
    pub fn remove(&self, name: &str) -> Result<(), MembershipError> {
        let life = self.balancer.take_out(self.find(name)?.id)?;
        let is_idle = Arc::strong_count(&life) == 1;
        let until = Instant::now() + if is_idle { Duration::ZERO } else { LEAVE_MAX };
        self.leaving.lock().push(Leaving { name: name.to_owned(), life, idle_since: None, until });
        self.let_leave(|_| false);
        tracing::info!(server = name, "a server has left");
        Ok(())
    }

    /// Dismisses those whose time has come, and those who have to go `now`.
    fn let_leave(&self, now: impl Fn(&Leaving) -> bool) {
        let (is_now, at) = (now, Instant::now());
        let gone: Vec<Leaving> =
            self.leaving.lock().extract_if(.., |leaving| is_now(leaving) || leaving.is_over(at)).collect();
        gone.iter().for_each(|leaving| self.enlist.dismiss(&leaving.name));
    }

    /// Pauses or resumes a server; resuming also ends draining.
    pub fn set_paused(&self, name: &str, paused: bool) -> Result<(), MembershipError> {
        Ok(self.balancer.set_paused(self.find(name)?.id, paused)?)
    }

    /// The fleet once a server has another state or other places, joins, leaves or has nothing left to finish; or after
    /// `limit`, at most a second, since its numbers change all the time.
    pub async fn changed(&self, limit: Duration) -> crate::snapshot::FleetSnapshot {
        self.let_leave(|_| false);
        self.balancer.changed(limit.min(LOOK_MAX)).await;
        self.balancer.snapshot()
    }

    /// Keeps the fleet as a file says, until `end`: `endpoints = ["http://host:port", ...]`. Who is new there joins; who was
    /// there and is not any more is drained, and removed when it has nothing left. A file that cannot be read changes
    /// nothing.
    ///
    /// Cancel-safe.
    pub async fn follow(&self, path: PathBuf, end: CancellationToken) {
        file::follow(self, &path, &end).await;
    }
}

#[cfg(test)]
mod tests;
