//! `fleet`: the cost of choosing a server, and how each policy handles a fleet with a fault.
//!
//! In virtual time, each policy gets the same requests on the same simulated servers. Two figures are
//! measured for each policy: the time of a batch divided by the least possible time, and how evenly the batch
//! was spread.

mod echo;
mod race;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{Engine, GenerateRequest, SamplingParams};
use rolldock::scope::Scope;
use rolldock_bench_figures::{Bar, Figure};
use rolldock_bench_rollouts::workload::{EOS, EveryPrompt, Numbered, answers};
use rolldock_loadbalancer::{
    BalancerConfig, LoadBalancer, Monitor, MonitorConfig, Outcome, PermitRequest, Policy, ServerSpec,
};
use rolldock_simengine::{Fault, LengthConfig, ServerConfig, SimServer, Workload, WorkloadConfig};
use tokio::time::Instant;

const SEED: u64 = 42;
const SERVERS: usize = 8;
const PERMITS: u32 = 64;
/// Number of running samples. It is half of the fleet's permits, so a policy always has a choice.
const AT_ONCE: usize = SERVERS * PERMITS as usize / 2;
/// The time at which the fault begins, as a share of the least possible time of the batch.
const FAULT_AT: f64 = 1.0 / 3.0;
/// Number of samples of one prompt.
const GROUP: u64 = 8;
const PROMPT_TOKENS: usize = 512;
const MAX_RESPONSE: u32 = 4096;
/// Number of blocks of a small cache. It is full when samples hold half of the server's permits.
const SMALL_CACHE: u32 = 2_500;
/// The time after which the monitor notices a stalled server.
const STALL: Duration = Duration::from_secs(5);

/// The fault of a fleet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Equal,
    /// Two of eight servers run at half speed.
    TwoSlow,
    /// One server dies during the batch.
    OneDies,
    /// One server stalls during the batch: it accepts every request and answers none.
    OneStalls,
    /// The caches are so small that they fill up.
    FullCache,
}

impl Shape {
    const ALL: [Self; 5] = [Self::Equal, Self::TwoSlow, Self::OneDies, Self::OneStalls, Self::FullCache];

    fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal servers",
            Self::TwoSlow => "two of eight at half speed",
            Self::OneDies => "one dies",
            Self::OneStalls => "one stalls",
            Self::FullCache => "full KV caches",
        }
    }

    fn speed(self, number: usize) -> f64 {
        if self == Self::TwoSlow && number < 2 { 0.5 } else { 1.0 }
    }

    fn fault(self) -> Option<Fault> {
        match self {
            Self::OneDies => Some(Fault::Die),
            Self::OneStalls => Some(Fault::Stall),
            Self::Equal | Self::TwoSlow | Self::FullCache => None,
        }
    }
}

pub(crate) use echo::echo;

pub(crate) fn measure(quick: bool, with_peers: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = picks(quick)?;
    figures.extend(race::measure(quick, with_peers)?);
    let samples = if quick { 4_000 } else { 16_000 };
    for shape in Shape::ALL {
        let mut first = None;
        for policy in Policy::ALL {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
            let (over_bound, spread) = runtime.block_on(batch(shape, policy, samples))?;
            let name = format!("{}, {}", shape.name(), word(policy));
            let time = Figure::new(format!("{name}: time / bound"), over_bound, "x");
            figures.push(time.against(*first.get_or_insert(over_bound)));
            figures.push(Figure::new(
                format!("{name}: samples of the busiest server / of the idlest"),
                spread,
                "x",
            ));
        }
    }
    Ok(figures)
}

fn word(policy: Policy) -> String {
    serde_json::to_value(policy).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Number of servers to choose from.
const FLEET: usize = 1024;
/// Number of requests that wait on a saturated fleet.
const WAITING: usize = 1_000;

/// The time to choose among 1,024 servers, to grant a permit and to return it. It is measured on a half-full
/// fleet with and without groups, and on a full fleet with waiting requests.
fn picks(quick: bool) -> anyhow::Result<Vec<Figure>> {
    let rounds = if quick { 21 } else { 101 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let of = |what: &str| {
        format!("pick, permit and return among {FLEET} servers, {what}, one thread, median round")
    };
    let alone = runtime.block_on(pick(rounds, |_| None))?;
    let grouped = runtime.block_on(pick(rounds, |number| Some(number / GROUP)))?;
    let saturated = runtime.block_on(pick_when_full(rounds))?;
    let full = format!("full, {WAITING} waiting");
    Ok(vec![
        Figure::new(of("half full"), alone * 1e6, "us").bar(Bar::AtMost(2.0)),
        Figure::new(of("half full, in groups"), grouped * 1e6, "us"),
        Figure::new(of(&full), saturated * 1e6, "us"),
    ])
}

fn large_fleet() -> anyhow::Result<LoadBalancer> {
    let servers = (0..FLEET).map(|number| ServerSpec::unreached(format!("s{number}"), PERMITS)).collect();
    Ok(LoadBalancer::new(BalancerConfig { seed: SEED, ..BalancerConfig::default() }, servers)?)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn pick(rounds: usize, group_of: impl Fn(u64) -> Option<u64>) -> anyhow::Result<f64> {
    const PICKS: u64 = 10_000;
    let balancer = large_fleet()?;
    // Half of the fleet's permits are held, so the loads differ.
    let mut held = Vec::new();
    for _ in 0..FLEET as u32 * PERMITS / 2 {
        held.push(balancer.acquire(PermitRequest::new(1)).await?);
    }
    let mut each = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        for number in 0..PICKS {
            let request = PermitRequest { group: group_of(number), ..PermitRequest::new(1) };
            balancer.acquire(request).await?.finish(Outcome::Success { tokens: 100 });
        }
        each.push(started.elapsed().as_secs_f64() / PICKS as f64);
    }
    Ok(median(each))
}

/// Measures a full fleet: each returned permit goes to the first waiting request, and another request begins
/// to wait.
async fn pick_when_full(rounds: usize) -> anyhow::Result<f64> {
    const RETURNS: usize = 1_000;
    let balancer = large_fleet()?;
    let mut held = VecDeque::new();
    for _ in 0..FLEET as u32 * PERMITS {
        held.push_back(balancer.acquire(PermitRequest::new(1)).await?);
    }
    let mut waiting = FuturesUnordered::new();
    for _ in 0..WAITING {
        waiting.push(balancer.acquire(PermitRequest::new(1)));
    }
    anyhow::ensure!(waiting.next().now_or_never().is_none(), "the fleet is not full");
    let mut each = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..RETURNS {
            if let Some(permit) = held.pop_front() {
                permit.finish(Outcome::Success { tokens: 100 });
            }
            waiting.push(balancer.acquire(PermitRequest::new(1)));
            if let Some(granted) = waiting.next().await {
                held.push_back(granted?);
            }
        }
        each.push(started.elapsed().as_secs_f64() / RETURNS as f64);
    }
    Ok(median(each))
}

fn start(shape: Shape, workload: &Arc<Workload>, scope: &Scope) -> anyhow::Result<Vec<SimServer>> {
    (0..SERVERS)
        .map(|number| {
            let standard = ServerConfig::default();
            let config = ServerConfig {
                name: format!("s{number}"),
                speed: shape.speed(number),
                max_num_seqs: 2 * PERMITS,
                kv_blocks: if shape == Shape::FullCache { SMALL_CACHE } else { standard.kv_blocks },
                max_model_len: PROMPT_TOKENS as u32 + MAX_RESPONSE,
                ..standard
            };
            Ok(SimServer::start(
                config,
                Arc::clone(workload),
                answers(),
                scope.tracker(),
                scope.token().clone(),
            )?)
        })
        .collect()
}

/// The time of a batch divided by the least possible time, and the number of samples of the busiest server
/// divided by the number of samples of the idlest server.
async fn batch(shape: Shape, policy: Policy, samples: u64) -> anyhow::Result<(f64, f64)> {
    let scope = Scope::new();
    let workload = Arc::new(Workload::new(WorkloadConfig {
        seed: SEED,
        eos_id: EOS,
        length: LengthConfig { max: MAX_RESPONSE, ..LengthConfig::default() },
        ..WorkloadConfig::default()
    }));
    let servers = start(shape, &workload, &scope)?;
    let engine = SimulatedEngine::new(servers.clone());
    let specs =
        servers.iter().map(|server| ServerSpec::unreached(server.config().name.clone(), PERMITS)).collect();
    let config = BalancerConfig { policy, seed: SEED, ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config, specs)?;
    let monitor = MonitorConfig { stall: STALL, ..MonitorConfig::default() };
    let monitor = Monitor::new(balancer.clone(), Arc::new(engine.clone()), monitor);
    let monitoring = scope.spawn("server monitor", monitor.run(scope.token().clone()));
    let bound = bound(shape, &workload, samples);
    let fault_after = Duration::from_secs_f64(bound * FAULT_AT);
    let started = Instant::now();
    let faulty = servers[0].clone();
    let breaking = scope.spawn("faults", async move {
        if let Some(fault) = shape.fault() {
            tokio::time::sleep(fault_after).await;
            faulty.inject(fault);
        }
    });
    let sampling = SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() };
    let sampling = Arc::new(sampling);
    let prompts = Numbered::new(PROMPT_TOKENS);
    let mut running = FuturesUnordered::new();
    let mut next = 0;
    loop {
        while running.len() < AT_ONCE && next < samples {
            let prompt = prompts.prompt(next / GROUP).ids;
            running.push(sample(&balancer, &engine, prompt, Arc::clone(&sampling), next));
            next += 1;
        }
        match running.next().await {
            Some(done) => done?,
            None => break,
        }
    }
    let elapsed = started.elapsed().as_secs_f64();
    let counts: Vec<u64> = balancer.snapshot().servers.iter().map(|server| server.outcomes.success).collect();
    let (least, most) =
        (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    drop((monitoring, breaking));
    scope.close(Duration::from_secs(1)).await;
    Ok((elapsed / bound, most as f64 / least.max(1) as f64))
}

/// Runs one sample, which starts again on another server when its server is lost.
async fn sample(
    balancer: &LoadBalancer,
    engine: &SimulatedEngine,
    prompt_ids: Arc<[u32]>,
    sampling: Arc<SamplingParams>,
    number: u64,
) -> anyhow::Result<()> {
    let mut exclude = Vec::new();
    for attempt in 0..10 {
        let request =
            PermitRequest { group: Some(number / GROUP), exclude: exclude.clone(), ..PermitRequest::new(1) };
        let permit = balancer.acquire(request).await?;
        let (server, name) = (permit.server(), permit.server_name());
        let request = GenerateRequest {
            request_id: format!("{number}-{attempt}").into(),
            prompt_ids: Arc::clone(&prompt_ids),
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
        let answer = tokio::select! {
            biased;
            answer = engine.generate(&name, request) => answer.ok(),
            () = permit.revoked() => None,
        };
        match answer {
            Some(generation) => {
                let tokens = generation.samples.iter().map(|sample| sample.response_ids.len() as u64).sum();
                permit.finish(Outcome::Success { tokens });
                return Ok(());
            }
            None => permit.finish(Outcome::Fault),
        }
        exclude.push(server);
    }
    anyhow::bail!("sample={number} was lost ten times")
}

/// The least time in seconds in which the fleet could decode the samples while `AT_ONCE` of them run, evenly
/// spread over the servers.
fn bound(shape: Shape, workload: &Workload, samples: u64) -> f64 {
    let server = ServerConfig::default();
    let prompts = Numbered::new(PROMPT_TOKENS);
    let speed: f64 = (0..SERVERS).map(|number| shape.speed(number)).sum();
    let each = AT_ONCE as f64 / SERVERS as f64;
    let per_token = server.decode_base_ns as f64 / each + server.decode_ns_per_seq as f64;
    let seconds = |number: u64| {
        let draw = workload.draw(&prompts.prompt(number / GROUP).ids, number, &EveryPrompt);
        let tokens = f64::from(draw.length.min(MAX_RESPONSE));
        let cache_tokens = tokens * (PROMPT_TOKENS as f64 + tokens / 2.0);
        (tokens * per_token + cache_tokens * server.decode_ns_per_kv_token as f64) * 1e-9
    };
    let whole = (0..samples).map(seconds).sum::<f64>() / speed;
    match shape.fault() {
        None => whole,
        // After the fault the fleet has one server less.
        Some(_) => {
            let after = SERVERS as f64 / (SERVERS as f64 - 1.0);
            whole / (FAULT_AT + (1.0 - FAULT_AT) / after)
        }
    }
}
