//! Servers on dedicated threads, each with its own runtime.
//!
//! Passing a short request from thread to thread costs more than answering it. So a connection stays on the
//! thread that accepted it, and an event of the connection wakes only that thread. A thread whose events
//! follow each other closely does not sleep between them unless the cores are busy ([`super::awake`]). Every thread
//! has its own socket at the address, and the system distributes connections over the sockets. With a common
//! socket, the threads that are awake would accept all connections.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// The maximum number of connections per thread that wait to be accepted.
const BACKLOG: u32 = 4096;

/// Threads that serve. Dropping this value does not stop the threads. Each thread ends by itself.
#[derive(Debug)]
pub struct ServingThreads {
    /// The address at which the threads serve.
    pub address: SocketAddr,
    ends: Vec<oneshot::Receiver<anyhow::Result<()>>>,
}

impl ServingThreads {
    /// Starts `count` threads. Each thread calls `serve` with its number and its own listener, and ends with
    /// the result of the call.
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

    /// Waits until all threads have ended, but no longer than `limit`. If a thread takes longer, the end of
    /// the process cuts its answers off. Cancel-safe: the threads continue.
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
        // The sockets below share the address, and would also share it with another server of this user. The
        // socket here does not share it, so its bind fails if there is such a server.
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

/// Creates and runs a future on a new thread. The receiver gets the thread's result when the thread ends.
pub(crate) fn on_thread(
    name: &str,
    make: impl FnOnce() -> LocalBoxFuture<'static, anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (ended, end) = oneshot::channel();
    let run = move || {
        let runtime = crate::awake::runtime()?;
        let ended = LocalSet::new().block_on(&runtime, async { make().await });
        // The shutdown does not wait for blocking work of the runtime, such as a read from a disk.
        runtime.shutdown_background();
        ended
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // If the process ends without waiting for this thread, the receiver was dropped.
        let _ = ended.send(run());
    })?;
    Ok(end)
}

/// The default number of threads: one for each core.
pub fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
