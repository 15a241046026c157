//! `gateway`: what the gateway adds to a turn, and what open trajectories hold in memory and on disk.
//!
//! The gateway is the binary `rolldock` in a process of its own. The process of the bench has the agents and
//! an engine. The engine measures its own work, from the last byte of a request to the first byte of its
//! answer. The engine shares no clock with the gateway, and no code except the tokenizer and the chat template. The
//! time of a turn beyond the engine is the time that an agent waits minus the work of the engine. This time includes
//! the connections on both sides and the agent's HTTP client. The agent whose turns are timed has one thread,
//! as most agents do, and the engine has one thread, so the time includes no hand-over between threads of the
//! bench. After each turn the agent sends its next request directly to an endpoint of the engine that does no
//! work. The time of this **bare call** belongs to the bench and the machine, and shows how fast the machine
//! is.
//!
//! The engine draws random ids. Their text usually encodes to other ids. For each trajectory,
//! the engine records which ids were sent and drawn, and counts the ids that a later prompt lacks or changes.

mod agent;
mod engine;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock::scope::Scope;
use tokio::runtime::Builder;

use crate::process::Process;
use agent::{Agent, Need};
use engine::{Engine, Work};
use rolldock_bench_figures::{Bar, Figure};

/// Sampled tokens of each turn.
const SAMPLED: usize = 200;
/// Tokens of the prompt of a turn whose time is measured.
const CONTEXT: usize = 2_000;
/// Turns that are made before the measured ones.
const WARM_UP: usize = 20;
/// The number of open trajectories.
const OPEN: usize = 5_000;
/// The number of turns of each open trajectory.
const TURNS: usize = 20;
/// The number of agents that call at the same time while the open trajectories are made.
const AGENTS: usize = 16;

/// The memory that [`OPEN`] trajectories may take, in bytes.
const MEMORY: f64 = 400e6;

/// A gateway in a process of its own.
struct Gateway {
    process: Process,
    url: String,
    dir: PathBuf,
}

impl Gateway {
    fn start(engine: &Engine, dir: &Path, durability: &str) -> anyhow::Result<Self> {
        let mut arguments = vec![OsStr::new("gateway"), OsStr::new("--out"), dir.as_os_str()];
        for words in [
            ["--endpoint", &engine.url],
            ["--listen", "127.0.0.1:0"],
            ["--tokenizer", "builtin"],
            ["--durability", durability],
            // No trajectory ends while the others are made.
            ["--idle", "100000"],
            ["--wall", "100000"],
        ] {
            arguments.extend(words.map(OsStr::new));
        }
        let (process, line) = Process::start(&arguments)?;
        let url = line.split(' ').next().filter(|url| url.starts_with("http://"));
        let url = url.with_context(|| format!("the gateway said {line:?}"))?.to_owned();
        Ok(Self { process, url, dir: dir.to_owned() })
    }

    fn log_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.dir.join("trajectories.log").metadata()?.len())
    }
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    // If there were a second thread, tokio would pass each event of a connection to that thread.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let scope = Scope::new();
    let engine = runtime.block_on(Engine::start(&scope))?;
    let agent = Builder::new_current_thread().enable_all().build()?;
    let mut figures = agent.block_on(overhead(&engine, quick))?;
    figures.extend(runtime.block_on(open_trajectories(&engine, &scope, quick))?);
    let checked = engine.checked();
    figures.push(
        Figure::new("tokens that a later prompt lacks or changes", checked.changed as f64, "")
            .bar(Bar::AtMost(0.0)),
    );
    let other = checked.not_canonical as f64 / checked.turns.max(1) as f64;
    figures.push(
        Figure::new("turns whose text has other tokens when it is encoded again", other, "of turns")
            .bar(Bar::AtLeast(0.99)),
    );
    runtime.block_on(scope.close(Duration::from_secs(1)));
    Ok(figures)
}

/// The times of turns, in milliseconds.
#[derive(Default)]
struct Times {
    beyond: Vec<f64>,
    render: Vec<f64>,
    generate: Vec<f64>,
    derender: Vec<f64>,
    bare: Vec<f64>,
}

impl Times {
    fn add(&mut self, whole: Duration, work: Work, bare: Duration) {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        self.bare.push(ms(bare));
        self.beyond.push(ms(whole) - ms(work.render) - ms(work.generate) - ms(work.derender));
        self.render.push(ms(work.render));
        self.generate.push(ms(work.generate));
        self.derender.push(ms(work.derender));
    }
}

fn at(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

async fn overhead(engine: &Engine, quick: bool) -> anyhow::Result<Vec<Figure>> {
    let turns = if quick { 100 } else { 500 };
    let mut figures = Vec::new();
    for durability in ["os", "fsync"] {
        let folder = tempfile::tempdir()?;
        let gateway = Gateway::start(engine, folder.path(), durability)?;
        let mut times = Times::default();
        for turn in 0..WARM_UP + turns {
            let mut agent = Agent::open(&gateway.url, turn).await?;
            agent.ask_for_context(CONTEXT - SAMPLED);
            agent.turn(SAMPLED).await?;
            let before = engine.work();
            let whole = agent.turn(SAMPLED).await?;
            let work = engine.work() - before;
            let bare = agent.bare_call(&engine.url).await?;
            if turn >= WARM_UP {
                times.add(whole, work, bare);
            }
        }
        let name = |what: &str| format!("turn of {CONTEXT} tokens, durability {durability}: {what}");
        let p50 = Figure::new(name("beyond the engine, p50"), at(&times.beyond, 0.5), "ms");
        let is_os = durability == "os";
        figures.push(if is_os { p50.bar(Bar::AtMost(1.5)) } else { p50 });
        figures.push(Figure::new(name("beyond the engine, p99"), at(&times.beyond, 0.99), "ms"));
        if is_os {
            figures.push(Figure::new(
                "a bare call of the engine by the agent, p50",
                at(&times.bare, 0.5),
                "ms",
            ));
            for (call, values) in
                [("render", &times.render), ("generate", &times.generate), ("derender", &times.derender)]
            {
                let figure = format!("the engine's own work, {call}, p50");
                figures.push(Figure::new(figure, at(values, 0.5), "ms"));
            }
        }
    }
    Ok(figures)
}

/// Makes `open` trajectories of [`TURNS`] turns each. The trajectories stay open.
async fn work(gateway: &Gateway, scope: &Scope, open: usize) -> anyhow::Result<Need> {
    let url: Arc<str> = gateway.url.as_str().into();
    let working: Vec<_> = (0..AGENTS)
        .map(|agent| {
            let (url, share) = (Arc::clone(&url), (agent..open).step_by(AGENTS));
            scope.spawn("agents", async move {
                let mut need = Need::default();
                for number in share {
                    let mut agent = Agent::open(&url, number).await?;
                    for _ in 0..TURNS {
                        agent.turn(SAMPLED).await?;
                    }
                    need += agent.need();
                }
                anyhow::Ok(need)
            })
        })
        .collect();
    let mut need = Need::default();
    for done in working {
        need += done.await??;
    }
    Ok(need)
}

async fn open_trajectories(engine: &Engine, scope: &Scope, quick: bool) -> anyhow::Result<Vec<Figure>> {
    let open = if quick { OPEN / 10 } else { OPEN };
    let folder = tempfile::tempdir()?;
    let gateway = Gateway::start(engine, folder.path(), "os")?;
    engine.renders_only_beginnings();
    // Loads buffers and the tables of the tokenizer into memory before anything is counted.
    work(&gateway, scope, AGENTS).await?;
    let (resident, log, processor) =
        (gateway.process.memory("VmRSS")?, gateway.log_bytes()?, gateway.process.cpu_seconds()?);
    let need = work(&gateway, scope, open).await?;
    anyhow::ensure!(need.sampled == open * TURNS * SAMPLED, "{} tokens were sampled", need.sampled);
    let after = gateway.process.memory("VmRSS")?;
    let turns = (open * TURNS) as f64;
    let spent = (gateway.process.cpu_seconds()? - processor) / turns;
    let log = (gateway.log_bytes()? - log) as f64 / open as f64;
    let name = |what: &str| format!("{open} open trajectories of {TURNS} turns: {what}");
    let most = MEMORY / OPEN as f64 * open as f64;
    let memory = if quick {
        // With so few trajectories, the binary itself takes a large part of the memory.
        Figure::new(name("resident memory beyond the idle gateway"), (after - resident) / 1e6, "MB")
    } else {
        Figure::new(name("resident memory of the gateway"), after / 1e6, "MB")
    };
    let bytes = Figure::new(name("bytes of one in the log"), log, "bytes");
    Ok(vec![
        memory.bar(Bar::AtMost(most / 1e6)),
        Figure::new(name("memory of one beyond the idle gateway"), (after - resident) / open as f64, "bytes"),
        bytes
            .against_named("its tokens and texts", need.bytes() as f64 / open as f64)
            .bar(Bar::RatioAtMost(1.25)),
        Figure::new(name("CPU of the gateway for a turn"), spent * 1e3, "ms"),
    ])
}
