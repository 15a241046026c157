//! Measures rows of 1 KB: the cost of calls with little data, and the memory of such rows.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, future, stream};
use rolldock_queue::{Put, Queue, RemoteQueue, Take};
use tokio::time::Instant;

use super::data;
use super::peer::{self, Peer};
use super::rounds::{Rates, Round, median, rounds};
use super::server::Server;
use rolldock_bench_figures::{Bar, Figure};

/// Rows per call, and calls per round.
const BATCHES: [(usize, usize); 3] = [(1, 50), (16, 30), (512, 10)];
/// Number of rows of a small take.
const TAKEN_ROWS: usize = 16;
/// Number of concurrent puts if their latency is not measured.
const PUTS_AT_ONCE: usize = 32;
/// Number of small takes of the peer per round. Our client makes more takes, because the peer's takes are slow.
const PEER_TAKES: usize = 20;

pub(super) async fn rows(quick: bool, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(None)?;
    let client = server.declared("train", 1 << 20).await?;
    let mut figures = Vec::new();
    for (rows, calls) in BATCHES {
        let amount = (rows * calls) as f64;
        let (mut ours, mut theirs) = (Rates::default(), Rates::default());
        for number in 0..=rounds(quick) {
            let their_round = peer.as_mut().map(|peer| peer.small(rows, calls)).transpose()?;
            let our_round = puts_and_takes(&client, rows, calls).await?;
            if number == 0 {
                continue;
            }
            ours.push(amount, our_round);
            if let Some(round) = their_round {
                theirs.push(amount, round);
            }
        }
        let what = format!("rows of 1 KB, {rows} a call, one client");
        let put = Figure::new(format!("put, {what}"), ours.put(), "rows/s");
        let take = Figure::new(format!("take and ack, {what}"), ours.take(), "rows/s");
        for (figure, their_rate) in [(put, theirs.put()), (take, theirs.take())] {
            figures.push(match (peer.is_some(), rows) {
                (false, _) => figure,
                (true, 512) => figure.against_named(peer::NAME, their_rate).bar(Bar::RatioAtLeast(10.0)),
                (true, _) => figure.against_named(peer::NAME, their_rate),
            });
        }
    }
    Ok(figures)
}

async fn puts_and_takes(client: &RemoteQueue, rows: usize, calls: usize) -> anyhow::Result<Round> {
    let batch = data::small(rows)?;
    let started = Instant::now();
    for call in 0..calls {
        client.put("train", Put::group(format!("{rows}-{call}"), batch.clone()), None).await?;
    }
    let put = started.elapsed().as_secs_f64();
    let take = Take::groups("train", 1);
    let started = Instant::now();
    for _ in 0..calls {
        client.take("train", &take).await?.context("nothing to take")?.ack().await?;
    }
    Ok(Round { put, take: started.elapsed().as_secs_f64() })
}

/// The memory of rows that were put one by one, each in its own group.
pub(super) async fn single_rows(quick: bool) -> anyhow::Result<Figure> {
    let rows: usize = if quick { 20_000 } else { 200_000 };
    let server = Server::start(None)?;
    let client = server.declared("train", 1 << 21).await?;
    let row = data::small(1)?;
    let before = server.resident()?;
    let puts =
        (0..rows).map(|number| client.put("train", Put::group(format!("g{number}"), row.clone()), None));
    stream::iter(puts).buffer_unordered(PUTS_AT_ONCE).try_for_each(|_| future::ok(())).await?;
    let held = (server.resident()? - before) / 1e6;
    let payload = (rows * data::payload_bytes(&row)) as f64 / 1e6;
    let name = format!("resident memory for {payload:.0} MB of rows of 1 KB, put one by one");
    Ok(Figure::new(name, held, "MB").against(payload))
}

/// The median time of a take of 16 rows of one column, in microseconds.
async fn take(client: &RemoteQueue, quick: bool) -> anyhow::Result<f64> {
    let take = Take { columns: Some(vec!["reward".to_owned()]), ..Take::groups("train", 1) };
    let mut times = Vec::new();
    for _ in 0..if quick { 150 } else { 400 } {
        let started = Instant::now();
        let lease = client.take("train", &take).await?.context("nothing to take")?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        let found = lease.rows().len();
        anyhow::ensure!(found == TAKEN_ROWS, "expected {TAKEN_ROWS} rows, found {found}");
        lease.nack().await?;
    }
    Ok(median(&times))
}

/// The median round-trip time of a byte to another thread over loopback, in microseconds. It shows the
/// current cost of waking a thread, which varies several-fold with the state of the machine.
fn round_trip() -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read(&mut byte)? > 0 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    drop(stream);
    echo.join().map_err(|_| anyhow::anyhow!("the thread that echoes bytes panicked"))??;
    Ok(median(&times))
}

/// The latency of small takes on an otherwise idle machine. Most of it is the time to wake a sleeping thread,
/// so this time is measured too.
pub(super) async fn quiet_take(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(None)?;
    let client = server.declared("train", 1 << 10).await?;
    client.put("train", Put::group("only", data::small(TAKEN_ROWS)?), None).await?;
    let (mut times, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds(quick) {
        bare.push(round_trip()?);
        times.push(take(&client, quick).await?);
    }
    let fastest = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let what = format!("take of {TAKEN_ROWS} rows, one column, nothing else running");
    let beside = "round trip of a byte over a plain socket";
    Ok(vec![
        Figure::new(format!("{what}: median of the rounds' medians"), median(&times), "us")
            .against_named(beside, median(&bare))
            .bar(Bar::AtMost(150.0)),
        Figure::new(format!("{what}: median of the fastest round"), fastest(&times), "us")
            .against_named(beside, fastest(&bare)),
    ])
}

pub(super) async fn takes(quick: bool, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let resident_rows: usize = if quick { 100_000 } else { 1_000_000 };
    let (empty, full) = (Server::start(None)?, Server::start(None)?);
    let (few, many) = (empty.declared("train", 1 << 21).await?, full.declared("train", 1 << 21).await?);
    let batch = data::small(TAKEN_ROWS)?;
    few.put("train", Put::group("only", batch.clone()), None).await?;
    let before = full.resident()?;
    for number in 0..resident_rows / TAKEN_ROWS {
        many.put("train", Put::group(format!("g{number}"), batch.clone()), None).await?;
    }
    let held = (full.resident()? - before) / 1e6;
    let payload = (resident_rows * data::payload_bytes(&batch) / TAKEN_ROWS) as f64 / 1e6;
    // The measurements take turns, so changes of the machine's load affect all of them alike.
    let (mut alone, mut among, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds(quick) {
        if let Some(peer) = peer.as_mut() {
            theirs.push(median(&peer.small_takes(TAKEN_ROWS, PEER_TAKES)?) * 1e6);
        }
        alone.push(take(&few, quick).await?);
        among.push(take(&many, quick).await?);
    }
    let (alone, among) = (median(&alone), median(&among));
    let what = format!("take of {TAKEN_ROWS} rows, one column");
    let mut small = Figure::new(format!("{what}, median"), alone, "us");
    if peer.is_some() {
        small = small.against_named(peer::NAME, median(&theirs));
    }
    let name = format!("{what} among {resident_rows} rows, median (peer: without the other rows)");
    Ok(vec![
        small,
        Figure::new(name, among, "us").against(alone).bar(Bar::RatioAtMost(1.2)),
        Figure::new(format!("resident memory for {payload:.0} MB of rows of 1 KB, groups of 16"), held, "MB")
            .against(payload)
            .bar(Bar::RatioAtMost(1.5)),
    ])
}
