//! The errors of a simulated server.

/// Errors of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The request breaks a rule. The message and `param` are vLLM's.
    #[error("bad request: {message}")]
    BadRequest {
        /// vLLM's message.
        message: String,
        /// The parameter that vLLM names, if any.
        param: Option<&'static str>,
    },
    /// The request would exceed `queue_max`, or [`Fault::Busy503`](crate::Fault::Busy503) is injected.
    #[error("server={server} is busy with requests={requests}")]
    Busy {
        /// The server's name.
        server: String,
        /// Number of samples that wait, are held or run.
        requests: usize,
    },
    /// The process has ended. HTTP connections to it are refused.
    #[error("server={server} is unreachable")]
    Unreachable {
        /// The server's name.
        server: String,
    },
    /// The engine died during the request, or was already dead when the request arrived.
    #[error("the engine of server={server} is dead")]
    EngineDead {
        /// The server's name.
        server: String,
    },
    /// An injected internal error (status 500).
    #[error("internal error on server={server}")]
    Internal {
        /// The server's name.
        server: String,
    },
    /// The connection was lost before the answer: by an injected fault, or because a dead server was healed.
    #[error("server={server} reset the connection")]
    ConnectionReset {
        /// The server's name.
        server: String,
    },
    /// The server's cancellation token was cancelled.
    #[error("server={server} was stopped")]
    Stopped {
        /// The server's name.
        server: String,
    },
    /// The configuration is invalid.
    #[error("bad configuration: {key} {reason}")]
    Config {
        /// The key with the invalid value.
        key: &'static str,
        /// What was expected.
        reason: String,
    },
    /// The tokenizer cannot be used, or cannot encode a text.
    #[error("bad tokenizer: {reason}")]
    Tokenizer {
        /// The library's message.
        reason: String,
    },
    /// The listening socket failed.
    #[error("cannot listen at addr={addr}: {reason}")]
    Listen {
        /// The address.
        addr: String,
        /// The operating system's message.
        reason: String,
    },
}

impl SimError {
    pub(crate) fn bad_request(param: Option<&'static str>, message: String) -> Self {
        Self::BadRequest { message, param }
    }
}
