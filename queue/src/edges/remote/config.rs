//! The configuration of a client.

use std::time::Duration;

use tokio_util::task::TaskTracker;

/// The configuration of a client of a queue's server.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// The address of the server, as `http://host:port`.
    pub url: String,
    /// The bearer token, if the server requires one.
    pub token: Option<String>,
    /// The time for which a client tries to reach a server before a call fails. A call with an earlier
    /// deadline (a take that waits, a put with a `wait`, a watch) fails within a few seconds of that
    /// deadline. A put that waits for room without a deadline waits as long as the server answers. If a
    /// server has accepted a call and does not answer, the attempt fails after the patience, but at the
    /// earliest after 10 s and at the latest after 60 s.
    pub patience: Duration,
    /// The tasks that give rows back after a lease or a waiting take was dropped. The owner of the runtime
    /// can wait for these tasks before the runtime ends.
    pub tasks: TaskTracker,
}

impl RemoteConfig {
    /// Creates a configuration without a token and with a patience of 30 s, with a tracker of its own.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, patience: Duration::from_secs(30), tasks: TaskTracker::new() }
    }
}
