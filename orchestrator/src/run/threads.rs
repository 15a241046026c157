//! Servers on threads of their own, each with a runtime of its own.
//!
//! Passing a short request from thread to thread costs more than answering it. So a connection stays on the
//! thread that accepted it, and an event of the connection wakes that thread only, if it sleeps at all
//! ([`super::awake`]). Every thread has a socket of its own at the address, and the system spreads
//! connections over them: from a common socket the threads that are awake would accept all connections.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Connections that wait to be taken, each thread.
const BACKLOG: u32 = 4096;

/// Threads that serve; dropping this leaves them to their end.
#[derive(Debug)]
pub struct ServingThreads {
    /// Where they serve.
    pub address: SocketAddr,
    ends: Vec<oneshot::Receiver<anyhow::Result<()>>>,
}

impl ServingThreads {
    /// Has `serve` called on each of `count` threads with the thread's number and its side of the socket; a
    /// thread ends with what that returns.
    pub async fn start(
        name: &str,
        count: usize,
        address: SocketAddr,
        serve: impl Fn(usize, TcpListener) -> LocalBoxFuture<'static, anyhow::Result<()>> + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let cannot = || format!("cannot listen at {address}");
        let listeners = listen(address, count.max(1)).await.with_context(cannot)?;
        let mut bound = address;
        let mut ends = Vec::new();
        for (number, listener) in listeners.into_iter().enumerate() {
            bound = listener.local_addr().with_context(cannot)?;
            let listener = listener.into_std().with_context(cannot)?;
            let serve = serve.clone();
            ends.push(on_thread(&format!("{name}-{number}"), move || {
                async move { serve(number, TcpListener::from_std(listener)?).await }.boxed_local()
            })?);
        }
        Ok(Self { address: bound, ends })
    }

    /// Waits for their ends, at most for `limit`: what takes longer is cut off. Cancel-safe: they go on.
    pub async fn ended(self, limit: Duration) -> anyhow::Result<()> {
        let ending = async {
            for end in self.ends {
                end.await.context("a thread died")??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(limit, ending).await.unwrap_or_else(|_| {
            tracing::warn!(limit_s = limit.as_secs(), "answers that take longer are cut off");
            Ok(())
        })
    }
}

/// Sockets that share an address.
async fn listen(address: SocketAddr, count: usize) -> std::io::Result<Vec<TcpListener>> {
    if address.port() != 0 {
        // Sockets that share an address would share it with another server of this user, too: this one does
        // not.
        drop(TcpListener::bind(address).await?);
    }
    let mut shared = address;
    let mut listeners = Vec::new();
    for _ in 0..count {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(shared)?;
        let listener = socket.listen(BACKLOG)?;
        shared = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Has a future made and run on a thread of its own; what comes is the thread's end.
pub(super) fn on_thread(
    name: &str,
    make: impl FnOnce() -> LocalBoxFuture<'static, anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (ended, end) = oneshot::channel();
    let run = move || {
        let runtime = super::awake::runtime()?;
        let ended = LocalSet::new().block_on(&runtime, async { make().await });
        // What reads from a disk may take its time.
        runtime.shutdown_background();
        ended
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver has gone when the process ends at once.
        let _ = ended.send(run());
    })?;
    Ok(end)
}

/// One for each core.
pub fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
