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
    /// own (a take that waits, a put with a `wait`, a watch) fails within some seconds of that, if it comes
    /// before; a put that waits for room without one waits on as long as the server answers. A server that
    /// has taken a call and says nothing is given up after as long, but not before 10 s nor after 60 s.
    pub patience: Duration,
}

impl RemoteConfig {
    /// Without a token, trying for 30 s.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, patience: Duration::from_secs(30) }
    }
}
