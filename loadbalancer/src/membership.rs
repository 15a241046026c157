//! The members of a running fleet: servers join and leave by calls, or by a file that is read repeatedly. A
//! server that did not answer when the fleet was opened joins when it answers.

mod file;
mod late;

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

/// Longest time that a client waits for a change of the fleet. A single permit causes no notification, so the
/// client has to read the fleet again after this time.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Time for which aborts can still be sent to a departed server after its last permit has been returned.
const ABORT_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the permits of a departed server.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// Why a server was not prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnlistError {
    /// The server answers, but cannot be used as it is.
    #[error("{0}")]
    Unfit(String),
    /// The server does not answer, or fails. It may be usable later.
    #[error("{0}")]
    Absent(String),
}

/// Prepares a server before it joins the fleet, and forgets it after it has left.
pub trait Enlist: Send + Sync + 'static {
    /// Prepares a server; an error keeps it out of the fleet. Cancel-safe.
    fn enlist<'a>(&'a self, name: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), EnlistError>>;

    /// Forgets a server that has left the fleet. From now on, requests that it still runs cannot be aborted.
    fn dismiss(&self, name: &str);
}

/// A server that will join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Base URL, `http://host:port`.
    pub url: String,
    /// The server's name, unique in the fleet; the URL's host and port if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Maximum number of samples that run at a time; the fleet's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

/// Why a change of the fleet was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The URL is not a base URL of a server.
    #[error("expected a base URL like http://host:port, found url={url}: {reason}")]
    BadUrl {
        /// The URL as given.
        url: String,
        /// Why the URL was refused.
        reason: String,
    },
    /// The server cannot be used.
    #[error("server={server} cannot join: {reason}")]
    Unfit {
        /// The server's name.
        server: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The server does not answer, or fails.
    #[error("server={server} cannot join now: {reason}")]
    Absent {
        /// The server's name.
        server: String,
        /// What happened.
        reason: String,
    },
    /// The balancer refused the change.
    #[error(transparent)]
    Balancer(#[from] BalancerError),
}

/// The default name of a server with this URL: "10.0.0.1:8000" for "http://10.0.0.1:8000/".
pub fn name_of(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/')
}

/// The canonical form of a base URL: `http://a:1` for `HTTP://a:1/`.
///
/// # Errors
/// Returns why `url` is not a base URL.
pub fn base_of(url: &str) -> Result<String, String> {
    let parsed = url::Url::parse(url).map_err(|error| error.to_string())?;
    if parsed.scheme() != "http" || parsed.host().is_none() {
        return Err("expected the scheme http and a host".to_owned());
    }
    let is_plain = parsed.query().is_none() && parsed.fragment().is_none();
    if !is_plain || !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("expected no user, password, query or fragment".to_owned());
    }
    let base = parsed.as_str().trim_end_matches('/');
    if base.ends_with("/v1") {
        return Err("expected no /v1: it belongs to the endpoints".to_owned());
    }
    Ok(base.to_owned())
}

/// Whether a name can be used in paths, in metrics and in a terminal.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\'))
}

/// A server that has left the fleet. The server is dismissed some time after its last request has ended, and
/// at `until` at the latest.
struct Leaving {
    name: String,
    /// Each permit of the server has a reference to this life, so the number of references shows whether all
    /// permits have been returned.
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

/// Adds servers to a fleet and removes them. Clones share one fleet.
#[derive(Clone)]
pub struct Membership {
    balancer: LoadBalancer,
    enlist: Arc<dyn Enlist>,
    capacity: u32,
    capacity_tokens: Option<u32>,
    /// Servers that have left and have not been dismissed.
    leaving: Arc<Mutex<Vec<Leaving>>>,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Membership").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Membership {
    /// The members of `balancer`'s fleet. A server that joins without a capacity of its own gets `capacity`.
    pub fn new(balancer: LoadBalancer, enlist: Arc<dyn Enlist>, capacity: u32) -> Self {
        Self { balancer, enlist, capacity, capacity_tokens: None, leaving: Arc::default() }
    }

    /// Sets the maximum number of expected tokens that are outstanding on a server that joins.
    pub fn with_capacity_tokens(self, capacity_tokens: Option<u32>) -> Self {
        Self { capacity_tokens, ..self }
    }

    /// The fleet's balancer.
    pub fn balancer(&self) -> &LoadBalancer {
        &self.balancer
    }

    /// Adds a server to the fleet and returns its state.
    ///
    /// Cancel-safe: when the future is dropped, the server has either joined or not.
    pub async fn add(&self, member: NewMember) -> Result<ServerSnapshot, MembershipError> {
        let NewMember { url, name, capacity } = member;
        let base = base_of(&url).map_err(|reason| MembershipError::BadUrl { url: url.clone(), reason })?;
        let name = name.unwrap_or_else(|| name_of(&url).to_owned());
        if self.balancer.find(&name).is_some() {
            return Err(BalancerError::DuplicateServer { server: name }.into());
        }
        let unfit = |reason: &str| MembershipError::Unfit { server: name.clone(), reason: reason.to_owned() };
        if !is_name(&name) {
            return Err(unfit("expected a name of visible ASCII letters, without quotes"));
        }
        let capacity = capacity.unwrap_or(self.capacity);
        if capacity == 0 {
            return Err(unfit("expected a capacity above 0"));
        }
        self.dismiss_departed(|leaving| leaving.name == name);
        self.enlist.enlist(&name, &base).await.map_err(|error| match error {
            EnlistError::Unfit(reason) => unfit(&reason),
            EnlistError::Absent(reason) => MembershipError::Absent { server: name.clone(), reason },
        })?;
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

    /// Stops sending requests to a server, and waits for its running ones for at most `wait`. Returns the
    /// number of samples that still run.
    ///
    /// Cancel-safe: the server stays draining.
    pub async fn drain(&self, name: &str, wait: Duration) -> Result<u32, MembershipError> {
        let server = self.find(name)?.id;
        let drained = self.balancer.drain(server);
        if let Ok(drained) = tokio::time::timeout(wait, drained).await {
            drained?;
            return Ok(0);
        }
        Ok(self.find(name)?.in_use)
    }

    /// Takes a server out of the fleet and revokes its permits, so that callers send its requests again to
    /// other servers. For a while callers can still abort the old requests on the server.
    pub fn remove(&self, name: &str) -> Result<(), MembershipError> {
        let life = self.balancer.take_out(self.find(name)?.id)?;
        let is_idle = Arc::strong_count(&life) == 1;
        let until = Instant::now() + if is_idle { Duration::ZERO } else { LEAVE_MAX };
        self.leaving.lock().push(Leaving { name: name.to_owned(), life, idle_since: None, until });
        self.dismiss_departed(|_| false);
        tracing::info!(server = name, "a server has left");
        Ok(())
    }

    /// Dismisses the departed servers whose time is over, and those for which `now` returns true.
    fn dismiss_departed(&self, now: impl Fn(&Leaving) -> bool) {
        let (is_now, at) = (now, Instant::now());
        let over: Vec<Leaving> =
            self.leaving.lock().extract_if(.., |leaving| is_now(leaving) || leaving.is_over(at)).collect();
        over.iter().for_each(|leaving| self.enlist.dismiss(&leaving.name));
    }

    /// Pauses or resumes a server; resuming also ends draining.
    pub fn set_paused(&self, name: &str, paused: bool) -> Result<(), MembershipError> {
        Ok(self.balancer.set_paused(self.find(name)?.id, paused)?)
    }

    /// Waits for [`LoadBalancer::changed`] for at most `limit` and at most a second, and returns the fleet.
    /// The bound of a second exists because other numbers of the fleet change without a notification.
    pub async fn changed(&self, limit: Duration) -> crate::snapshot::FleetSnapshot {
        self.dismiss_departed(|_| false);
        self.balancer.changed(limit.min(LOOK_MAX)).await;
        self.balancer.snapshot()
    }

    /// Follows a file with `endpoints = ["http://host:port", ...]` until `end` is cancelled. A server that is
    /// new in the file joins the fleet. A server that is no longer in the file is drained, and it is removed
    /// when its last request has ended. A file that cannot be read changes nothing.
    ///
    /// Cancel-safe.
    pub async fn follow(&self, path: PathBuf, end: CancellationToken) {
        file::follow(self, &path, &end).await;
    }

    /// Adds servers that did not answer when the fleet was opened. Asks each of them until it has joined, or
    /// until `end` is cancelled. A server that answers but cannot be used stays out, with a warning, until it
    /// can be used.
    ///
    /// Cancel-safe.
    pub async fn admit(&self, absent: Vec<NewMember>, end: CancellationToken) {
        late::admit(self, absent, &end).await;
    }
}

#[cfg(test)]
mod tests;
