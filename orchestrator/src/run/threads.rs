//! Servers on threads of their own, each with a runtime of its own.
//!
//! What is short and often costs most in being passed from thread to thread: here a connection stays on the thread that
//! took it, and whoever wakes it wakes no other, if it sleeps at all ([`super::awake`]). All threads take connections from one socket, so that a second server at
//! the same address is told that it is in use.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures::future::LocalBoxFuture;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Threads that serve; dropping this leaves them to their end.
#[derive(Debug)]
pub struct ServingThreads {
    /// Where they serve.
    pub address: SocketAddr,
    ends: Vec<oneshot::Receiver<anyhow::Result<()>>>,
}

impl ServingThreads {
    /// Has `serve` called on each of `count` threads with the thread's number and its side of the socket; a thread ends
    /// with what that returns.
    pub async fn start(
        name: &str,
        count: usize,
        address: SocketAddr,
        serve: impl Fn(usize, TcpListener) -> LocalBoxFuture<'static, anyhow::Result<()>> + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let cannot = || format!("cannot listen at {address}");
        let first = TcpListener::bind(address).await.with_context(cannot)?.into_std().with_context(cannot)?;
        let address = first.local_addr().with_context(cannot)?;
        let mut ends = Vec::new();
        for number in 0..count.max(1) {
            let (listener, serve) = (first.try_clone().with_context(cannot)?, serve.clone());
            let (ended, end) = oneshot::channel();
            std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || {
                // Nobody listens any more when the process is in a hurry to end.
                let _ = ended.send(run(number, listener, serve));
            })?;
            ends.push(end);
        }
        Ok(Self { address, ends })
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

fn run(
    number: usize,
    listener: std::net::TcpListener,
    serve: impl Fn(usize, TcpListener) -> LocalBoxFuture<'static, anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = super::awake::runtime()?;
    let ended =
        LocalSet::new().block_on(&runtime, async { serve(number, TcpListener::from_std(listener)?).await });
    // What reads from a disk may take its time.
    runtime.shutdown_background();
    ended
}

/// One for each core.
pub fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
