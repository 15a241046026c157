//! The link of a client to its server: one connection, which is opened again when it is lost.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, Failure, Limit, Numbers, Reply};
use super::protocol::{Ask, LeaseName};
use crate::edges::wire::LocalPlace;
use crate::{QueueError, tasks};

const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The client waits for an answer as long as the call may wait at the server, and then for the client's
/// patience. The patience is clamped to these bounds.
const ANSWER_MIN: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// If the caller has a deadline, the answer may arrive this much later: it may be in transit at the deadline,
/// or the server may just have restarted.
const LATE_MAX: Duration = Duration::from_secs(1);

/// The configuration of a client of a queue's server on this host.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The server's socket: a path, or `@NAME` for a socket without a file.
    pub path: PathBuf,
    /// The time for which a client tries to reach a server before a call fails. A call with an earlier
    /// deadline fails within a few seconds of that deadline; see
    /// [`RemoteConfig`](crate::RemoteConfig::patience).
    pub patience: Duration,
}

impl LocalConfig {
    /// Creates a configuration with a patience of 30 s.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), patience: Duration::from_secs(30) }
    }
}

/// Finds the socket of a server.
pub(crate) trait Locate: Send + Sync + std::fmt::Debug {
    /// Asks once. Cancel-safe.
    fn locate(&self) -> BoxFuture<'_, io::Result<LocalPlace>>;
}

/// What a link connects to.
#[derive(Debug)]
enum Target {
    /// Any server that listens at this socket.
    Socket(PathBuf),
    /// One server, at any socket.
    Server(Arc<dyn Locate>),
}

#[derive(Debug)]
pub(super) struct Link {
    target: Target,
    /// The address of the server, as it appears in errors.
    pub(super) url: String,
    patience: Duration,
    /// The runtime in which connections run.
    runtime: Handle,
    tasks: TaskTracker,
    numbers: Numbers,
    /// Locked while a caller connects, so that other callers wait for the same connection.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

/// Whether a call may be sent again when it is unknown whether the server has executed it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// A repetition changes nothing.
    Safe,
    /// The call is repeated only if it was not sent.
    Unsent,
}

/// The attempts of one call, which are repeated until the patience runs out.
pub(super) struct Attempts<'a> {
    link: &'a Link,
    give_up: Option<Instant>,
    /// The caller's deadline, which applies whatever the server does.
    deadline: Option<Instant>,
    pause: Duration,
}

impl Attempts<'_> {
    pub(super) async fn connection(&mut self) -> Result<Arc<Connection>, QueueError> {
        loop {
            let limit = self.limit(Duration::ZERO);
            match tokio::time::timeout_at(limit.at, self.link.connected()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => self.wait(error.to_string()).await?,
                Err(_) => self.wait("no connection in time".to_owned()).await?,
            }
        }
    }

    /// The time until which a call waits for its answer, if it begins now and may wait at the server for
    /// `wait`.
    pub(super) fn limit(&self, wait: Duration) -> Limit {
        let answer_max = self.link.patience.clamp(ANSWER_MIN, ANSWER_MAX);
        let at = Instant::now() + wait + answer_max;
        match self.deadline.map(|deadline| deadline + LATE_MAX).filter(|callers| *callers < at) {
            Some(at) => Limit { at, is_callers: true },
            None => Limit { at, is_callers: false },
        }
    }

    /// Waits for a moment after a failure if another attempt is worthwhile. Otherwise returns the error.
    pub(super) async fn again(&mut self, failure: Failure, repeat: Repeat) -> Result<(), QueueError> {
        match failure {
            // The server may be about to start again, or to close connections.
            Failure::Refused(away @ (QueueError::Stopping | QueueError::OutOfFiles { .. }))
                if !self.link.patience.is_zero() =>
            {
                self.wait(away.to_string()).await
            }
            Failure::Refused(error) => Err(error),
            Failure::Lost(reason) if repeat == Repeat::Unsent => Err(self.link.unreachable(reason)),
            Failure::Lost(reason) | Failure::Unsent(reason) => self.wait(reason).await,
        }
    }

    /// Notes that the server answers. At the next failure, the patience starts again.
    pub(super) fn answered(&mut self) {
        (self.give_up, self.pause) = (None, RETRY_MIN);
    }

    async fn wait(&mut self, reason: String) -> Result<(), QueueError> {
        let patience = self.link.patience;
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + patience);
        let give_up = self.deadline.map_or(give_up, |deadline| give_up.min(deadline + LATE_MAX));
        if Instant::now() + self.pause >= give_up {
            return Err(self.link.unreachable(reason));
        }
        if self.pause == RETRY_MIN {
            let (url, patience_s) = (&self.link.url, patience.as_secs());
            tracing::warn!(url, patience_s, %reason, "the queue's server cannot answer now; trying again");
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(RETRY_MAX);
        Ok(())
    }
}

impl Link {
    /// Creates a link without a connection. Must be called in a tokio runtime.
    pub(super) fn new(config: LocalConfig) -> Result<Self, QueueError> {
        let url = format!("unix:{}", config.path.display());
        Self::to(Target::Socket(config.path), url, config.patience)
    }

    /// Creates a link to a server that is asked for its socket at each connection. Must be called in a tokio
    /// runtime.
    pub(super) fn of_server(
        server: Arc<dyn Locate>,
        url: String,
        patience: Duration,
    ) -> Result<Self, QueueError> {
        Self::to(Target::Server(server), url, patience)
    }

    fn to(target: Target, url: String, patience: Duration) -> Result<Self, QueueError> {
        let runtime = match Handle::try_current() {
            Ok(runtime) => runtime,
            Err(error) => return Err(QueueError::Unreachable { url, reason: error.to_string() }),
        };
        Ok(Self {
            target,
            url,
            patience,
            runtime,
            tasks: TaskTracker::new(),
            numbers: Arc::new(AtomicU64::new(1)),
            connection: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn unreachable(&self, reason: impl ToString) -> QueueError {
        QueueError::Unreachable { url: self.url.clone(), reason: reason.to_string() }
    }

    pub(super) fn attempts(&self, deadline: Option<Instant>) -> Attempts<'_> {
        Attempts { link: self, give_up: None, deadline, pause: RETRY_MIN }
    }

    pub(super) async fn connected(&self) -> io::Result<Arc<Connection>> {
        let mut connection = self.connection.lock().await;
        if let Some(live) = connection.as_ref().filter(|connection| connection.is_alive()) {
            return Ok(Arc::clone(live));
        }
        let (path, life) = match &self.target {
            Target::Socket(path) => (path.clone(), None),
            Target::Server(server) => {
                let place = server.locate().await?;
                (PathBuf::from(place.socket), Some(place.life))
            }
        };
        let opening = Connection::open(&path, life, Arc::clone(&self.numbers), &self.tasks, &self.runtime);
        let opened = Arc::new(opening.await?);
        *connection = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Gives the rows of a lease back, in a task. If the server cannot be reached, the rows become ready
    /// again when the lease expires.
    pub(super) fn give_back(self: &Arc<Self>, lease: LeaseName) {
        let link = Arc::clone(self);
        let giving = async move {
            let _ = link.ask(|| Ask::Nack(lease.clone()), Repeat::Safe).await;
        };
        tasks::spawn_on(&self.tasks, "return of a lease", giving, &self.runtime);
    }

    /// Sends a request until the server answers.
    pub(super) async fn ask(&self, ask: impl Fn() -> Ask, repeat: Repeat) -> Result<Reply, QueueError> {
        self.ask_by(None, ask, repeat).await
    }

    /// Sends a request until the server answers or the caller's deadline has passed.
    pub(super) async fn ask_by(
        &self,
        deadline: Option<Instant>,
        ask: impl Fn() -> Ask,
        repeat: Repeat,
    ) -> Result<Reply, QueueError> {
        let mut attempts = self.attempts(deadline);
        loop {
            let connection = attempts.connection().await?;
            let limit = attempts.limit(Duration::ZERO);
            match connection.call(connection.number(), ask(), &[], limit).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => attempts.again(failure, repeat).await?,
            }
        }
    }

    pub(super) async fn ask_for<T: DeserializeOwned>(&self, ask: impl Fn() -> Ask) -> Result<T, QueueError> {
        self.said(self.ask(ask, Repeat::Safe).await?.body())
    }

    pub(super) fn said<T>(&self, said: Result<T, Failure>) -> Result<T, QueueError> {
        said.map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::Unsent(reason) | Failure::Lost(reason) => self.unreachable(reason),
        })
    }
}
