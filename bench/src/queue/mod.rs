//! `queue`: throughput of a served queue, latency of small takes, and memory of rows.
//!
//! The server is a separate process, which most measurements reach over loopback. [`local`] reaches it
//! through shared memory, and [`from_python`] in both ways. [`local`] also measures a queue in the bench's
//! own process, and [`snapshot`] measures only such a queue. The rounds of a figure also measure its peers,
//! such as a plain loopback socket and, with `--peer`, the Python package `transferqueue`. Changes of the
//! machine's load therefore affect all of them alike.
//!
//! Each measurement but that of an empty server has a file ([`large`], [`small`], [`waiting`], [`local`],
//! [`durable`], [`snapshot`], [`growth`], and [`from_python`] with [`processes`] for the sub-command
//! `python`). They share the server ([`server`]), the rows ([`data`]), the rounds ([`rounds`]) and the peer
//! ([`peer`]).

mod data;
mod durable;
mod from_python;
mod growth;
mod large;
mod local;
mod peer;
mod processes;
mod rounds;
mod server;
mod small;
mod snapshot;
mod waiting;

use rolldock::scope::Scope;

use peer::Peer;
use rolldock_bench_figures::{Bar, Figure};
use server::Server;

pub(crate) fn measure(quick: bool, with_peer: bool) -> anyhow::Result<Vec<Figure>> {
    in_a_task(figures(quick, with_peer))
}

/// Measures the queue from its Python client.
pub(crate) fn measure_from_python(quick: bool, with_peer: bool) -> anyhow::Result<Vec<Figure>> {
    from_python::figures(quick, with_peer)
}

/// Measures the memory of a server that does maintenance for `seconds`.
pub(crate) fn measure_growth(seconds: u64) -> anyhow::Result<Vec<Figure>> {
    in_a_task(growth::figures(seconds))
}

/// Runs `figures` in a task, because the thread that blocks on a future does not drive I/O.
fn in_a_task(
    figures: impl Future<Output = anyhow::Result<Vec<Figure>>> + Send + 'static,
) -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        scope.spawn("figures", figures).await?
    })
}

async fn figures(quick: bool, with_peer: bool) -> anyhow::Result<Vec<Figure>> {
    let mut peer = with_peer.then(Peer::start).transpose()?;
    let mut figures = idle(peer.as_mut())?;
    figures.extend(large::figures(quick, peer.as_mut()).await?);
    figures.extend(small::rows(quick, peer.as_mut()).await?);
    figures.extend(on_one_thread(small::takes(quick, peer.as_mut()))?);
    figures.push(small::single_rows(quick).await?);
    drop(peer);
    figures.extend(on_one_thread(small::quiet_take(quick))?);
    figures.push(waiting::takes().await?);
    figures.extend(local::figures(quick).await?);
    figures.extend(snapshot::longest_take(quick).await?);
    figures.push(durable::puts(quick).await?);
    figures.extend(durable::large(quick).await?);
    Ok(figures)
}

/// Runs `work` on a runtime with one thread, which sleeps in the kernel's wait for I/O, like a trainer's
/// loader.
fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::task::block_in_place(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
    })
}

/// The memory of an empty server.
fn idle(peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let megabytes = Server::start(None)?.resident()? / 1e6;
    let figure = Figure::new("a server without rows: resident memory", megabytes, "MB");
    let bar = Bar::AtMost(20.0);
    let Some(peer) = peer else {
        return Ok(vec![figure.bar(bar)]);
    };
    let theirs = peer.memory()?;
    let whose = format!("{} with its controller, two storage units and ray", peer::NAME);
    let once =
        Figure::new("a server without rows: memory, the peer's shared pages counted once", megabytes, "MB");
    Ok(vec![
        figure.against_named(&whose, theirs.resident / 1e6).bar(bar),
        once.against_named(&whose, theirs.proportional / 1e6),
    ])
}
