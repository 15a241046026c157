//! How a request to a server went.

use std::time::Duration;

/// How a request went, as the server's breaker has to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Success {
        /// Response tokens of the answer.
        tokens: u64,
    },
    /// The request was wrong. This says nothing about the server.
    ClientError,
    /// The server answered 503 or 429: it is healthy, and full.
    Backpressure {
        /// The `Retry-After` that the server asked for.
        retry_after: Option<Duration>,
    },
    /// The server or the connection to it failed.
    Fault,
    /// The caller gave the request up. This says nothing about the server.
    Cancelled,
}
