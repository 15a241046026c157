//! `python`: measures the queue from the Python client, and the Python package `transferqueue` as its peer.
//!
//! A script measures each of them. Both scripts run in the peer's environment, because it has torch. `ROLLDOCK_WHEEL`
//! may name the wheel of the client; otherwise a new wheel is built. The wheel is installed in a separate folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::data::{LARGE_ROWS, PROMPT_TOKENS, RESPONSE_TOKENS, SMALL_BYTES};
use super::peer::{self, Peer};
use super::processes;
use super::rounds::{Rates, Round, median, rounds};
use super::server::Server;
use rolldock_bench_figures::python::{Script, python, run};
use rolldock_bench_figures::{Bar, Figure};

const SCRIPT: &str = include_str!("../../peers/rolldock_client.py");
const NAME: &str = "the Python client";
/// The ways to reach the server: the way of clients on the server's host, and the way of other clients.
const WAYS: [&str; 2] = ["shared_memory", "http"];
/// Rows of 1 KB in a call, and calls in a round.
const SMALL_CALL: (usize, usize) = (512, 10);
/// Rows of a small take.
const TAKEN_ROWS: usize = 16;
/// Small takes in a round. The peer makes fewer, because its takes are slow.
const TAKES: usize = 100;
const PEER_TAKES: usize = 20;

/// The script that measures our client, and the server that the client calls.
struct Client {
    script: Script,
    _server: Server,
    _site: TempDir,
}

#[derive(Deserialize)]
struct Seconds {
    seconds: f64,
}

impl Client {
    fn start(environment: &Path, wheel: &Path) -> anyhow::Result<Self> {
        let site = tempfile::tempdir()?;
        let mut install = Command::new(python(environment));
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).args([site.path(), wheel]);
        run(&mut install).with_context(|| format!("cannot install {}", wheel.display()))?;
        let server = Server::start(None)?;
        let arguments = [site.path().as_os_str(), server.url().as_ref()];
        let script = Script::start(NAME, &python(environment), SCRIPT, &arguments)?;
        Ok(Self { script, _server: server, _site: site })
    }

    fn ask<T: DeserializeOwned>(&mut self, command: &Value) -> anyhow::Result<T> {
        self.script.ask(command)
    }

    fn large(&mut self, way: &str) -> anyhow::Result<Round> {
        self.ask(&json!({
            "do": "large", "way": way, "rows": LARGE_ROWS, "prompt_tokens": PROMPT_TOKENS,
            "response_tokens": RESPONSE_TOKENS,
        }))
    }

    fn small(&mut self, way: &str) -> anyhow::Result<Round> {
        let (rows, calls) = SMALL_CALL;
        self.ask(
            &json!({"do": "small", "way": way, "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls}),
        )
    }

    fn fill(&mut self, partition: &str, groups: usize) -> anyhow::Result<()> {
        let command = json!({
            "do": "fill", "partition": partition, "groups": groups, "rows": TAKEN_ROWS,
            "payload_bytes": SMALL_BYTES,
        });
        self.ask::<Value>(&command).map(drop)
    }

    /// The median time of a small take, in microseconds.
    fn small_take(&mut self, way: &str, partition: &str) -> anyhow::Result<f64> {
        #[derive(Deserialize)]
        struct Takes {
            seconds: Vec<f64>,
        }
        let command = json!({"do": "small_takes", "way": way, "partition": partition, "calls": TAKES});
        Ok(median(&self.ask::<Takes>(&command)?.seconds) * 1e6)
    }
}

/// The wheel that `ROLLDOCK_WHEEL` names, or a new one in `folder`.
fn wheel(folder: &Path) -> anyhow::Result<PathBuf> {
    if let Some(wheel) = std::env::var_os("ROLLDOCK_WHEEL").filter(|wheel| !wheel.is_empty()) {
        return Ok(wheel.into());
    }
    eprintln!("building the wheel; ROLLDOCK_WHEEL can name one that was built before");
    let package = rolldock_bench_figures::checkout().join("python");
    let mut build = Command::new("python3");
    build.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]).args([folder, &package]);
    run(&mut build).context("cannot build the wheel")?;
    let mut built = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    built.next().context("expected a wheel from pip, found no file")
}

pub(super) fn figures(quick: bool, with_peer: bool) -> anyhow::Result<Vec<Figure>> {
    let environment = peer::environment()?;
    let folder = tempfile::tempdir()?;
    let wheel = wheel(folder.path())?;
    let bytes = std::fs::metadata(&wheel).with_context(|| format!("cannot read {}", wheel.display()))?.len();
    let mut peer = with_peer.then(Peer::start).transpose()?;
    let mut client = Client::start(&environment, &wheel)?;
    let mut figures = Vec::new();
    figures.extend(large(quick, &mut client, peer.as_mut())?);
    figures.extend(small(quick, &mut client, peer.as_mut())?);
    figures.extend(small_takes(quick, &mut client, peer.as_mut())?);
    drop(peer);
    figures.extend(processes::figures(quick, &mut client.script)?);
    figures.extend(imports(&mut client)?);
    figures.push(Figure::new("the wheel", bytes as f64 / 1e6, "MB").bar(Bar::AtMost(25.0)));
    Ok(figures)
}

/// The batch of 29 MB, as tensors of torch.
fn large(quick: bool, client: &mut Client, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let bytes = LARGE_ROWS * ((PROMPT_TOKENS + RESPONSE_TOKENS) * 8 + RESPONSE_TOKENS * 4 + 4);
    let gigabytes = bytes as f64 / 1e9;
    let (mut ours, mut theirs) = ([Rates::default(), Rates::default()], Rates::default());
    let (mut copies, mut takes) = (Vec::new(), Vec::new());
    for number in 0..=rounds(quick) {
        let their_round = peer.as_mut().map(|peer| peer.large()).transpose()?;
        let copy: Seconds = client.ask(&json!({"do": "copy", "bytes": bytes}))?;
        for (way, rates) in WAYS.into_iter().zip(&mut ours) {
            let round = client.large(way)?;
            // The first round warms up.
            if number > 0 {
                rates.push(gigabytes, round);
                if way == WAYS[0] {
                    takes.push(round.take * 1e3);
                }
            }
        }
        if number > 0 {
            copies.push(copy.seconds * 1e3);
            theirs.extend(their_round.map(|round| (gigabytes, round)));
        }
    }
    let mut figures = Vec::new();
    for (way, rates) in WAYS.into_iter().zip(&ours) {
        let is_chosen = way == WAYS[0];
        let what = format!("29 MB as torch tensors, {}", way.replace('_', " "));
        let put = Figure::new(format!("put of {what}"), rates.put(), "GB/s");
        let take = Figure::new(format!("take of {what}"), rates.take(), "GB/s");
        for (figure, their_rate, bar) in [(put, theirs.put(), 3.0), (take, theirs.take(), 5.0)] {
            let figure = if peer.is_some() { figure.against_named(peer::NAME, their_rate) } else { figure };
            let has_bar = peer.is_some() && is_chosen;
            figures.push(if has_bar { figure.bar(Bar::RatioAtLeast(bar)) } else { figure });
        }
    }
    let take = Figure::new("take of 29 MB, shared memory: median time", median(&takes), "ms");
    figures.push(take.against_named("a copy of 29 MB", median(&copies)).bar(Bar::RatioAtMost(1.5)));
    Ok(figures)
}

fn small(quick: bool, client: &mut Client, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let (rows, calls) = SMALL_CALL;
    let amount = (rows * calls) as f64;
    let (mut ours, mut theirs) = ([Rates::default(), Rates::default()], Rates::default());
    for number in 0..=rounds(quick) {
        let their_round = peer.as_mut().map(|peer| peer.small(rows, calls)).transpose()?;
        for (way, rates) in WAYS.into_iter().zip(&mut ours) {
            let round = client.small(way)?;
            if number > 0 {
                rates.push(amount, round);
            }
        }
        if number > 0 {
            theirs.extend(their_round.map(|round| (amount, round)));
        }
    }
    let mut figures = Vec::new();
    for (way, rates) in WAYS.into_iter().zip(&ours) {
        let what = format!("rows of 1 KB, {rows} a call, {}", way.replace('_', " "));
        let put = Figure::new(format!("put, {what}"), rates.put(), "rows/s");
        let take = Figure::new(format!("take and ack, {what}"), rates.take(), "rows/s");
        for (figure, their_rate) in [(put, theirs.put()), (take, theirs.take())] {
            let figure = if peer.is_some() { figure.against_named(peer::NAME, their_rate) } else { figure };
            let has_bar = peer.is_some() && way == WAYS[0];
            figures.push(if has_bar { figure.bar(Bar::RatioAtLeast(15.0)) } else { figure });
        }
    }
    Ok(figures)
}

fn small_takes(quick: bool, client: &mut Client, mut peer: Option<&mut Peer>) -> anyhow::Result<Vec<Figure>> {
    let resident_rows: usize = if quick { 100_000 } else { 1_000_000 };
    client.fill("few", 1)?;
    client.fill("many", resident_rows / TAKEN_ROWS)?;
    let (mut alone, mut among, mut over_http, mut theirs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds(quick) {
        if let Some(peer) = peer.as_mut() {
            theirs.push(median(&peer.small_takes(TAKEN_ROWS, PEER_TAKES)?) * 1e6);
        }
        alone.push(client.small_take(WAYS[0], "few")?);
        among.push(client.small_take(WAYS[0], "many")?);
        over_http.push(client.small_take(WAYS[1], "few")?);
    }
    let what = format!("take of {TAKEN_ROWS} rows, one column, median");
    let mut figures = Vec::new();
    for (way, times) in [("shared memory", &alone), ("http", &over_http)] {
        let figure = Figure::new(format!("{what}, {way}"), median(times), "us");
        figures.push(match peer.is_some() {
            true => figure.against_named(peer::NAME, median(&theirs)).bar(Bar::RatioAtMost(0.1)),
            false => figure,
        });
    }
    let figure = Figure::new(format!("{what}, among {resident_rows} rows"), median(&among), "us");
    figures.push(figure.against_named("alone", median(&alone)).bar(Bar::RatioAtMost(1.2)));
    Ok(figures)
}

fn imports(client: &mut Client) -> anyhow::Result<Vec<Figure>> {
    #[derive(Deserialize)]
    struct Import {
        seconds: f64,
        bytes: f64,
    }
    let mut imports = Vec::new();
    for _ in 0..5 {
        imports.push(client.ask::<Import>(&json!({"do": "imported"}))?);
    }
    let seconds: Vec<f64> = imports.iter().map(|import| import.seconds).collect();
    let bytes: Vec<f64> = imports.iter().map(|import| import.bytes).collect();
    Ok(vec![
        Figure::new("import rolldock", median(&seconds), "s").bar(Bar::AtMost(0.1)),
        Figure::new("import rolldock: memory", median(&bytes) / 1e6, "MB").bar(Bar::AtMost(30.0)),
    ])
}
