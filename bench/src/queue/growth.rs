//! Measures whether the memory of a server grows while it does maintenance for a long time.
//!
//! Clients take snapshots and verify, each at its own pace. The queue is on disk and almost empty, but rows
//! are put and removed all the time. The calls run in short-lived threads with buffers of very different
//! sizes, a load for which allocators keep most memory.

use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use rolldock_queue::{Put, Queue, RemoteQueue, Take};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::data;
use super::server::Server;
use crate::figures::{Bar, Figure};

/// Number of clients that take a snapshot and verify once a second.
const MAINTAINERS: usize = 4;
/// Number of groups that are put, taken and acked each second.
const GROUPS: usize = 10;
const GROUP_ROWS: usize = 16;
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
        Figure::new(format!("{what} before"), before, "MB"),
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

async fn train(client: RemoteQueue, mut pace: Pace) -> anyhow::Result<()> {
    let (rows, take) = (data::small(GROUP_ROWS)?, Take::groups("train", 1));
    let mut number = 0_u64;
    while pace.goes_on().await {
        for _ in 0..GROUPS {
            client.put("train", Put::group(format!("group {number}"), rows.clone()), None).await?;
            number += 1;
            client.take("train", &take).await?.context("nothing to take")?.ack().await?;
        }
    }
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
