//! The errors of requests to a server, and their classes, which tell callers how to react.

use std::time::Duration;

/// The class of an error, which tells callers how to react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The server cannot have admitted the request, so the caller may repeat it.
    Retryable,
    /// The server is full. Another server may accept the request now, or this server may accept it later.
    Backpressure,
    /// The request itself is wrong. No server will accept it.
    Client,
    /// The server or the connection failed.
    Fault,
    /// The request was ended on purpose.
    Cancelled,
}

/// Whether the engine can have started on the request when the error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// The engine cannot have started: the request may be sent again with the same id and the same seed.
    Never,
    /// The engine may have started: only a new attempt with a new id and a new seed is safe.
    Possible,
}

/// The statuses with which a server refuses what a request says: it is malformed, too large, or has values that the
/// engine does not take.
const STATUSES_OF_REQUESTS: [u16; 4] = [400, 413, 422, 431];

/// Errors of an [`Engine`](super::Engine).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There was no connection, or it was closed before the request was written.
    #[error("cannot reach server={server}: {reason}")]
    Unreachable {
        /// The server's name.
        server: String,
        /// The error message of the operating system or the client.
        reason: String,
    },
    /// The server answered 503 or 429, or this machine cannot open another connection.
    #[error("server={server} is busy: {reason}")]
    Busy {
        /// The server's name.
        server: String,
        /// The time in the header `Retry-After`.
        retry_after: Option<Duration>,
        /// The engine's error message.
        reason: String,
    },
    /// The server answered with a status other than 429 that is neither 200 nor a 5xx. Either the request is wrong, or
    /// the server is not one of this run ([`EngineError::concerns_server`]).
    #[error("server={server} refused the request with status={status}: {reason}")]
    Refused {
        /// The server's name.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The engine's error message.
        reason: String,
    },
    /// The server answered with a 5xx other than 503, or the connection was lost before the end of the
    /// answer.
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
    /// The engine has no server of this name any more, or never had one.
    #[error("unknown server={server}")]
    UnknownServer {
        /// The name.
        server: String,
    },
    /// The server cannot be used: its address or the API key is invalid, or the probe found that the server
    /// does not fit the recipe.
    #[error("server={server} does not fit the recipe: {reason}")]
    Unfit {
        /// The server's name.
        server: String,
        /// What was found and what was expected.
        reason: String,
    },
}

impl EngineError {
    /// The class of the error, which tells callers how to react.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unreachable { .. } => ErrorClass::Retryable,
            Self::Busy { .. } => ErrorClass::Backpressure,
            Self::Refused { .. } | Self::UnknownServer { .. } | Self::Unfit { .. } => ErrorClass::Client,
            Self::Failed { .. } | Self::BadAnswer { .. } => ErrorClass::Fault,
            Self::Aborted { .. } => ErrorClass::Cancelled,
        }
    }

    /// Whether the server is wrong for every request, so that another server may accept this one, or this server when it
    /// is right again: it has another model or another API key, for example after a restart, or it is no engine.
    pub fn concerns_server(&self) -> bool {
        match self {
            Self::Unfit { .. } => true,
            Self::Refused { status, .. } => !STATUSES_OF_REQUESTS.contains(status),
            _ => false,
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
