//! The HTTP listener of every port of Rolldock: it limits connections and their times.
//!
//! ```text
//!   Acceptor -- accepts, makes room --> Socket + Ticket --> serve (axum), or a server's own loop (the proxy)
//!                       |                                        |
//!                  Connections <-- authenticated, lease, busy -- Client
//! ```
//!
//! Clients without a token could fill a port at no cost: each idle connection takes one file descriptor, and
//! a process may have only a thousand. Each server therefore counts its connections ([`Connections`]), and
//! closes one of them when there is no room for a new one. A connection whose client has sent a valid token
//! counts as authenticated. At a server without tokens, the first request has this effect.
//!
//! # Invariants
//! - At most [`ConnectionLimits::max`] connections are open, and at most
//!   [`ConnectionLimits::unauthenticated_max`] of them are not authenticated.
//! - To make room, a server closes the oldest connection that is idle and not authenticated. If there is no
//!   such connection, the server closes the oldest connection that is not authenticated. If all connections
//!   are authenticated, the server closes the one that has been idle longest. Connections that are
//!   authenticated and have a request, an unsent answer or a lease are never closed for others. If no
//!   connection can be closed, the new one is closed.
//! - A connection with bytes that the server has not read yet is not idle.
//! - A request that has begun on an authenticated connection is never cut off by these limits.
//! - Every state that waits for the client has a time-out: the head and the body of a request, the pause
//!   between two requests, and the client's reading of an answer.
//!
//! # Deliberately absent
//! There are no limits for each client address, because all clients of a cluster may share the address of a
//! gateway. There is no TLS, because traffic that leaves the machine belongs on a private network.

mod accept;
mod body;
mod client;
mod connections;
mod limits;
mod metrics;
mod serve;
mod socket;
mod ticket;

pub use accept::Acceptor;
pub use body::Leaving;
pub use client::{Busy, Client};
pub use connections::Connections;
pub use limits::ConnectionLimits;
pub use metrics::RenderMetrics;
pub use serve::{HalfClosed, serve};
pub use socket::Socket;
pub use ticket::Ticket;

#[cfg(test)]
mod tests;
