//! Serves the run's queue to other processes, such as a trainer that takes rows during the run. Also serves
//! the calls of `rolldock fleet`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use rolldock_loadbalancer::admin::{AdminConfig, serve_admin};
use rolldock_loadbalancer::membership::Membership;
use rolldock_queue::{
    LocalListener, LocalPlace, LocalServiceConfig, Partition, ServiceConfig, TransferQueue, answer, serve,
    serve_local,
};
use rolldock_scope::Scope;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::threads::{ServingThreads, on_thread, threads_default};

/// How long the queue is served after its last row was acked. A consumer that asks again in this time learns
/// that the queue has ended.
const LINGER: Duration = Duration::from_secs(5);

/// Binds `address` and serves the queue there until the scope ends. Returns the bound address.
pub async fn serve_queue(
    queue: TransferQueue,
    address: SocketAddr,
    config: ServiceConfig,
    scope: &Scope,
) -> anyhow::Result<SocketAddr> {
    let cannot = || format!("cannot serve the queue at {address}");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    if config.token.is_none() {
        warn_if_open(bound);
    }
    let local = serve_queue_unnamed(queue.clone(), LocalServiceConfig::default(), scope);
    let config = ServiceConfig { local, ..config };
    let end = scope.token().clone();
    scope.spawn_detached("queue server", async move {
        if let Err(error) = serve(queue, listener, config, end).await {
            tracing::error!(%error, "the queue is not served any more");
        }
    });
    Ok(bound)
}

/// Serves the queue at `address` on dedicated threads until the scope ends.
pub async fn serve_queue_on_threads(
    queue: TransferQueue,
    address: SocketAddr,
    config: ServiceConfig,
    scope: &Scope,
) -> anyhow::Result<ServingThreads> {
    let end = scope.token().clone();
    let is_open = config.token.is_none();
    let serve_there = move |number: usize, listener| {
        let (queue, config, end) = (queue.clone(), config.clone(), end.clone());
        async move {
            match number {
                0 => serve(queue, listener, config, end).await?,
                _ => answer(queue, listener, config, end).await?,
            }
            Ok(())
        }
        .boxed_local()
    };
    let threads = ServingThreads::start("rolldock-serve", threads_default(), address, serve_there).await?;
    if is_open {
        warn_if_open(threads.address);
    }
    Ok(threads)
}

fn warn_if_open(address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the queue is served to everyone who can reach this address: no token is set");
    }
}

/// Serves the queue to this host at the socket `path`, on a dedicated thread, until the scope ends.
pub fn serve_queue_locally(
    queue: TransferQueue,
    path: &Path,
    config: LocalServiceConfig,
    scope: &Scope,
) -> anyhow::Result<LocalPlace> {
    let cannot = || format!("cannot serve the queue at {}", path.display());
    let listener = LocalListener::bind(path, config).with_context(cannot)?;
    serve_at(queue, listener, scope)
}

/// Serves the queue to this host at a socket without a file, on a dedicated thread, until the scope ends.
/// Returns `None` if that is impossible: clients of this host then use HTTP.
pub fn serve_queue_unnamed(
    queue: TransferQueue,
    config: LocalServiceConfig,
    scope: &Scope,
) -> Option<LocalPlace> {
    let listener = LocalListener::unnamed(config).context("cannot make a socket");
    match listener.and_then(|listener| serve_at(queue, listener, scope)) {
        Ok(place) => Some(place),
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "clients on this host get no shared memory");
            None
        }
    }
}

fn serve_at(queue: TransferQueue, listener: LocalListener, scope: &Scope) -> anyhow::Result<LocalPlace> {
    let place = listener.place();
    let end = scope.token().clone();
    let serving = move || async move { Ok(serve_local(queue, listener, end).await?) }.boxed_local();
    let ended = on_thread("rolldock-local", serving)?;
    scope.spawn_detached("local queue server", async move {
        if let Err(error) = ended.await.context("a thread died").flatten() {
            tracing::error!(%error, "the queue is not served to this host any more");
        }
    });
    Ok(place)
}

/// Waits until consumers have taken and acked everything, or `interrupted` is cancelled.
pub async fn until_taken(partition: &Partition, at: SocketAddr, interrupted: &CancellationToken) {
    let rows = partition.stats().rows;
    if rows > 0 {
        tracing::info!(
            rows,
            "the steps are done; serving what is left at http://{at} (Ctrl-C leaves it in the run's directory)"
        );
    }
    let taken = async {
        partition.drained().await;
        tokio::time::sleep(LINGER).await;
    };
    let _ = interrupted.run_until_cancelled(taken).await;
}

/// Serves the calls of `rolldock fleet` at `address` until the scope ends or the handle is dropped. Returns
/// the bound address and the handle.
pub async fn serve_fleet(
    members: Membership,
    address: SocketAddr,
    config: AdminConfig,
    scope: &Scope,
) -> anyhow::Result<(SocketAddr, AbortOnDropHandle<()>)> {
    let cannot = || format!("cannot answer for the fleet at {address}");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    config.check(bound)?;
    let serving = serve_admin(members, config, listener, scope.token().clone());
    let handle = scope.spawn("fleet admin server", async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the admin address is not served any more");
        }
    });
    Ok((bound, handle))
}
