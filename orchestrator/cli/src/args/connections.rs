//! The options that limit the connections of clients to a server.

use clap::Args;
use rolldock_listener::ConnectionLimits;

use super::numbers::whole;
use crate::usage::{UsageError, seconds};

/// The connections of clients to a server.
#[derive(Debug, Args)]
pub struct ConnectionArgs {
    /// Maximum number of open connections [default: a third of the limit of open files, at most 65536]
    #[arg(long, value_name = "N", value_parser = whole(1..=usize::MAX))]
    pub connections_max: Option<usize>,
    /// Maximum number of open connections that have not sent a token yet or, without tokens, a request
    /// [default: a quarter of all]
    #[arg(long, value_name = "N", value_parser = whole(1..=usize::MAX))]
    pub unauthenticated_max: Option<usize>,
    /// Maximum time until the head of a request has arrived
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectionLimits::default().head_timeout)]
    pub head_timeout: f64,
    /// Maximum time between two requests on a connection
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectionLimits::default().keep_alive)]
    pub keep_alive: f64,
}

impl ConnectionArgs {
    /// The limits, with the default time for bodies.
    pub(crate) fn limits(&self) -> Result<ConnectionLimits, UsageError> {
        Ok(ConnectionLimits {
            max: self.connections_max,
            unauthenticated_max: self.unauthenticated_max,
            head_timeout: seconds("--head-timeout", self.head_timeout)?.as_secs_f64(),
            keep_alive: seconds("--keep-alive", self.keep_alive)?.as_secs_f64(),
            ..ConnectionLimits::default()
        })
    }
}

/// The connections of clients to a server of a queue.
#[derive(Debug, Args)]
pub struct ServiceConnectionArgs {
    /// The numbers of connections, and their time limits
    #[command(flatten)]
    pub all: ConnectionArgs,
    /// Maximum time without a byte while the body of a request arrives
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectionLimits::default().body_timeout)]
    pub body_timeout: f64,
}

impl ServiceConnectionArgs {
    /// The limits.
    pub(crate) fn limits(&self) -> Result<ConnectionLimits, UsageError> {
        let body_timeout = seconds("--body-timeout", self.body_timeout)?.as_secs_f64();
        Ok(ConnectionLimits { body_timeout, ..self.all.limits()? })
    }
}
