//! Measures a training batch of 29 MB: the rates of putting and taking it, and the memory of many such
//! batches.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Context;
use arrow_array::RecordBatch;
use rolldock_queue::{Put, Queue, RemoteQueue, Take};
use tokio::time::Instant;

use super::data::{self, LARGE_ROWS};
use super::peer::{self, Peer};
use super::rounds::{Rates, Round, median, rounds};
use super::server::Server;
use rolldock_bench_figures::{Bar, Figure};

pub(super) async fn figures(quick: bool, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(None)?;
    let client = server.declared("train", 1 << 20).await?;
    let batch = data::large()?;
    let bytes = data::payload_bytes(&batch) as f64;
    let (mut limits, mut ours, mut theirs) = (Vec::new(), Rates::default(), Rates::default());
    for number in 0..=rounds(quick) {
        let their_round = peer.as_mut().map(|peer| peer.large()).transpose()?;
        let our_round = put_and_take(&client, &batch, number).await?;
        let limit = loopback(bytes as usize)?;
        if number == 0 {
            continue;
        }
        limits.push(limit / 1e9);
        ours.push(bytes / 1e9, our_round);
        if let Some(round) = their_round {
            theirs.push(bytes / 1e9, round);
        }
    }
    let limit = median(&limits);
    let what = format!("{LARGE_ROWS} rows of {:.0} KB over loopback", bytes / LARGE_ROWS as f64 / 1e3);
    let put = Figure::new(format!("put, {what}"), ours.put(), "GB/s");
    let take = Figure::new(format!("take with data, {what}"), ours.take(), "GB/s");
    let mut figures = vec![
        put.clone().against_named("a bare socket", limit).bar(Bar::RatioAtLeast(0.5)),
        take.clone().against_named("a bare socket", limit),
    ];
    if peer.is_some() {
        figures.push(put.against_named(peer::NAME, theirs.put()).bar(Bar::RatioAtLeast(1.5)));
        figures.push(take.against_named(peer::NAME, theirs.take()).bar(Bar::RatioAtLeast(4.0)));
    }
    figures.push(resident(quick, &batch).await?);
    Ok(figures)
}

async fn put_and_take(client: &RemoteQueue, batch: &RecordBatch, number: usize) -> anyhow::Result<Round> {
    let started = Instant::now();
    client.put("train", Put::group(format!("r{number}"), batch.clone()), None).await?;
    let put = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let lease = client
        .take("train", &Take::groups("train", 1))
        .await?
        .context("expected the rows that were just put, found none")?;
    anyhow::ensure!(
        lease.rows().len() == LARGE_ROWS,
        "expected a lease of {LARGE_ROWS} rows, found {}",
        lease.rows().len()
    );
    let take = started.elapsed().as_secs_f64();
    lease.ack().await?;
    Ok(Round { put, take })
}

/// Bytes per second through a plain loopback socket.
fn loopback(bytes: usize) -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let reading = std::thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(total),
                count => total += count,
            }
        }
    });
    let payload = vec![7; 1 << 20];
    let mut stream = TcpStream::connect(address)?;
    let started = Instant::now();
    for _ in 0..bytes.div_ceil(payload.len()) {
        stream.write_all(&payload)?;
    }
    drop(stream);
    let read = reading.join().map_err(|_| anyhow::anyhow!("the reader died"))??;
    Ok(read as f64 / started.elapsed().as_secs_f64())
}

/// The memory of rows that no task takes. The server is a fresh one, because a server that has freed rows may
/// keep some memory.
async fn resident(quick: bool, batch: &RecordBatch) -> anyhow::Result<Figure> {
    let server = Server::start(None)?;
    let client = server.declared("train", 1 << 20).await?;
    let bytes = data::payload_bytes(batch) as f64;
    let target = if quick { 250e6 } else { 1e9 };
    let before = server.resident()?;
    let batches = (target / bytes).ceil() as usize;
    for number in 0..batches {
        client.put("train", Put::group(format!("m{number}"), batch.clone()), None).await?;
    }
    let held = server.resident()? - before;
    let payload = batches as f64 * bytes / 1e6;
    let name = format!("resident memory for {payload:.0} MB of rows of 57 KB");
    Ok(Figure::new(name, held / 1e6, "MB").against(payload).bar(Bar::RatioAtMost(1.15)))
}
