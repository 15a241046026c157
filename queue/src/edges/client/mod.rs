//! The client that chooses how it reaches a server: through shared memory on the server's host, and over HTTP
//! from everywhere else.
//!
//! The server names its socket at `GET /v1/local`, together with a number that identifies this run of the
//! server. A client is on the server's host if it finds the socket and the server behind the socket reports
//! this number. Host names and addresses are no proof, because they may belong to a container, a proxy or a
//! tunnel.
//!
//! # Why the choice can change
//! A server that was restarted has another socket, or runs on another host. The client therefore asks the
//! server for its socket again whenever it connects through shared memory. If no attempt succeeds within the
//! client's patience, the call fails, and the next call chooses the transport again.
//!
//! # Deliberately absent
//! A server with storage units names no socket: its clients read rows from the units, without the detour
//! through the controller. Calls for operators (snapshots, exports) always use HTTP.

mod calls;

use std::io;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::local::{LocalQueue, Locate};
use super::remote::{RemoteConfig, RemoteQueue};
use super::wire::LocalPlace;
use crate::api::Transport;
use crate::{Queue, QueueError};

/// How a [`QueueClient`] may reach its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Through shared memory on the server's host, and over HTTP otherwise.
    #[default]
    Auto,
    /// Over HTTP.
    Http,
    /// Through shared memory. On another host every call fails.
    SharedMemory,
}

/// A queue of a server, reached over HTTP or through shared memory. Clones use the same connections.
#[derive(Debug, Clone)]
pub struct QueueClient {
    choice: TransportChoice,
    remote: RemoteQueue,
    local: LocalQueue,
    chosen: Arc<Mutex<Option<Transport>>>,
    /// Locked while a call chooses the transport, so that other calls do not ask the server too.
    choosing: Arc<tokio::sync::Mutex<()>>,
}

impl QueueClient {
    /// Makes a client for a server. Nothing is sent yet. Must be called in a tokio runtime.
    pub fn new(config: RemoteConfig, choice: TransportChoice) -> Result<Self, QueueError> {
        let (patience, url) = (config.patience, config.url.clone());
        let remote = RemoteQueue::new(config)?;
        let server = Arc::new(Server { remote: remote.clone() });
        let chosen = match choice {
            TransportChoice::Auto => None,
            TransportChoice::Http => Some(Transport::Http),
            TransportChoice::SharedMemory => Some(Transport::SharedMemory),
        };
        Ok(Self {
            choice,
            remote,
            local: LocalQueue::of_server(server, url, patience)?,
            chosen: Arc::new(Mutex::new(chosen)),
            choosing: Arc::default(),
        })
    }

    /// Waits until dropped leases that were taken over HTTP have been given back.
    pub async fn close(&self) {
        self.remote.close().await;
    }

    /// The queue for the next call.
    async fn queue(&self) -> &dyn Queue {
        match self.known() {
            Some(queue) => queue,
            None => self.choose().await,
        }
    }

    fn known(&self) -> Option<&dyn Queue> {
        match *self.chosen.lock() {
            Some(Transport::SharedMemory) => Some(&self.local),
            Some(Transport::Http | Transport::InProcess) => Some(&self.remote),
            None => None,
        }
    }

    async fn choose(&self) -> &dyn Queue {
        let _choosing = self.choosing.lock().await;
        if let Some(queue) = self.known() {
            return queue;
        }
        let chosen = match self.remote.local_place().await {
            // The caller's own call then waits for the server, or reports that the server cannot answer.
            Err(_) => return &self.remote,
            Ok(None) => Transport::Http,
            Ok(Some(place)) => match self.local.connect().await {
                Ok(()) => Transport::SharedMemory,
                Err(error) => {
                    tracing::debug!(socket = place.socket, %error, "the server is on another host");
                    Transport::Http
                }
            },
        };
        *self.chosen.lock() = Some(chosen);
        self.known().unwrap_or(&self.remote)
    }

    /// Returns the outcome of a call. If the server cannot be reached, it may have moved to another host, so
    /// the next call chooses the transport again.
    fn note<T>(&self, outcome: Result<T, QueueError>) -> Result<T, QueueError> {
        if self.choice == TransportChoice::Auto
            && let Err(QueueError::Unreachable { .. }) = &outcome
        {
            *self.chosen.lock() = None;
        }
        outcome
    }
}

/// Asks a server for its socket.
#[derive(Debug)]
struct Server {
    remote: RemoteQueue,
}

impl Locate for Server {
    fn locate(&self) -> BoxFuture<'_, io::Result<LocalPlace>> {
        async move {
            let place = self.remote.local_place().await.map_err(io::Error::other)?;
            place.ok_or_else(|| io::Error::other("expected a server with shared memory, found one without"))
        }
        .boxed()
    }
}
