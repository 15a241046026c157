//! Why the balancer refuses a request or a change of the fleet.

/// Errors of the balancer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// No server of the fleet could hold the request, even without any other request.
    #[error(
        "expected a weight of at most {largest}, the capacity of the largest server, found weight={weight}"
    )]
    TooHeavy {
        /// The weight asked for.
        weight: u32,
        /// The weight of the heaviest request that a server of the fleet can hold.
        largest: u32,
    },
    /// The request asks for no samples.
    #[error("expected a weight of at least 1, found weight=0")]
    Weightless,
    /// The waiting list is full.
    #[error("the waiting list is full: waiting_max={waiting_max} requests wait already")]
    QueueFull {
        /// Maximum number of waiting requests.
        waiting_max: usize,
    },
    /// No server had enough free places before the request's deadline.
    #[error("no permit of weight={weight} before the deadline; fleet: {fleet}")]
    Deadline {
        /// The weight asked for.
        weight: u32,
        /// The fleet at the deadline: the numbers of servers by state, of granted permits and of waiting
        /// requests.
        fleet: String,
    },
    /// The fleet has no such server.
    #[error("unknown server={server}")]
    UnknownServer {
        /// The server's name or number.
        server: String,
    },
    /// The fleet has a server of this name already.
    #[error("server={server} is in the fleet already")]
    DuplicateServer {
        /// The name.
        server: String,
    },
    /// The server was resumed or paused while a caller waited for it to drain.
    #[error("server={server} is not draining any more")]
    Resumed {
        /// The name.
        server: String,
    },
    /// The balancer was closed.
    #[error("the balancer is closed")]
    Closed,
}
