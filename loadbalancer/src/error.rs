//! Why there is no permit.

/// What a caller may do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Try again.
    Retryable,
    /// Too many wait; try later.
    Backpressure,
    /// The request can never be granted.
    Client,
    /// The fleet failed.
    Fault,
    /// Somebody asked for the end.
    Cancelled,
}

/// Errors of the balancer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// No server could ever grant it.
    #[error("weight={weight} is above the capacity of every server (largest={largest})")]
    TooHeavy {
        /// Asked for.
        weight: u32,
        /// The largest capacity in the fleet.
        largest: u32,
    },
    /// A permit of weight 0 would be no permit.
    #[error("weight=0 is not a request")]
    Weightless,
    /// The waiting list is full.
    #[error("waiting_max={waiting_max} requests wait already")]
    QueueFull {
        /// The bound.
        waiting_max: usize,
    },
    /// Nothing became free in time; how the fleet was then.
    #[error("no permit of weight={weight} before the deadline; fleet: {fleet}")]
    Deadline {
        /// Asked for.
        weight: u32,
        /// Servers by state.
        fleet: String,
    },
    /// No such server.
    #[error("unknown server={server}")]
    UnknownServer {
        /// The name or number.
        server: String,
    },
    /// A server of this name is there already.
    #[error("server={server} is in the fleet already")]
    DuplicateServer {
        /// The name.
        server: String,
    },
    /// It takes requests again: nobody waits any more for its end.
    #[error("server={server} is not draining any more")]
    Resumed {
        /// The name.
        server: String,
    },
    /// The balancer was closed.
    #[error("the balancer is closed")]
    Closed,
}

impl BalancerError {
    /// What a caller may do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::TooHeavy { .. }
            | Self::Weightless
            | Self::UnknownServer { .. }
            | Self::DuplicateServer { .. } => ErrorClass::Client,
            Self::QueueFull { .. } => ErrorClass::Backpressure,
            Self::Deadline { .. } => ErrorClass::Fault,
            Self::Resumed { .. } | Self::Closed => ErrorClass::Cancelled,
        }
    }
}
