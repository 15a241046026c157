//! Measures whether the memory of a server grows while it does maintenance for a long time.
//!
//! Clients take snapshots and verify, each at its own pace. The queue is on disk and almost empty, but rows
//! are put and removed all the time. The calls run in short-lived threads with buffers of very different
//! sizes. With such a load, allocators keep the most memory.
//!
//! A queue remembers the names of the latest groups and the tokens of the latest puts, up to a limit. This
//! memory has a bound, so the bench puts as many groups as a queue remembers before it measures.

use std::time::Duration;

use anyhow::Context;
use arrow_array::RecordBatch;
use futures::future::try_join_all;
use rolldock_queue::{Put, Queue, RemoteQueue, Take};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::data;
use super::server::Server;
use rolldock_bench_figures::{Bar, Figure};

/// Number of clients that take a snapshot and verify once a second.
const MAINTAINERS: usize = 4;
/// Number of groups that are put, taken and acked each second.
const GROUPS: usize = 10;
const GROUP_ROWS: usize = 16;
/// The number of groups that a queue remembers, as `docs/src/queue-operations.md` says, and a few more.
const REMEMBERED_GROUPS: usize = 66_000;
/// Number of clients that put these groups.
const FILLERS: usize = 8;
/// The largest allowed ratio of the last third to the middle third. The first third is the warm-up.
const GROWTH_MAX: f64 = 1.05;
/// Number of points of the printed curve.
const POINTS: u64 = 30;

/// The figures after `seconds` of work. The curve is printed while it is measured.
pub(super) async fn figures(seconds: u64) -> anyhow::Result<Vec<Figure>> {
    anyhow::ensure!(seconds >= POINTS, "expected at least {POINTS} seconds, found {seconds}");
    let dir = tempfile::tempdir()?;
    let server = Server::start(Some(dir.path()))?;
    let before = server.resident()? / 1e6;
    server.declared("train", 1 << 12).await?;
    let clients = (0..FILLERS).map(|_| server.client()).collect::<anyhow::Result<Vec<_>>>()?;
    try_join_all(clients.into_iter().enumerate().map(|(filler, client)| fill(client, filler))).await?;
    let filled = server.resident()? / 1e6;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut maintaining = Vec::new();
    for _ in 0..MAINTAINERS {
        maintaining.push(maintain(server.client()?, Pace::until(end)));
    }
    let training = train(server.client()?, Pace::until(end));
    let watching = watch(&server, Pace::until(end), seconds);
    let (_, (), curve) = tokio::try_join!(try_join_all(maintaining), training, watching)?;
    let third = curve.len() / 3;
    let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    let (middle, last) = (most(&curve[third..2 * third]), most(&curve[2 * third..]));
    let what = format!("snapshots and verifies for {seconds} s over an almost empty queue: resident memory");
    Ok(vec![
        Figure::new("an empty server: resident memory", before, "MB"),
        Figure::new(
            format!("a server that remembers {REMEMBERED_GROUPS} groups: resident memory"),
            filled,
            "MB",
        ),
        Figure::new(format!("{what}, most in the last third"), last, "MB")
            .against_named("the middle third", middle)
            .bar(Bar::RatioAtMost(GROWTH_MAX)),
    ])
}

/// A timer that ticks once a second until its end.
struct Pace {
    ticks: Interval,
    end: Instant,
}

impl Pace {
    fn until(end: Instant) -> Self {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, end }
    }

    /// Waits for the next second; `false` at the end.
    async fn goes_on(&mut self) -> bool {
        self.ticks.tick().await < self.end
    }
}

async fn maintain(client: RemoteQueue, mut pace: Pace) -> anyhow::Result<()> {
    while pace.goes_on().await {
        client.snapshot(None, std::io::sink()).await?;
        let report = client.verify().await?;
        anyhow::ensure!(report.is_sound(), "{report:?}");
    }
    Ok(())
}

/// Puts and consumes one client's share of the groups that a queue remembers.
async fn fill(client: RemoteQueue, filler: usize) -> anyhow::Result<()> {
    let rows = data::small(1)?;
    for number in 0..REMEMBERED_GROUPS / FILLERS {
        consume_group(&client, format!("filler {filler} {number}"), rows.clone()).await?;
    }
    Ok(())
}

async fn train(client: RemoteQueue, mut pace: Pace) -> anyhow::Result<()> {
    let rows = data::small(GROUP_ROWS)?;
    let mut number = 0_u64;
    while pace.goes_on().await {
        for _ in 0..GROUPS {
            consume_group(&client, format!("group {number}"), rows.clone()).await?;
            number += 1;
        }
    }
    Ok(())
}

/// Puts a group, and consumes a group, which another client may have put.
async fn consume_group(client: &RemoteQueue, name: String, rows: RecordBatch) -> anyhow::Result<()> {
    client.put("train", Put::group(name, rows), None).await?;
    client.take("train", &Take::groups("train", 1)).await?.context("nothing to take")?.ack().await?;
    Ok(())
}

/// Measures the server's resident memory in MB once a second. Prints some of the values.
async fn watch(server: &Server, mut pace: Pace, seconds: u64) -> anyhow::Result<Vec<f64>> {
    let mut curve = Vec::new();
    println!("| seconds | resident MB |\n|---|---|");
    while pace.goes_on().await {
        let now = server.resident()? / 1e6;
        curve.push(now);
        if (curve.len() as u64).is_multiple_of(seconds / POINTS) {
            println!("| {} | {now:.1} |", curve.len());
        }
    }
    println!();
    Ok(curve)
}
