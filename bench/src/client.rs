//! `client`: the cost of a request in this process, while it runs and after it has finished, and the CPU time
//! of a run that only waits.
//!
//! - `reading`: the time to read an answer, compared with the JSON libraries;
//! - `receiving`: the CPU time of a request, compared with a client that drops the bytes of the answer;
//! - `bodies`, `typed`, `replay`: the answers, their types for the libraries, and the server that sends them.

mod reading;
mod receiving;
mod replay;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use rolldock::engine::http::{HttpConfig, HttpEngine};
use rolldock::engine::{Engine, GenerateRequest, SamplingParams};
use rolldock::rollout::{
    AgentLoopManager, CarryLimits, EarlyStop, Fill, Grading, Launch, OnStop, Phase, PromptFeed, RequestShape,
    RolloutConfig, RolloutParts, RolloutTimeouts, Staleness, Stragglers,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, Priority, ServerSpec};
use rolldock_reward::{Advantage, Estimator, Shaping};
use tokio::time::Instant;

use crate::serve::{MODEL, ServeArgs, Served};
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::held_bytes;
use rolldock_bench_figures::{Bar, Figure};
use rolldock_bench_rollouts::workload::{LastToken, Numbered, column_bytes};

pub(crate) use replay::{ReplayArgs, serve as replay};

const TOKENS: u32 = 8192;
const PROMPT_TOKENS: usize = 256;
const SERVERS: usize = 4;
const RUNNING: usize = 1024;

/// Number of tasks that share the requests, like a run's workers.
const WORKERS: usize = 8;
const BODY_BYTES_MAX: usize = 64 << 20;

pub(crate) fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut figures = reading::measure(quick)?;
    runtime.block_on(async {
        figures.extend(receiving::measure(quick).await?);
        let answering = Served::start(&ServeArgs {
            servers: SERVERS,
            tokens: TOKENS,
            max_num_seqs: (RUNNING / SERVERS) as u32,
            time_scale: 0.005,
            stall: false,
        })?;
        figures.push(cpu_per_request(&answering.urls, quick).await?);
        figures.push(memory_per_finished_sample(&answering.urls).await?);
        drop(answering);
        let silent = Served::start(&ServeArgs {
            servers: 16,
            tokens: TOKENS,
            max_num_seqs: 256,
            time_scale: 1.0,
            stall: true,
        })?;
        figures.push(memory_per_running_sample(&silent.urls).await?);
        figures.push(waiting_run(&silent.urls, quick).await?);
        anyhow::Ok(())
    })?;
    Ok(figures)
}

fn sampling() -> SamplingParams {
    SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() }
}

fn request(prompt_ids: &[u32], max_tokens: u32, number: u64) -> GenerateRequest {
    GenerateRequest {
        request_id: format!("bench-{number}").into(),
        prompt_ids: prompt_ids.into(),
        prompt_text: "".into(),
        n: 1,
        seed: number,
        max_tokens,
        sampling: Arc::new(sampling()),
        progress: None,
        stream: false,
        resumed: None,
        cache_salt: None,
    }
}

/// Connects to the servers, whose names are their indices.
async fn connect(urls: &[String], scope: &Scope) -> anyhow::Result<HttpEngine> {
    let config = HttpConfig {
        model: MODEL.to_owned(),
        api_key: None,
        connect_max: Duration::from_secs(5),
        probe_max: Duration::from_secs(30),
        vocab_size: None,
        body_bytes_max: BODY_BYTES_MAX,
    };
    let engine = HttpEngine::new(config, None, scope.clone())?;
    let named: Vec<(String, String)> =
        urls.iter().enumerate().map(|(place, url)| (place.to_string(), url.clone())).collect();
    engine.add_all(&named).await?;
    Ok(engine)
}

/// CPU time of this process per finished request, with a constant number of running requests.
async fn cpu_per_request(urls: &[String], quick: bool) -> anyhow::Result<Figure> {
    let scope = Scope::new();
    let engine = Arc::new(connect(urls, &scope).await?);
    let finished = RUNNING * if quick { 1 } else { 4 };
    let started = cpu::own();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let engine = engine.clone();
            scope.spawn("client", async move {
                let numbers = (0..finished as u64).skip(worker).step_by(WORKERS);
                let requests = numbers.map(|number| {
                    let engine = &engine;
                    let server = (number as usize % SERVERS).to_string();
                    let prompt_ids = Numbered::new(PROMPT_TOKENS).prompt(number).ids;
                    async move { engine.generate(&server, request(&prompt_ids, TOKENS, number)).await }
                });
                let mut running = futures::stream::iter(requests).buffer_unordered(RUNNING / WORKERS);
                while let Some(generation) = running.next().await {
                    let tokens = generation?.samples[0].response_ids.len();
                    anyhow::ensure!(tokens == TOKENS as usize, "{tokens} tokens");
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    let cost = (cpu::own() - started).as_secs_f64() / finished as f64;
    scope.close(Duration::from_secs(1)).await;
    let name = format!("{RUNNING} running requests, {TOKENS} tokens with log-probabilities: client CPU");
    Ok(Figure::new(name, cost * 1e3, "ms/request"))
}

fn manager(urls: &[String], engine: HttpEngine, scope: &Scope) -> anyhow::Result<AgentLoopManager> {
    let hours = Duration::from_secs(36_000);
    let config = RolloutConfig {
        run_id: "bench".into(),
        seed: 1,
        workers: 4,
        max_concurrent_prompts: RUNNING / 16 / 4,
        fill: Fill::default(),
        samples_per_prompt: 16,
        gen_batch_size: RUNNING / 16,
        max_gen_batches: 1,
        max_response_length: TOKENS,
        launch: Launch::Batch,
        launch_confidence: 0.9,
        stragglers: Stragglers::Stay,
        early_stop: EarlyStop::Fifo,
        on_stop: OnStop::Discard,
        request: RequestShape::Sample,
        sample_attempts_max: 1,
        sampling: sampling(),
        gates: Arc::default(),
        advantage: Estimator::PerGroup(Advantage::GRPO),
        shaping: Shaping::default(),
        mask_truncated: false,
        staleness: Staleness::default(),
        carry: CarryLimits::default(),
        bias_guard: None,
        bias_audit: 0.0,
        history: None,
        stop_unlikely: None,
        cache_salt: false,
        timeouts: RolloutTimeouts {
            sample: hours,
            permit: hours,
            reward: hours,
            drain: Duration::from_secs(10),
        },
        ledger_entries_max: 1024,
        priority_new: Priority::New,
    };
    let named = |(place, url): (usize, &String)| ServerSpec::new(place.to_string(), url, 256);
    let specs = urls.iter().enumerate().map(named).collect();
    let parts = RolloutParts {
        engine: Arc::new(engine),
        balancer: LoadBalancer::new(BalancerConfig::default(), specs)?,
        grading: Grading::Inline(Arc::new(LastToken)),
    };
    Ok(AgentLoopManager::new(config, parts, scope.clone()))
}

/// Memory per sample of finished groups, compared with the bytes of their columns.
async fn memory_per_finished_sample(urls: &[String]) -> anyhow::Result<Figure> {
    let scope = Scope::new();
    let mut manager = manager(urls, connect(urls, &scope).await?, &scope)?;
    let prompts = PromptFeed::new(Box::new(Numbered::new(PROMPT_TOKENS)));
    let groups = manager.generate(&prompts, RUNNING / 16).await?.groups;
    let samples: usize = groups.iter().map(|group| group.samples.len()).sum();
    anyhow::ensure!(samples == RUNNING, "only {samples} samples");
    let columns: usize = groups.iter().map(column_bytes).sum();
    let with_groups = held_bytes();
    drop(groups);
    let held = (with_groups - held_bytes()) as f64 / samples as f64;
    scope.close(Duration::from_secs(1)).await;
    let columns = columns as f64 / samples as f64;
    let name = format!(
        "memory of a finished sample of {TOKENS} tokens (peer: the bytes of its columns; 4 KiB more are allowed)"
    );
    // The bar is 1.2 times the size of the columns, plus 4 KiB.
    let allowed = ((1.2 + 4096.0 / columns) * 1e3).round() / 1e3;
    Ok(Figure::new(name, held, "bytes").against(columns).bar(Bar::RatioAtMost(allowed)))
}

/// Memory per running sample while the servers are silent.
async fn memory_per_running_sample(urls: &[String]) -> anyhow::Result<Figure> {
    let scope = Scope::new();
    let engine = connect(urls, &scope).await?;
    let mut manager = manager(urls, engine, &scope)?;
    let view = manager.view();
    let prompts = PromptFeed::new(Box::new(Numbered::new(PROMPT_TOKENS)));
    let before = held_bytes();
    let generating =
        scope.spawn("client", async move { manager.generate(&prompts, RUNNING / 16).await.map(drop) });
    let on_engine = || view.waits().count(Phase::Engine);
    let deadline = Instant::now() + Duration::from_secs(60);
    while on_engine() < RUNNING {
        anyhow::ensure!(Instant::now() < deadline, "only {} requests are on the engines", on_engine());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // After this time the last requests have been written.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = held_bytes().saturating_sub(before) as f64 / RUNNING as f64;
    drop(generating);
    scope.close(Duration::from_secs(1)).await;
    let name = format!("memory of a running sample, {RUNNING} of them, without a body yet");
    Ok(Figure::new(name, held, "bytes").bar(Bar::AtMost(16.0 * 1024.0)))
}

/// CPU time of `rolldock run` while 4,000 requests are open and not answered.
async fn waiting_run(urls: &[String], quick: bool) -> anyhow::Result<Figure> {
    let binary = std::env::current_exe()?.with_file_name("rolldock");
    anyhow::ensure!(
        binary.exists(),
        "{} does not exist; build it: cargo build --profile dist --bin rolldock",
        binary.display()
    );
    let out = tempfile::tempdir()?;
    let mut command = Command::new(binary);
    command
        .current_dir(rolldock_bench_figures::checkout())
        .args(["run", "recipes/quickstart.toml", "--out"])
        .arg(out.path().join("run"));
    command.args(urls.iter().flat_map(|url| ["--endpoint", url]));
    for setting in [
        "model.name=bench",
        "fleet.max_loads_per_server=256",
        "rollout.workers=10",
        "rollout.max_concurrent_prompts=25",
        "rollout.samples_per_prompt=16",
        "rollout.train_batch_size=250",
        "rollout.gen_batch_size=250",
        "rollout.launch=batch",
        "queue.capacity_rows=65536",
        "timeouts.stall=3600",
    ] {
        command.args(["--set", setting]);
    }
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().context("cannot start rolldock")?;
    let measured = async {
        wait_for_connections(&mut child, 4_000).await?;
        let window = Duration::from_secs(if quick { 15 } else { 60 });
        let (before, started) = (cpu::of(&child)?, Instant::now());
        tokio::time::sleep(window).await;
        anyhow::Ok((cpu::of(&child)? - before).as_secs_f64() / started.elapsed().as_secs_f64())
    }
    .await;
    child.kill()?;
    child.wait()?;
    let name = "rolldock run, 4,000 requests open and none answering: CPU";
    Ok(Figure::new(name, measured?, "of a core").bar(Bar::AtMost(0.02)))
}

/// Waits until the child has at least `connections` open files, because every running request has its own
/// connection.
async fn wait_for_connections(child: &mut Child, connections: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let open = std::fs::read_dir(format!("/proc/{}/fd", child.id()))?.count();
        if open >= connections {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            anyhow::bail!("rolldock run ended with {status} before its requests were open");
        }
        anyhow::ensure!(Instant::now() < deadline, "only {open} of {connections} connections are open");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
