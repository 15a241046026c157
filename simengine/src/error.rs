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
    /// The number of samples has reached `queue_max`, or [`Fault::Busy503`](crate::Fault::Busy503) is
    /// injected.
    #[error("server={server} is busy with requests={requests}")]
    Busy {
        /// The server's name.
        server: String,
        /// Samples waiting, held and running.
        requests: usize,
    },
    /// The process is gone: an HTTP client would see its connection refused.
    #[error("server={server} is unreachable")]
    Unreachable {
        /// The server's name.
        server: String,
    },
    /// The engine process died during the request, or before the server noticed it.
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
    /// The request was completed, and the connection was lost before the answer.
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
    /// A configuration that no engine could run.
    #[error("bad configuration: {key} {reason}")]
    Config {
        /// The key at fault.
        key: &'static str,
        /// What was expected.
        reason: String,
    },
    /// A tokenizer file that cannot be used.
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
