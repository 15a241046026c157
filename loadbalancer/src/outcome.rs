//! The outcome of a request to a server.

use std::time::Duration;

/// The outcome of a request, as far as it concerns the server's breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Success {
        /// Response tokens of the answer.
        tokens: u64,
    },
    /// The request was wrong. This says nothing about the server.
    ClientError,
    /// The server answered 503 or 429: it is healthy but full.
    Backpressure {
        /// The time of the answer's `Retry-After`, if the answer had one.
        retry_after: Option<Duration>,
    },
    /// The server or the connection to it failed.
    Fault,
    /// The caller cancelled the request. This says nothing about the server.
    Cancelled,
}

/// The tokens that a server generated for a request without a whole answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// Tokens from which the request continues, for example on another server.
    pub kept: u64,
    /// Tokens that are of no use.
    pub wasted: u64,
}
