//! `rollout`: the step time compared with the best possible time for the drawn work, and the bias of the
//! accepted data.
//!
//! The KV caches of the servers hold fewer samples than their batches have places, and the bounds take the
//! caches into account. The figures "without KV limit" are relative to bounds that ignore the caches.
//!
//! All rollouts run in virtual time. Only the CPU time of the simulated fleet is measured in real time. The
//! work is drawn by a pure function of the seed, so the bounds and the unbiased reference are computed from
//! the draws and not from the samples that ran.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rolldock::data::Prompt;
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{Engine, GenerateRequest, SamplingParams};
use rolldock::rollout::{
    AgentLoopManager, CarryLimits, EarlyStop, Grading, PromptFeed, RequestShape, RolloutConfig, RolloutParts,
    RolloutTimeouts, Staleness, sample_seed,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{
    AdaptiveConfig, BalancerConfig, LoadBalancer, Monitor, MonitorConfig, Policy, Priority, ServerSpec,
};
use rolldock_reward::{Advantage, Estimator, Gates, GroupFilter, Shaping};
use rolldock_simengine::{LengthConfig, ServerConfig, SimServer, Workload, WorkloadConfig};
use rolldock_simulate::bounds::{DrawnGroup, FleetModel, Lengths, Reference};
use tokio::time::Instant;

use crate::workload::{EOS, EveryPrompt, LastToken, Numbered, answers};
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::{Bar, Figure};

mod modes;

pub(crate) use modes::Mode;

pub(crate) const SEED: u64 = 42;
pub(crate) const TARGET: usize = 256;
/// Number of samples of mean length, with their prompts, that the KV cache of a server holds. It is smaller
/// than the number of places of the server's batch, as on a real server of a model with 8 billion parameters.
const CACHED_SAMPLES: f64 = 85.0;
/// Number of prompts from which the mean length is computed.
const PROMPTS_OF_MEAN: u64 = 512;
const SAMPLES: u32 = 16;
const MAX_RESPONSE: u32 = 8192;
pub(crate) const PROMPT_TOKENS: usize = 128;
pub(crate) const PERMITS: u32 = 256;
/// Number of steps. The bias is defined over at least this many steps.
const STEPS: usize = 20;
const STEPS_QUICK: usize = 4;

/// The speeds of a fleet's servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetShape {
    pub(crate) servers: usize,
    /// Whether the speeds differ: half of the servers run at full speed, a quarter at 0.6 and a quarter at
    /// 0.4 of it.
    pub(crate) mixed: bool,
}

impl FleetShape {
    pub(crate) fn speeds(self) -> Vec<f64> {
        let speed = |number: usize| match number % 4 {
            2 if self.mixed => 0.6,
            3 if self.mixed => 0.4,
            _ => 1.0,
        };
        (0..self.servers).map(speed).collect()
    }

    fn name(self) -> String {
        format!("{} {}", self.servers, if self.mixed { "mixed" } else { "equal" })
    }
}

/// The results of a run, relative to the bounds.
struct Outcome {
    /// The time divided by the sum of the steps' FIFO bounds.
    over_fifo_bound: f64,
    /// The time divided by the sum of the FIFO bounds of servers whose KV caches are unlimited.
    over_bound_without_cache: f64,
    /// Samples that the servers preempted, per step.
    preemptions: f64,
    /// The time divided by the saturation bound of all steps.
    over_saturation_bound: f64,
    length_bias: f64,
    acc_bias: f64,
    /// The share of generated tokens that belong to no finished sample.
    wasted: f64,
}

/// Measures the cells of the grid whose names contain `part`, for example `8 mixed` or
/// `16 equal servers, off`.
pub fn measure_cells(quick: bool, part: &str) -> anyhow::Result<Vec<Figure>> {
    let steps = if quick { STEPS_QUICK } else { STEPS };
    let mut figures = Vec::new();
    for mixed in [false, true] {
        for shape in [8, 16].map(|servers| FleetShape { servers, mixed }) {
            for mode in Mode::ALL {
                if format!("{} servers, {}", shape.name(), mode.name()).contains(part) {
                    let outcome = run(shape, mode, steps)?;
                    figures.extend(figures_of(shape, mode, &outcome, outcome.over_fifo_bound));
                }
            }
        }
    }
    anyhow::ensure!(!figures.is_empty(), "no cell of the grid has {part:?} in its name");
    Ok(figures)
}

/// Step times, biases and waste of all modes on all fleets; with `quick` over fewer steps.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let steps = if quick { STEPS_QUICK } else { STEPS };
    // The CPU time is measured first: after the other cells, the allocator still returns their memory.
    let mut figures = vec![simulated_fleet(quick)?];
    for mixed in [false, true] {
        let mut means = [[1.0_f64; 2]; Mode::ALL.len()];
        let shapes = [8, 16].map(|servers| FleetShape { servers, mixed });
        for shape in shapes {
            let mut off = None;
            for (mode, mean) in Mode::ALL.into_iter().zip(&mut means) {
                let outcome = run(shape, mode, steps)?;
                let off = *off.get_or_insert(outcome.over_fifo_bound);
                mean[0] *= outcome.over_fifo_bound.powf(1.0 / shapes.len() as f64);
                mean[1] *= outcome.length_bias.powf(1.0 / shapes.len() as f64);
                figures.extend(figures_of(shape, mode, &outcome, off));
            }
        }
        let fleet = if mixed { "mixed" } else { "equal" };
        for (mode, [time, bias]) in Mode::ALL.into_iter().zip(means) {
            let name = format!("geometric mean, {fleet} servers, {}", mode.name());
            let time_figure = Figure::new(format!("{name}: step time / FIFO bound"), time, "x");
            figures.push(match mode {
                Mode::Moving => time_figure.bar(Bar::AtMost(if mixed { 1.35 } else { 1.25 })),
                Mode::Fifo | Mode::OnDemand | Mode::Measured | Mode::Hedging => {
                    time_figure.against(means[0][0]).bar(Bar::RatioAtMost(1.0))
                }
                Mode::Off | Mode::First => time_figure.against(means[0][0]),
            });
            figures.push(Figure::new(format!("{name}: length bias"), bias, "x"));
        }
    }
    Ok(figures)
}

fn figures_of(shape: FleetShape, mode: Mode, outcome: &Outcome, off: f64) -> Vec<Figure> {
    let name = |what: &str| format!("{} servers, {}: {what}", shape.name(), mode.name());
    let bias = Figure::new(name("length bias"), outcome.length_bias, "x");
    vec![
        Figure::new(name("step time / FIFO bound"), outcome.over_fifo_bound, "x").against(off),
        Figure::new(name("step time / FIFO bound without KV limit"), outcome.over_bound_without_cache, "x"),
        Figure::new(name("preemptions of a step"), outcome.preemptions, "samples"),
        Figure::new(name("run time / saturation bound"), outcome.over_saturation_bound, "x"),
        // Decisions in dispatch order cannot be biased.
        if mode == Mode::First { bias } else { bias.bar(Bar::Within(0.99, 1.01)) },
        Figure::new(name("accuracy bias"), outcome.acc_bias, "x"),
        Figure::new(name("wasted tokens / tokens"), outcome.wasted, "x"),
    ]
}

pub(crate) fn workload() -> Arc<Workload> {
    Arc::new(Workload::new(WorkloadConfig {
        seed: SEED,
        eos_id: EOS,
        length: LengthConfig { max: 2 * MAX_RESPONSE, ..LengthConfig::default() },
        ..WorkloadConfig::default()
    }))
}

pub(crate) fn start_servers(
    speeds: &[f64],
    workload: &Arc<Workload>,
    scope: &Scope,
) -> anyhow::Result<Vec<SimServer>> {
    let common = server_config(workload);
    let start = |(number, speed): (usize, &f64)| {
        let config = ServerConfig { name: format!("s{number}"), speed: *speed, ..common.clone() };
        let token = scope.token().clone();
        Ok(SimServer::start(config, Arc::clone(workload), answers(), scope.tracker(), token)?)
    };
    speeds.iter().enumerate().map(start).collect()
}

/// A balancer of these servers. Each server has `permits` permits. If `permits` is absent, the number is
/// measured.
pub(crate) fn start_balancer(
    engine: &SimulatedEngine,
    permits: Option<u32>,
    policy: Policy,
    scope: &Scope,
) -> anyhow::Result<LoadBalancer> {
    let adaptive = AdaptiveConfig::default();
    let capacity = permits.unwrap_or(adaptive.start);
    let named = engine.servers().map(|server| server.config().name.clone());
    let specs = named.map(|name| ServerSpec::unreached(name, capacity)).collect();
    let config = BalancerConfig { policy, seed: SEED, ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config, specs)?;
    let config =
        MonitorConfig { adaptive: permits.is_none().then_some(adaptive), ..MonitorConfig::default() };
    let monitor = Monitor::new(balancer.clone(), Arc::new(engine.clone()), config);
    let end = scope.token().clone();
    scope.spawn_detached("server monitor", async move { monitor.run(end).await });
    Ok(balancer)
}

/// A server of speed 1 whose KV cache holds [`CACHED_SAMPLES`] samples.
fn server_config(workload: &Workload) -> ServerConfig {
    let prompts = Numbered::new(PROMPT_TOKENS);
    let mut drawn = Lengths::default();
    for row in 0..PROMPTS_OF_MEAN {
        let group = draw_group(workload, &prompts.prompt(row));
        group.samples.iter().for_each(|(tokens, right)| drawn.add(*tokens, *right));
    }
    let config = ServerConfig { max_num_seqs: PERMITS, ..ServerConfig::default() };
    let tokens = CACHED_SAMPLES * (PROMPT_TOKENS as f64 + drawn.mean_length());
    ServerConfig { kv_blocks: (tokens / f64::from(config.block_tokens)) as u32, ..config }
}

pub(crate) fn config(shape: FleetShape, mode: Mode) -> anyhow::Result<RolloutConfig> {
    let filter = GroupFilter::default();
    let (early_stop, on_stop, launch) = mode.settings();
    Ok(RolloutConfig {
        run_id: "bench".into(),
        seed: SEED,
        workers: shape.servers,
        max_concurrent_prompts: (PERMITS / SAMPLES) as usize,
        fill: mode.fill(),
        samples_per_prompt: SAMPLES,
        gen_batch_size: 2 * TARGET,
        max_gen_batches: 20,
        max_response_length: MAX_RESPONSE,
        launch,
        launch_confidence: 0.9,
        stragglers: mode.stragglers(),
        early_stop,
        on_stop,
        request: RequestShape::Sample,
        sample_attempts_max: 3,
        sampling: SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() },
        gates: Arc::new(Gates::new(&filter.into())?),
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
            sample: Duration::from_secs(36_000),
            permit: Duration::from_secs(36_000),
            reward: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        },
        ledger_entries_max: 65_536,
        priority_new: Priority::New,
    })
}

/// Each step has a new version. A group that an earlier step has left is too old, so a step begins with nothing, as its
/// bound does. If everything is awaited, groups beyond the target are kept instead: the prompts of groups that are too old
/// would come on top of each whole batch, and the baseline would be slower than it has to be.
fn on_policy(config: RolloutConfig) -> RolloutConfig {
    if config.early_stop == EarlyStop::Off {
        return config;
    }
    RolloutConfig { staleness: Staleness { max: 0, is_announced: true, ..Staleness::default() }, ..config }
}

fn run(shape: FleetShape, mode: Mode, steps: usize) -> anyhow::Result<Outcome> {
    in_virtual_time(collect(shape, mode, steps))
}

pub(crate) fn in_virtual_time<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(work)
}

async fn collect(shape: FleetShape, mode: Mode, steps: usize) -> anyhow::Result<Outcome> {
    let scope = Scope::new();
    let workload = workload();
    let engine = SimulatedEngine::new(start_servers(&shape.speeds(), &workload, &scope)?);
    let parts = RolloutParts {
        engine: Arc::new(engine.clone()),
        balancer: start_balancer(&engine, mode.permits(), Policy::default(), &scope)?,
        grading: Grading::Inline(Arc::new(LastToken)),
    };
    let mut manager = AgentLoopManager::new(on_policy(config(shape, mode)?), parts, scope.clone());
    let control = manager.control();
    let prompts = PromptFeed::inline(Box::new(Numbered::new(PROMPT_TOKENS)));
    let mut accepted = Lengths::default();
    let mut elapsed = Duration::ZERO;
    let mut finished_tokens = 0;
    for step in 0..steps {
        control.set_policy_version(step as u64);
        let output = manager.generate(&prompts, TARGET).await?;
        anyhow::ensure!(output.groups.len() == TARGET, "a step ended short: {:?}", output.metrics.end);
        elapsed += output.metrics.elapsed;
        finished_tokens += output.metrics.costs.tokens;
        for sample in output.groups.iter().flat_map(|group| &group.samples) {
            accepted.add(sample.response_ids.len() as u32, sample.acc == 1.0);
        }
    }
    let generated: u64 = engine.servers().map(|server| server.stats().generation_tokens_total).sum();
    let preemptions: u64 = engine.servers().map(|server| server.stats().preemptions_total).sum();
    scope.close(Duration::from_secs(1)).await;
    let reference = reference(&workload, &shape.speeds(), steps);
    let (seconds, valid) = (elapsed.as_secs_f64(), reference.all_valid());
    Ok(Outcome {
        over_fifo_bound: seconds / reference.fifo_s,
        over_bound_without_cache: seconds / reference.fifo_without_cache_s,
        preemptions: preemptions as f64 / steps as f64,
        over_saturation_bound: seconds / reference.saturation_s,
        length_bias: accepted.mean_length() / valid.mean_length(),
        acc_bias: accepted.mean_acc() / valid.mean_acc(),
        wasted: generated.saturating_sub(finished_tokens) as f64 / generated as f64,
    })
}

/// The fleet of this shape, as the bounds see it.
pub(crate) fn fleet_model(shape: FleetShape) -> FleetModel {
    model_of(&workload(), &shape.speeds())
}

fn model_of(workload: &Workload, speeds: &[f64]) -> FleetModel {
    FleetModel { server: server_config(workload), speeds: speeds.to_vec(), permits: PERMITS }
}

/// The bounds and the unbiased reference of `steps` steps, computed from the draws alone.
pub(crate) fn reference(workload: &Workload, speeds: &[f64], steps: usize) -> Reference {
    let fleet = model_of(workload, speeds);
    let prompts = Numbered::new(PROMPT_TOKENS);
    let draws = (0..).map(|row| draw_group(workload, &prompts.prompt(row)));
    Reference::new(&fleet, draws, TARGET, steps)
}

/// The length and the correctness of each of a prompt's samples at the first attempt.
pub(crate) fn draw_group(workload: &Workload, prompt: &Prompt) -> DrawnGroup {
    let first_seed = sample_seed(SEED, prompt.uid.0, prompt.visit, 0);
    let draw = |index: u32| {
        let draw = workload.draw(&prompt.ids, first_seed + u64::from(index), &EveryPrompt);
        (draw.length.min(MAX_RESPONSE), draw.correct && draw.length <= MAX_RESPONSE)
    };
    let samples: Vec<(u32, bool)> = (0..SAMPLES).map(draw).collect();
    let right = samples.iter().filter(|(_, right)| *right).count();
    let is_valid = right > 0 && right < samples.len();
    DrawnGroup { prompt_ids: Arc::clone(&prompt.ids), samples, is_valid }
}

/// The share of a CPU core that 16 simulated servers use in real time while 4,000 requests run on them.
fn simulated_fleet(quick: bool) -> anyhow::Result<Figure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let scope = Scope::new();
        let servers = start_servers(&[1.0; 16], &workload(), &scope)?;
        let names: Vec<String> = servers.iter().map(|server| server.config().name.clone()).collect();
        let engine = SimulatedEngine::new(servers);
        let sampling = Arc::new(config(FleetShape { servers: 16, mixed: false }, Mode::Fifo)?.sampling);
        let prompts = Numbered::new(PROMPT_TOKENS);
        let generating = join_all((0..4_000_u64).map(|number| {
            let request = GenerateRequest {
                request_id: format!("bench-{number}").into(),
                prompt_ids: prompts.prompt(number).ids,
                prompt_text: "".into(),
                n: 1,
                seed: number,
                max_tokens: MAX_RESPONSE,
                sampling: Arc::clone(&sampling),
                progress: None,
                stream: false,
                resumed: None,
                cache_salt: None,
            };
            engine.generate(&names[number as usize % names.len()], request)
        }));
        let window = Duration::from_secs(if quick { 5 } else { 20 });
        let watching = async {
            // By the end of the first second, all requests have been admitted.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (cpu_before, started) = (cpu::own(), Instant::now());
            tokio::time::sleep(window).await;
            (cpu::own() - cpu_before).as_secs_f64() / started.elapsed().as_secs_f64()
        };
        let core_share = tokio::select! {
            share = watching => share,
            _ = generating => anyhow::bail!("the requests ended before the measurement of the CPU time"),
        };
        scope.close(Duration::from_secs(1)).await;
        let name = "simulated fleet, 16 servers, 4,000 running, real time: CPU";
        Ok(Figure::new(name, core_share, "of a core").bar(Bar::AtMost(0.1)))
    })
}
