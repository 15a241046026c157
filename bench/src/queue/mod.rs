//! The queue room: what a served queue moves, how long a small take takes, what rows cost in memory.
//!
//! The server is a process of its own, reached over loopback, as a trainer on the same machine would. How
//! fast the machine's loopback is at all is measured in the same rounds, and with `--peer` so is the package
//! that others use: its round, ours, the loopback's, so that the machine's moods meet all of them.
//!
//! One file for each thing that is measured ([`large`], [`small`], [`waiting`], [`local`], [`durable`],
//! [`snapshot`]); what they share is the server ([`server`]), the rows ([`data`]), the rounds ([`rounds`])
//! and the peer ([`peer`]).

mod data;
mod durable;
mod large;
mod local;
mod peer;
mod rounds;
mod server;
mod small;
mod snapshot;
mod waiting;

use rolldock::scope::Scope;

use crate::figures::{Bar, Figure};
use peer::Peer;
use server::Server;

pub(crate) fn measure(quick: bool, with_peer: bool) -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        // As a task, as a trainer's loader would be one: the thread that blocks on it is not the one that
        // hears of I/O.
        scope.spawn(figures(quick, with_peer)).await?
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

/// On a thread that does nothing else, as a trainer's loader has one: it sleeps in the system's wait for I/O.
fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::task::block_in_place(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
    })
}

/// What a server costs before it holds anything.
fn idle(peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let megabytes = Server::start(None)?.resident()? / 1e6;
    let figure = Figure::new("a server without rows: resident memory", megabytes, "MB");
    let bar = Bar::AtMost(20.0);
    let Some(peer) = peer else {
        return Ok(vec![figure.bar(bar)]);
    };
    let theirs = peer.memory()?;
    let whose = format!("{} with its controller, two storage units and ray", peer::NAME);
    let once = Figure::new("the same, what the peer's processes share counted once", megabytes, "MB");
    Ok(vec![
        figure.against_named(&whose, theirs.resident / 1e6).bar(bar),
        once.against_named(&whose, theirs.proportional / 1e6),
    ])
}
