//! Accepts connections, and makes room for them.

use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::socket::Socket;
use crate::ticket::Ticket;

/// Time without data from a client after which the kernel probes its connection.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept. The usual cause is a lack of file descriptors, which lasts until other
/// connections close.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Shortest time between two log lines about errors of the listener, which occur in large numbers.
const ERROR_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Accepts the connections of one socket. Several sockets may share their [`Connections`].
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    connections: Connections,
    patience: Duration,
    logged_at: Option<Instant>,
}

impl Acceptor {
    /// Accepts connections at `listener`. A client that takes no byte of an answer for
    /// [`ConnectionLimits::keep_alive`](crate::ConnectionLimits::keep_alive) is disconnected.
    pub fn new(listener: TcpListener, connections: Connections) -> Self {
        let patience = connections.bounds().keep_alive;
        connections.begin_counters();
        Self { listener, connections, patience, logged_at: None }
    }

    /// Disconnects clients that take no byte of an answer for `patience`.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Waits for the next connection that the limits admit. If the listener returns an error, logs the error
    /// and continues. Cancel-safe.
    pub async fn accept(&mut self) -> (Socket, Ticket) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    attend(&stream, self.patience);
                    if let Some(seat) = self.connections.join(stream) {
                        return (Socket::new(seat.clone()), Ticket::new(seat));
                    }
                }
                Err(error) => {
                    if self.logged_at.is_none_or(|at| at.elapsed() >= ERROR_LOG_INTERVAL) {
                        let (connections, _) = self.connections.open();
                        tracing::warn!(%error, connections, "cannot accept a connection");
                        self.logged_at = Some(Instant::now());
                    }
                    self.connections.make_room();
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }
}

/// Makes the kernel end two kinds of connections. The first kind are connections whose client has
/// acknowledged no data for `patience`, even if the rest of the answer is only in the kernel's buffer. The
/// second kind are connections whose client has disappeared without closing them. Also switches off Nagle's
/// algorithm: an answer is a head and a few pieces, and no piece should wait until the client has
/// acknowledged the previous one.
///
/// Errors are ignored: without these options such connections only last longer.
fn attend(stream: &TcpStream, patience: Duration) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX));
    let _ = sockopt::set_tcp_keepidle(stream, SILENCE_MAX)
        .and_then(|()| sockopt::set_socket_keepalive(stream, true));
}
