//! The server over HTTP/1.1, with vLLM's endpoints, statuses, bodies and quirks.
//!
//! The server also behaves like a real server at the socket. It closes an idle connection after
//! [`KEEP_ALIVE_S`], drops the requests of a client that disconnects, and refuses connections when it is dead
//! or terminated. An injected reset is a TCP reset. Bodies with tokens are written directly into a byte
//! buffer.
//!
//! To continue a sample that was cut off, a client sends the tokens of the sample at the end of a prompt. The
//! protocol cannot mark these tokens. The server recognises such a sample by its first dozen tokens and
//! continues it exactly where it was cut, even if another server began it. The server does not recognise a
//! sample that was cut within these tokens, or that is requested together with other samples.
//!
//! # Deliberately absent
//! There is no TLS, no HTTP/2, and no endpoint for tasks other than generation. Checks of sampling parameters
//! that requests of trainers always pass are left out, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::codec::Codec;
use crate::tasks;
use crate::{Phase, SimError, SimServer};

mod chat;
mod choice;
mod completions;
mod control;
mod derender;
mod dialect;
mod exposition;
mod generate;
mod handle;
mod json;
mod messages;
mod params;
mod render;
mod reply;
mod responses;
mod routes;
mod stream;
mod template;
mod tools;

/// Idle time in seconds after which a connection is closed: uvicorn's default under vLLM.
pub const KEEP_ALIVE_S: u64 = 5;

/// Pause in ms before the next attempt after a failure to accept or to bind.
const RETRY_MS: u64 = 50;

pub(crate) type Body = UnsyncBoxBody<Bytes, reply::Reset>;

/// The state that the handlers of a server share.
pub(crate) struct Face {
    pub(crate) server: SimServer,
    pub(crate) codec: Arc<dyn Codec>,
    started: Instant,
    started_unix_s: u64,
    ids: AtomicU64,
}

impl Face {
    /// The present time in seconds since 1970, computed from `started_unix_s`.
    pub(crate) fn unix_s(&self) -> u64 {
        self.started_unix_s + self.started.elapsed().as_secs()
    }

    /// A request id for a client that sent none.
    pub(crate) fn fresh_id(&self) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", crate::hash::mix(count ^ (self.started_unix_s << 32)))
    }
}

/// Starts to serve `server` at `listener` until `cancel`, and returns the address immediately.
///
/// `started_unix_s` is the present time in seconds since 1970, for the `created` fields. While the simulated
/// process does not exist, the listener is closed. When the server is healed, the same address is bound
/// again.
///
/// # Errors
/// [`SimError::Listen`] if the listener has no address.
pub fn serve(
    server: SimServer,
    codec: Arc<dyn Codec>,
    listener: TcpListener,
    started_unix_s: u64,
    tracker: &TaskTracker,
    cancel: CancellationToken,
) -> Result<SocketAddr, SimError> {
    let addr = listener
        .local_addr()
        .map_err(|error| SimError::Listen { addr: "unknown".to_owned(), reason: error.to_string() })?;
    let face =
        Arc::new(Face { server, codec, started: Instant::now(), started_unix_s, ids: AtomicU64::new(0) });
    tracing::info!(%addr, server = %face.server.config().name, "simulated server listens");
    tasks::spawn(tracker, "simulated server", listen(face, listener, addr, tracker.clone(), cancel));
    Ok(addr)
}

/// Accepts connections while the simulated process exists.
async fn listen(
    face: Arc<Face>,
    first: TcpListener,
    addr: SocketAddr,
    tracker: TaskTracker,
    cancel: CancellationToken,
) {
    let mut phase = face.server.phase_changes();
    let mut listener = Some(first);
    loop {
        let is_gone = *phase.borrow_and_update() == Phase::Gone;
        if is_gone {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(addr).await.ok();
        }
        let retries = !is_gone && listener.is_none();
        let accept = async {
            match &listener {
                Some(bound) => bound.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            changed = phase.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_millis(RETRY_MS)), if retries => {}
            accepted = accept => match accepted {
                Ok((stream, _)) => {
                    tasks::spawn(&tracker, "simulated connection", converse(Arc::clone(&face), stream, cancel.clone()));
                }
                // Usually file descriptors have run out, and other connections have to close first.
                Err(_) => tokio::time::sleep(Duration::from_millis(RETRY_MS)).await,
            },
        }
    }
}

/// Serves one connection to its end.
async fn converse(face: Arc<Face>, stream: TcpStream, cancel: CancellationToken) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(move |request| {
        let face = Arc::clone(&face);
        async move { routes::respond(&face, request).await }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // This time limit runs from the end of one answer to the head of the next request, so it also limits
        // the keep-alive.
        .header_read_timeout(Duration::from_secs(KEEP_ALIVE_S))
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        ended = &mut connection => ended,
    };
    // A handler failed on purpose. The client has to get a reset, not an end of file.
    if ended.is_err_and(|error| error.is_user()) {
        let socket = connection.into_parts().io.into_inner();
        let _ = socket.set_zero_linger();
    }
}

#[cfg(test)]
mod tests;
