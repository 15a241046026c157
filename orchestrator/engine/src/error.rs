//! What can go wrong between the core and a server, and what may be done about it.

use std::time::Duration;

/// What a caller may do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Safe to send the same request again: it cannot have been admitted.
    Retryable,
    /// The server is full; try elsewhere or later.
    Backpressure,
    /// The request itself is wrong; no server will take it.
    Client,
    /// The server or the connection failed.
    Fault,
    /// The request was ended on purpose.
    Cancelled,
}

/// Whether the engine can have started on the request when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// The engine cannot have started: the request may be sent again with the same id and the same seed.
    Never,
    /// The engine may have started: only a new attempt with a new id and a new seed is safe.
    Possible,
}

/// Errors of an [`Engine`](super::Engine).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No connection, or it was closed before the request was written.
    #[error("cannot reach server={server}: {reason}")]
    Unreachable {
        /// The server's name.
        server: String,
        /// The operating system's or the client's words.
        reason: String,
    },
    /// 503 or 429, or this machine has no room for another connection.
    #[error("server={server} is busy: {reason}")]
    Busy {
        /// The server's name.
        server: String,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
        /// The engine's words.
        reason: String,
    },
    /// A 4xx: the request is at fault.
    #[error("server={server} refused the request with status={status}: {reason}")]
    Refused {
        /// The server's name.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The engine's words.
        reason: String,
    },
    /// A 5xx, a reset, or an end of the stream in the middle.
    #[error("server={server} failed: {reason}")]
    Failed {
        /// The server's name.
        server: String,
        /// What happened.
        reason: String,
    },
    /// An answer that cannot be trusted: malformed, incomplete, or with poisoned numbers.
    #[error("bad answer from server={server}: {reason}")]
    BadAnswer {
        /// The server's name.
        server: String,
        /// Which check failed.
        reason: String,
    },
    /// The engine ended the request early (an abort by id, or a pause that aborts).
    #[error("server={server} aborted the request after tokens={tokens}")]
    Aborted {
        /// The server's name.
        server: String,
        /// Tokens that were generated.
        tokens: u64,
    },
    /// The recipe names a server this engine does not have.
    #[error("unknown server={server}")]
    UnknownServer {
        /// The name.
        server: String,
    },
    /// A server whose facts do not fit the recipe, as the probe has found at the start.
    #[error("server={server} does not fit the recipe: {reason}")]
    Unfit {
        /// The server's name.
        server: String,
        /// What was found and what was expected.
        reason: String,
    },
}

impl EngineError {
    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unreachable { .. } => ErrorClass::Retryable,
            Self::Busy { .. } => ErrorClass::Backpressure,
            Self::Refused { .. } | Self::UnknownServer { .. } | Self::Unfit { .. } => ErrorClass::Client,
            Self::Failed { .. } | Self::BadAnswer { .. } => ErrorClass::Fault,
            Self::Aborted { .. } => ErrorClass::Cancelled,
        }
    }

    /// Whether the engine can have started on the request.
    pub fn admission(&self) -> Admission {
        match self {
            Self::Unreachable { .. }
            | Self::Busy { .. }
            | Self::Refused { .. }
            | Self::UnknownServer { .. }
            | Self::Unfit { .. } => Admission::Never,
            Self::Failed { .. } | Self::BadAnswer { .. } | Self::Aborted { .. } => Admission::Possible,
        }
    }
}
