//! How a client reaches a queue's server.

use std::time::Duration;

/// How to reach a queue's server.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// `http://host:port`
    pub url: String,
    /// The bearer token, where the server asks for one.
    pub token: Option<String>,
    /// For how long a server that is away is tried again before a call fails. A call with a deadline of its
    /// own (a take that waits, a put with a `wait`, a watch) fails within some seconds of that deadline, if
    /// it is earlier. A put that waits for room without a deadline waits as long as the server answers. If a
    /// server has taken a call and does not answer, the attempt fails after the same time, but not before
    /// 10 s and not after 60 s.
    pub patience: Duration,
}

impl RemoteConfig {
    /// A config without a token and with a patience of 30 s.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, patience: Duration::from_secs(30) }
    }
}
