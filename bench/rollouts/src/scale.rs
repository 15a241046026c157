//! `scale`: what a rollout costs beyond its engines, from 1,000 to 50,000 running samples.
//!
//! The rollout and its servers share one process and one thread, in virtual time. A second run measures the
//! engines' own share. It sends the same requests directly to the same servers, with the same number of
//! requests at a time, without rollout, board and balancer. The difference between the two runs in CPU time
//! and in memory is the cost of the rollout.
//!
//! There are two fleets. Simulated servers behave like real ones, but their own cost is several times that of
//! the rollout. Servers that only take time (`timed`) cost little, so they show how the cost of the rollout
//! depends on the number of samples. Two things that do not belong to this cost grow with the number of samples, and
//! are excluded there:
//! - A group is handed on when its last sample has ended, so its servers write their answers to memory that no cache
//!   has. The requests of the second run therefore keep their answers for as long.
//! - The system gives memory to a process when the process first touches it. Every place of a sample is used several
//!   times (`Fleet::turns_min`), as in a long run.
//!
//! Virtual time passes while nothing runs, so the share of a core is computed from the cost of a sample. The
//! number of samples that a fleet finishes per second is the number of running samples divided by the mean
//! time of a request.
//!
//! The time of a sample still grows with the number of samples, because the caches hold a smaller share of their data.
//! The number of its instructions (`counted`) shows whether the rollout does more for a sample. It is counted if
//! valgrind is installed.
//!
//! On the simulated servers, a further task asks for a permit again and again. The time of a permit is the
//! CPU time of this thread between the request and the grant. There is always a free permit, so the task
//! never waits. The CPU time does not include other programs on the machine.

mod counted;
mod timed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{Engine, GenerateRequest, Generation, SamplingParams};
use rolldock::rollout::{
    AgentLoopManager, EarlyStop, Fill, Grading, Handed, Launch, PromptFeed, RolloutConfig, RolloutParts,
    sample_seed,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, Outcome, PermitRequest, ServerSpec};
use rolldock_simengine::{LengthConfig, ServerConfig, SimServer, Workload, WorkloadConfig};
use timed::TimedEngine;
use tokio::sync::mpsc;

use crate::rollout::{FleetShape, Mode, config};
use crate::workload::{EOS, LastToken, Numbered, answers};
use rolldock_bench_figures::cpu;
use rolldock_bench_figures::held_bytes;
use rolldock_bench_figures::{Bar, Figure};

pub use counted::CountedRun;

const SEED: u64 = 42;
const SAMPLES_PER_GROUP: usize = 16;
const WORKERS: usize = 8;
const PROMPT_TOKENS: usize = 128;
const MAX_RESPONSE: u32 = 8192;
/// Permits of a server. A fleet has about 30 % more permits than running samples.
const PERMITS: u32 = 64;
/// Minimum number of samples that each run finishes; half of it in the short form.
const SAMPLES_MIN: usize = 40_000;
/// Number of times that each point is measured.
const ROUNDS: usize = 5;
/// Simulated time between two requests of the task that measures permits.
const PERMIT_EVERY: Duration = Duration::from_millis(20);
/// Simulated time between two readings of the memory.
const MEMORY_EVERY: Duration = Duration::from_millis(200);

/// A fleet and the samples that run on it.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Groups that each of the 8 workers keeps running.
    pub groups_per_worker: usize,
    /// Servers of the fleet.
    pub servers: usize,
}

/// The points of the curve, with 49 samples on each server.
const CURVE: [Point; 4] = [
    Point { groups_per_worker: 8, servers: 21 },
    Point { groups_per_worker: 32, servers: 84 },
    Point { groups_per_worker: 128, servers: 334 },
    Point { groups_per_worker: 392, servers: 1024 },
];

impl Point {
    fn running(self) -> usize {
        WORKERS * self.groups_per_worker * SAMPLES_PER_GROUP
    }

    /// Number of groups of a run.
    fn groups(self, fleet: Fleet, quick: bool) -> usize {
        let least = if quick { SAMPLES_MIN / 2 } else { SAMPLES_MIN };
        least.div_ceil(self.running()).max(fleet.turns_min()) * self.running() / SAMPLES_PER_GROUP
    }
}

/// The cost of a run.
#[derive(Debug, Default)]
pub struct Cost {
    /// CPU seconds for each sample.
    pub cpu: f64,
    /// The most memory that was held at a time, in bytes, beyond what was held before.
    pub memory: f64,
    /// Mean simulated seconds of a request.
    pub request_seconds: f64,
    /// CPU seconds of each measured permit, in order of their size.
    pub permits: Vec<f64>,
}

impl Cost {
    /// Returns the cost with less CPU time. Its memory is set to the larger of the two.
    fn or(self, other: Self) -> Self {
        let memory = self.memory.max(other.memory);
        let less = if other.cpu < self.cpu { other } else { self };
        Self { memory, ..less }
    }

    /// The CPU seconds that this share of the permits did not exceed; NaN if none was measured.
    pub fn permit(&self, share: f64) -> f64 {
        let place = (self.permits.len() as f64 * share) as usize;
        self.permits.get(place.min(self.permits.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }
}

/// CPU time, memory and permit latencies at each point of the curve; with `quick` once and with fewer samples.
pub fn measure(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = instructions()?;
    let mut first = None;
    // The first run of a process fills pages and caches that later runs reuse. It is not measured.
    in_virtual_time(rollout(CURVE[0], Fleet::Simulated, CURVE[0].groups(Fleet::Simulated, true)))?;
    let rounds = if quick { 1 } else { ROUNDS };
    for point in CURVE {
        let is_last = point.running() >= 50_000;
        let name = |what: &str| format!("{} samples on {} servers: {what}", point.running(), point.servers);
        let (engines, whole) = costs(point, Fleet::Timed, quick, rounds)?;
        let beyond = (whole.cpu - engines.cpu) * 1e6;
        let figure = Figure::new(name("CPU of a sample beyond servers that only take time"), beyond, "us");
        let flat_to = *first.get_or_insert(beyond);
        figures.push(figure.against_named("the first point", flat_to).bar(Bar::RatioAtMost(1.2)));
        figures.push(Figure::new(name("CPU of a sample, these servers alone"), engines.cpu * 1e6, "us"));
        let (engines, whole) = costs(point, Fleet::Simulated, quick, rounds)?;
        let beyond = whole.cpu - engines.cpu;
        figures.push(Figure::new(name("CPU of a sample beyond the engines"), beyond * 1e6, "us"));
        figures.push(Figure::new(name("CPU of a sample, the engines alone"), engines.cpu * 1e6, "us"));
        let cores = beyond * point.running() as f64 / whole.request_seconds;
        let cores = Figure::new(name("CPU beyond the engines"), cores, "cores");
        figures.push(if is_last { cores.bar(Bar::AtMost(1.0)) } else { cores });
        let bytes = (whole.memory - engines.memory).max(0.0);
        let per_sample = bytes / point.running() as f64;
        figures.push(Figure::new(name("memory of a sample beyond the engines"), per_sample, "bytes"));
        let memory = Figure::new(name("memory beyond the engines"), bytes / 1e9, "GB");
        figures.push(if is_last { memory.bar(Bar::AtMost(1.5)) } else { memory });
        figures.push(Figure::new(name("permit, p50"), whole.permit(0.5) * 1e6, "us"));
        let p99 = Figure::new(name("permit, p99"), whole.permit(0.99) * 1e6, "us");
        figures.push(p99.bar(Bar::AtMost(1e3)));
    }
    Ok(figures)
}

/// The instructions of a sample on servers that only take time, at each point of the curve.
fn instructions() -> anyhow::Result<Vec<Figure>> {
    let Some(counted) = counted::measure()? else {
        eprintln!("valgrind is not installed, so no instructions are counted");
        return Ok(Vec::new());
    };
    let first = counted.first().map_or(f64::NAN, |first| first.beyond);
    let figures = CURVE.iter().zip(counted).flat_map(|(point, counted)| {
        let name = |what: &str| format!("{} samples on {} servers: {what}", point.running(), point.servers);
        let beyond = Figure::new(
            name("instructions of a sample beyond servers that only take time"),
            counted.beyond,
            "",
        );
        let servers = Figure::new(name("instructions of a sample, these servers alone"), counted.servers, "");
        [beyond.against_named("the first point", first).bar(Bar::RatioAtMost(1.2)), servers]
    });
    Ok(figures.collect())
}

/// The least cost of the engines alone, and of whole runs, over `rounds` rounds in which both are measured in
/// turn. Other programs on the machine only add to a cost.
fn costs(point: Point, fleet: Fleet, quick: bool, rounds: usize) -> anyhow::Result<(Cost, Cost)> {
    let groups = point.groups(fleet, quick);
    let mut least: Option<(Cost, Cost)> = None;
    for _ in 0..rounds {
        let engines = in_virtual_time(engines_alone(point, fleet, groups))?;
        let whole = in_virtual_time(rollout(point, fleet, groups))?;
        least = Some(match least.take() {
            None => (engines, whole),
            Some((engines_before, whole_before)) => (engines_before.or(engines), whole_before.or(whole)),
        });
    }
    least.context("expected at least one round")
}

/// Runs to the end in virtual time, on one thread.
pub fn in_virtual_time(run: impl Future<Output = anyhow::Result<Cost>>) -> anyhow::Result<Cost> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(run)
}

/// The servers of a run.
#[derive(Debug, Clone, Copy)]
pub enum Fleet {
    /// Simulated servers, which batch requests and keep KV caches.
    Simulated,
    /// Servers that only take time.
    Timed,
}

impl Fleet {
    /// Minimum number of times that a run uses each place of a sample.
    fn turns_min(self) -> usize {
        match self {
            Self::Simulated => 2,
            Self::Timed => 8,
        }
    }

    fn start(self, point: Point, scope: &Scope) -> anyhow::Result<Arc<dyn Engine>> {
        Ok(match self {
            Self::Simulated => Arc::new(simulated(point, scope)?),
            Self::Timed => Arc::new(TimedEngine),
        })
    }
}

/// Lengths differ little, so the samples of a group end close together, and nearly all places are in use.
fn simulated(point: Point, scope: &Scope) -> anyhow::Result<SimulatedEngine> {
    let workload = Arc::new(Workload::new(WorkloadConfig {
        seed: SEED,
        eos_id: EOS,
        length: LengthConfig {
            median_easy: 1_500.0,
            median_hard: 1_500.0,
            sigma: 0.15,
            wrong_factor: 1.0,
            max: MAX_RESPONSE,
            ..LengthConfig::default()
        },
        ..WorkloadConfig::default()
    }));
    let servers = (0..point.servers).map(|number| {
        let config =
            ServerConfig { name: format!("s{number}"), max_num_seqs: PERMITS, ..ServerConfig::default() };
        let token = scope.token().clone();
        SimServer::start(config, Arc::clone(&workload), answers(), scope.tracker(), token)
    });
    Ok(SimulatedEngine::new(servers.collect::<Result<Vec<_>, _>>()?))
}

/// The largest amount of held memory that a task has read, beyond the memory that was held before.
#[derive(Clone)]
struct Memory {
    before: usize,
    most: Arc<Mutex<usize>>,
}

impl Memory {
    fn new() -> Self {
        Self { before: held_bytes(), most: Arc::default() }
    }

    async fn watch(self) {
        loop {
            tokio::time::sleep(MEMORY_EVERY).await;
            let held = held_bytes();
            let mut most = self.most.lock();
            *most = held.max(*most);
        }
    }

    fn most(&self) -> f64 {
        self.most.lock().saturating_sub(self.before) as f64
    }
}

/// Sends the requests of a rollout directly to the servers, with the same number of requests at a time.
pub async fn engines_alone(point: Point, fleet: Fleet, groups: usize) -> anyhow::Result<Cost> {
    let memory = Memory::new();
    let scope = Scope::new();
    let engine = fleet.start(point, &scope)?;
    let watching = scope.spawn("memory", memory.clone().watch());
    let names: Vec<String> = (0..point.servers).map(|number| format!("s{number}")).collect();
    let sampling = Arc::new(SamplingParams::default());
    let prompts = Numbered::new(PROMPT_TOKENS);
    let samples = groups * SAMPLES_PER_GROUP;
    let started = cpu::own();
    let requests = (0..samples).map(|number| {
        let (group, index) = (number / SAMPLES_PER_GROUP, number % SAMPLES_PER_GROUP);
        let prompt = prompts.prompt(group as u64);
        let request = GenerateRequest {
            request_id: format!("bench-{group}-{index}-0").into(),
            prompt_ids: prompt.ids,
            prompt_text: "".into(),
            n: 1,
            seed: sample_seed(SEED, prompt.uid.0, 0, 0) + index as u64,
            max_tokens: MAX_RESPONSE,
            sampling: Arc::clone(&sampling),
            progress: None,
            stream: false,
            resumed: None,
            cache_salt: None,
        };
        engine.generate(&names[number % names.len()], request).map(move |answer| (group, answer))
    });
    let mut running = futures::stream::iter(requests).buffer_unordered(point.running());
    let mut kept: BTreeMap<usize, Vec<Generation>> = BTreeMap::new();
    while let Some((group, generation)) = running.next().await {
        let generation = generation?;
        // On the simulated servers, the memory of the answers counts as the rollout's.
        if matches!(fleet, Fleet::Simulated) {
            continue;
        }
        let answers = kept.entry(group).or_default();
        answers.push(generation);
        if answers.len() == SAMPLES_PER_GROUP {
            kept.remove(&group);
        }
    }
    let cpu = (cpu::own() - started).as_secs_f64() / samples as f64;
    drop((running, watching));
    scope.close(Duration::from_secs(1)).await;
    Ok(Cost { cpu, memory: memory.most(), ..Cost::default() })
}

fn config_of(point: Point, groups: usize) -> anyhow::Result<RolloutConfig> {
    let standard = config(FleetShape { servers: WORKERS, mixed: false }, Mode::Off)?;
    Ok(RolloutConfig {
        seed: SEED,
        workers: WORKERS,
        max_concurrent_prompts: point.groups_per_worker,
        fill: Fill::default(),
        samples_per_prompt: SAMPLES_PER_GROUP as u32,
        gen_batch_size: groups,
        max_gen_batches: 1,
        max_response_length: MAX_RESPONSE,
        launch: Launch::Batch,
        early_stop: EarlyStop::Off,
        // Every group is valid, so a run has as many samples as were sent.
        gates: Arc::default(),
        ..standard
    })
}

/// Runs a rollout whose groups are dropped as soon as they are handed on.
pub async fn rollout(point: Point, fleet: Fleet, groups: usize) -> anyhow::Result<Cost> {
    let memory = Memory::new();
    let scope = Scope::new();
    let engine = fleet.start(point, &scope)?;
    let watching = scope.spawn("memory", memory.clone().watch());
    let started = cpu::own();
    let named = (0..point.servers).map(|number| ServerSpec::unreached(format!("s{number}"), PERMITS));
    let balancer =
        LoadBalancer::new(BalancerConfig { seed: SEED, ..BalancerConfig::default() }, named.collect())?;
    let permits: Arc<Mutex<Vec<f64>>> = Arc::default();
    // The task asks at simulated times, so its cost for a sample depends on the number of samples.
    let asking = matches!(fleet, Fleet::Simulated)
        .then(|| scope.spawn("permits", ask_for_permits(balancer.clone(), Arc::clone(&permits))));
    let grading = Grading::Inline(Arc::new(LastToken));
    let parts = RolloutParts { engine, balancer, grading };
    let mut manager = AgentLoopManager::new(config_of(point, groups)?, parts, scope.clone());
    let control = manager.control();
    let prompts = PromptFeed::inline(Box::new(Numbered::new(PROMPT_TOKENS)));
    let (sender, mut handed) = mpsc::unbounded_channel();
    let taking = scope.spawn("taking", async move {
        let (mut samples, mut seconds) = (0, 0.0);
        while let Some(one) = handed.recv().await {
            if let Handed::Group(group) = one {
                control.was_put();
                samples += group.samples.len();
                seconds += group.samples.iter().map(|sample| sample.spent.engine.as_secs_f64()).sum::<f64>();
            }
        }
        (samples, seconds)
    });
    manager.generate_into(&prompts, groups, sender).await?;
    let (samples, seconds) = taking.await?;
    anyhow::ensure!(samples == groups * SAMPLES_PER_GROUP, "only {samples} samples");
    let cpu = (cpu::own() - started).as_secs_f64() / samples as f64;
    drop((asking, watching));
    scope.close(Duration::from_secs(1)).await;
    let mut permits = std::mem::take(&mut *permits.lock());
    permits.sort_by(f64::total_cmp);
    Ok(Cost { cpu, memory: memory.most(), request_seconds: seconds / samples as f64, permits })
}

/// Asks for a permit again and again, and notes the CPU time of each.
async fn ask_for_permits(balancer: LoadBalancer, seconds: Arc<Mutex<Vec<f64>>>) {
    loop {
        tokio::time::sleep(PERMIT_EVERY).await;
        let started = cpu::of_this_thread();
        let asked = balancer.acquire(PermitRequest::new(1)).await;
        let took = (cpu::of_this_thread() - started).as_secs_f64();
        if let Ok(permit) = asked {
            permit.finish(Outcome::Cancelled);
            seconds.lock().push(took);
        }
    }
}
