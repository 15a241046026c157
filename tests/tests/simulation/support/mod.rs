//! A small simulated fleet in virtual time, either random or calm, with prompts and a reward for which the
//! right answers are known.

mod lies;
mod problems;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldock::data::Prompt;
use rolldock::engine::SamplingParams;
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::rollout::{
    AgentLoopManager, CarryLimits, EarlyStop, Fill, Grading, Group, Launch, OnStop, RequestShape,
    RolloutConfig, RolloutParts, RolloutTimeouts, Sample, Staleness, StepMetrics, StopUnlikely, Stragglers,
    invariants, sample_seed,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{
    AdaptiveConfig, BalancerConfig, EngineLoad, LoadBalancer, Monitor, MonitorConfig, Policy, Priority,
    Probe, ServerSpec,
};
use rolldock_reward::{
    Advantage, Estimator, FilterMetric, GateConfig, GateRule, Gates, GatesConfig, GroupFilter, Shaping,
};
use rolldock_simengine::{AnswerKey, Fault, LengthConfig, ServerConfig, SimServer, Workload, WorkloadConfig};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use lies::{Dropping, Lie, Lying};
use problems::EOS;

pub(crate) use problems::{EveryPrompt, LastToken, ThreeKinds, prompt, prompts};

/// Draws gates: the published filter, which is sometimes off, and sometimes a gate on length. In some draws a
/// short step may ignore the gate on length.
fn random_gates(rng: &mut StdRng) -> Gates {
    let filter = GroupFilter { enable: rng.random_bool(0.8), metric: FilterMetric::Acc };
    let mut config = GatesConfig::from(filter);
    if rng.random_bool(0.3) {
        let most = Some(rng.random_range(30.0..150.0));
        let rule = GateRule::Length { mean_tokens_min: None, mean_tokens_max: most };
        config.gates.push(GateConfig { name: None, rule });
        if rng.random_bool(0.5) {
            config.keep_if_short.gates.push("length".to_owned());
        }
    }
    Gates::new(&config).unwrap()
}

fn random_config(seed: u64, samples_per_prompt: u32, rng: &mut StdRng) -> RolloutConfig {
    let on_stop = pick(rng, &[OnStop::Discard, OnStop::Requeue, OnStop::Carry]);
    let request = match on_stop {
        // Only a request for a single sample can be carried over and resumed.
        OnStop::Carry => RequestShape::Sample,
        _ => pick(rng, &[RequestShape::Sample, RequestShape::Sample, RequestShape::Group]),
    };
    RolloutConfig {
        workers: rng.random_range(1..=3),
        max_concurrent_prompts: rng.random_range(1..=6),
        fill: pick(rng, &[Fill::Samples, Fill::Groups]),
        samples_per_prompt,
        gen_batch_size: rng.random_range(6..=16),
        max_gen_batches: rng.random_range(1..=4),
        launch: pick(rng, &[Launch::Batch, Launch::OnDemand]),
        launch_confidence: pick(rng, &[0.5, 0.9, 0.99]),
        stragglers: pick(rng, &[Stragglers::Stay, Stragglers::Move, Stragglers::Hedge]),
        early_stop: pick(rng, &[EarlyStop::First, EarlyStop::Fifo, EarlyStop::Fifo, EarlyStop::Off]),
        on_stop,
        request,
        gates: Arc::new(random_gates(rng)),
        carry: CarryLimits { stream: rng.random_bool(0.3), ..CarryLimits::default() },
        stop_unlikely: rng.random_bool(0.3).then_some(StopUnlikely { below: 0.4, run_on: 0.5 }),
        timeouts: RolloutTimeouts {
            sample: Duration::from_secs(120),
            permit: Duration::from_secs(60),
            reward: Duration::from_secs(10),
            drain: Duration::from_secs(5),
        },
        ..plain_config(seed)
    }
}

fn watchful() -> MonitorConfig {
    MonitorConfig { stall: Duration::from_secs(5), ..MonitorConfig::default() }
}

fn random_monitor(capacity: u32, rng: &mut StdRng) -> MonitorConfig {
    let adaptive = AdaptiveConfig {
        start: capacity,
        min: rng.random_range(1..=capacity),
        max: capacity + rng.random_range(0..8),
        increase: 2,
        settle_ms: 1_000,
        ..AdaptiveConfig::default()
    };
    MonitorConfig {
        probe: pick(rng, &[Probe::Health, Probe::Generate]),
        adaptive: rng.random_bool(0.5).then_some(adaptive),
        ..watchful()
    }
}

/// A fleet, and the configuration of the rollout that uses it.
pub(crate) struct World {
    pub(crate) rng: StdRng,
    pub(crate) config: RolloutConfig,
    pub(crate) engine: SimulatedEngine,
    pub(crate) balancer: LoadBalancer,
    /// The number of permits of each server.
    pub(crate) capacity: u32,
    pub(crate) monitor: MonitorConfig,
    /// The control through which the monitor sees the servers; it can report false states.
    pub(crate) lying: Arc<Lying>,
    /// The share of requests that are dropped before they end.
    pub(crate) dropped_share: f64,
    /// The servers that refuse all requests until the given time, because they have another model.
    pub(crate) others_until: BTreeMap<String, Instant>,
    pub(crate) grading: Grading,
    pub(crate) workload: Arc<Workload>,
    pub(crate) answers: Arc<dyn AnswerKey>,
    pub(crate) scope: Scope,
}

pub(crate) fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

/// Runs a future on a paused clock, which advances only when all tasks are idle.
pub(crate) fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(work)
}

fn start_workload(seed: u64) -> Arc<Workload> {
    let length =
        LengthConfig { median_easy: 20.0, median_hard: 90.0, min: 3, max: 400, ..LengthConfig::default() };
    Arc::new(Workload::new(WorkloadConfig { seed, eos_id: EOS, length, ..WorkloadConfig::default() }))
}

fn start_server(
    config: ServerConfig,
    workload: &Arc<Workload>,
    answers: &Arc<dyn AnswerKey>,
    scope: &Scope,
) -> SimServer {
    let (tracker, cancel) = (scope.tracker(), scope.token().clone());
    SimServer::start(config, Arc::clone(workload), Arc::clone(answers), tracker, cancel).unwrap()
}

/// A configuration without randomness, whose deadlines are after the end of a test.
fn plain_config(seed: u64) -> RolloutConfig {
    const FAR: Duration = Duration::from_secs(360_000);
    RolloutConfig {
        run_id: format!("sim{seed}").into(),
        seed,
        workers: 1,
        max_concurrent_prompts: 4,
        fill: Fill::Samples,
        samples_per_prompt: 4,
        gen_batch_size: 16,
        max_gen_batches: 1_000,
        max_response_length: 200,
        launch: Launch::Batch,
        launch_confidence: 0.9,
        stragglers: Stragglers::Stay,
        early_stop: EarlyStop::Fifo,
        on_stop: OnStop::Requeue,
        request: RequestShape::Sample,
        sample_attempts_max: 3,
        sampling: SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() },
        gates: Arc::new(Gates::new(&GatesConfig::default()).unwrap()),
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
        timeouts: RolloutTimeouts { sample: FAR, permit: FAR, reward: FAR, drain: Duration::from_secs(5) },
        ledger_entries_max: 64,
        priority_new: Priority::New,
    }
}

impl World {
    /// Equal servers named `s0`, `s1` and so on, each with `capacity` permits, and `plain_config`.
    pub(crate) fn calm(servers: usize, capacity: u32) -> Self {
        Self::calm_with(start_workload(0), servers, capacity)
    }

    /// As [`Self::calm`], with another simulated model.
    pub(crate) fn calm_with(workload: Arc<Workload>, servers: usize, capacity: u32) -> Self {
        Self::calm_of((workload, Arc::new(EveryPrompt)), servers, capacity, &ServerConfig::default())
    }

    /// As [`Self::calm`], with servers of this configuration.
    pub(crate) fn calm_on(servers: usize, capacity: u32, config: &ServerConfig) -> Self {
        Self::calm_of((start_workload(0), Arc::new(EveryPrompt)), servers, capacity, config)
    }

    /// As [`Self::calm`], with another simulated model and prompts of these answers.
    pub(crate) fn calm_of(
        (workload, answers): (Arc<Workload>, Arc<dyn AnswerKey>),
        servers: usize,
        capacity: u32,
        config: &ServerConfig,
    ) -> Self {
        let scope = Scope::new();
        let server = |number: usize| {
            let config = ServerConfig { name: format!("s{number}"), ..config.clone() };
            start_server(config, &workload, &answers, &scope)
        };
        let engine = SimulatedEngine::new((0..servers).map(server));
        let specs = (0..servers).map(|number| ServerSpec::unreached(format!("s{number}"), capacity));
        let balancer = LoadBalancer::new(BalancerConfig::default(), specs.collect()).unwrap();
        Self {
            rng: StdRng::seed_from_u64(0),
            config: plain_config(0),
            lying: Arc::new(Lying::new(engine.clone())),
            engine,
            balancer,
            capacity,
            monitor: watchful(),
            dropped_share: 0.0,
            others_until: BTreeMap::new(),
            grading: Grading::Inline(Arc::new(LastToken)),
            workload,
            answers,
            scope,
        }
    }

    /// A random fleet with a random configuration.
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (scope, workload) = (Scope::new(), start_workload(seed));
        let answers: Arc<dyn AnswerKey> = Arc::new(EveryPrompt);
        let samples_per_prompt = rng.random_range(2..=4);
        let servers: Vec<SimServer> = (0..rng.random_range(2..=4))
            .map(|number| {
                let config = ServerConfig {
                    name: format!("s{number}"),
                    max_num_seqs: rng.random_range(2..=12),
                    speed: pick(&mut rng, &[0.3, 1.0, 1.0, 2.0]),
                    ..ServerConfig::default()
                };
                start_server(config, &workload, &answers, &scope)
            })
            .collect();
        let capacity = samples_per_prompt + rng.random_range(0..8);
        let specs = servers
            .iter()
            .map(|server| ServerSpec::unreached(server.config().name.clone(), capacity))
            .collect();
        let policy = pick(&mut rng, &Policy::ALL);
        let total = samples_per_prompt + rng.random_range(0..12);
        let capacity_total = rng.random_bool(0.3).then_some(total);
        let balancer = BalancerConfig { seed, policy, capacity_total, ..BalancerConfig::default() };
        let balancer = LoadBalancer::new(balancer, specs).unwrap();
        let config = random_config(seed, samples_per_prompt, &mut rng);
        let monitor = random_monitor(capacity, &mut rng);
        let dropped_share = pick(&mut rng, &[0.0, 0.02, 0.1]);
        let engine = SimulatedEngine::new(servers);
        Self {
            rng,
            config,
            lying: Arc::new(Lying::new(engine.clone())),
            engine,
            balancer,
            capacity,
            monitor,
            dropped_share,
            others_until: BTreeMap::new(),
            grading: Grading::Inline(Arc::new(LastToken)),
            workload,
            answers,
            scope,
        }
    }

    pub(crate) fn manager(&self) -> AgentLoopManager {
        let parts = RolloutParts {
            engine: Arc::new(Dropping {
                engine: self.engine.clone(),
                share: self.dropped_share,
                others_until: self.others_until.clone(),
            }),
            balancer: self.balancer.clone(),
            grading: self.grading.clone(),
        };
        AgentLoopManager::new(self.config.clone(), parts, self.scope.clone())
    }

    /// Monitors the health of the fleet until the returned guard is dropped.
    pub(crate) fn start_monitor(&self) -> AbortOnDropHandle<()> {
        let control = Arc::clone(&self.lying);
        let monitor = Monitor::new(self.balancer.clone(), control, self.monitor.clone());
        self.scope.spawn("server monitor", monitor.run(self.scope.token().clone()))
    }

    /// Makes one random change: a fault, a change of the fleet, a false report, or the repair of everything.
    pub(crate) fn disturb(&mut self) {
        let names: Vec<String> = self.engine.servers().map(|server| server.config().name.clone()).collect();
        let name = &names[self.rng.random_range(0..names.len())];
        let server = self.engine.server(name).unwrap();
        match self.rng.random_range(0..23) {
            0 => server.inject(Fault::Die),
            1 => server.inject(Fault::SigTerm),
            2 => server.inject(Fault::Stall),
            3 => server.inject(Fault::Slow { factor: self.rng.random_range(2.0..8.0) }),
            4 => server.inject(Fault::Busy503),
            5 => server.inject(Fault::Error500 { share: 0.3 }),
            6 => server.inject(Fault::Reset { share: 0.3 }),
            7 => server.inject(Fault::Nan { share: 0.2 }),
            8 => server.inject(Fault::Poison { share: 0.2 }),
            9..=13 => {
                let name = name.clone();
                self.disturb_membership(&name);
            }
            14..=17 => self.lying.tell(name, pick(&mut self.rng, &Lie::ALL)),
            _ => {
                self.engine.servers().for_each(SimServer::heal);
                self.lying.stop();
                for name in names {
                    match self.balancer.find(&name) {
                        Some(id) => self.balancer.set_paused(id, false).unwrap(),
                        None => drop(self.balancer.add(ServerSpec::unreached(name, self.capacity)).unwrap()),
                    }
                }
            }
        }
    }

    /// Adds the server if it is absent. Otherwise removes, drains or pauses it, changes its capacity, or
    /// reports a false load for it.
    fn disturb_membership(&mut self, name: &str) {
        let Some(id) = self.balancer.find(name) else {
            self.balancer.add(ServerSpec::unreached(name, self.capacity)).unwrap();
            return;
        };
        let done = match self.rng.random_range(0..5) {
            0 if self.balancer.snapshot().servers.len() > 1 => self.balancer.remove(id),
            1 => self.balancer.set_draining(id),
            2 => self.balancer.set_paused(id, true),
            3 => self.balancer.set_capacity(id, self.capacity + self.rng.random_range(0..8)),
            _ => {
                let (running, waiting) = (self.rng.random_range(0..50), self.rng.random_range(0..50));
                self.balancer.observe(id, &EngineLoad { running, waiting, ..EngineLoad::default() }, 0)
            }
        };
        done.unwrap();
    }

    /// Checks that each sample equals the draw of the workload, which depends on neither server nor time.
    pub(crate) fn check_samples(&self, group: &Group) {
        assert_eq!(group.samples.len() as u32, self.config.samples_per_prompt);
        for sample in &group.samples {
            let (length, is_right) = self.drawn(&group.prompt, sample.attempt, sample.index);
            assert_eq!(sample.response_ids.len() as u32, length, "length of {group:?}");
            assert_eq!(sample.logprobs.len(), sample.response_ids.len());
            let covered = sample.version_spans.iter().fold(0, |end, span| {
                assert_eq!(span.start, end, "spans of {sample:?}");
                span.end
            });
            assert_eq!(covered, length, "spans of {sample:?}");
            check_versions(sample);
            assert_eq!(sample.acc == 1.0, is_right, "correctness");
        }
    }

    /// The length of a sample in tokens and whether it is right, from its draw alone.
    pub(crate) fn drawn(&self, prompt: &Prompt, attempt: u32, index: u32) -> (u32, bool) {
        let seed = sample_seed(self.config.seed, prompt.uid.0, prompt.visit, attempt) + u64::from(index);
        let draw = self.workload.draw(&prompt.ids, seed, &*self.answers);
        let length = draw.length.min(self.config.max_response_length);
        (length, draw.correct && draw.length <= length)
    }

    /// Collects a step of `groups` groups, and ends the fleet. Checks that each sample equals its draw, and that every token
    /// that the servers generated is in a bucket.
    pub(crate) async fn collect_step(self, groups: usize) -> StepMetrics {
        let monitor = self.start_monitor();
        let mut manager = self.manager();
        let output = manager.generate(&prompts(1_000), groups).await.unwrap();
        assert_eq!(output.groups.len(), groups);
        output.groups.iter().for_each(|group| self.check_samples(group));
        self.check_between_steps(&manager);
        let generated = self.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
        invariants::tokens_counted(&output.metrics.tokens_run, generated).unwrap();
        drop(monitor);
        self.scope.close(Duration::from_secs(1)).await;
        output.metrics
    }

    pub(crate) fn check_between_steps(&self, manager: &AgentLoopManager) {
        manager.check().unwrap();
        invariants::no_permit_out(self.balancer.snapshot().in_use()).unwrap();
        for server in self.engine.servers() {
            rolldock_simengine::invariants::check(&server.census()).unwrap();
            let stats = server.stats();
            assert_eq!((stats.running, stats.waiting), (0, 0), "{} is still busy", server.config().name);
        }
    }
}

/// Checks that the versions of the spans never fall and match the range that the sample reports. Checks
/// nothing if a span has no version.
fn check_versions(sample: &Sample) {
    let numbers: Option<Vec<u64>> = sample.version_spans.iter().map(|span| span.number()).collect();
    let Some(numbers) = numbers else { return };
    assert!(numbers.is_sorted(), "versions of {sample:?}");
    let (first, last) = (numbers.first().copied(), numbers.last().copied());
    assert_eq!(first, Some(sample.policy_version_min), "versions of {sample:?}");
    if sample.versions_reported {
        assert_eq!(last, Some(sample.policy_version_max), "versions of {sample:?}");
    }
}
