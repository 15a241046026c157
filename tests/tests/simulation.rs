//! Whole steps on a simulated fleet in virtual time, with servers that die, stall, slow down, refuse and lie, and
//! with steps that are dropped half way. Every seed is a run of its own; a failure prints the seed that repeats it.
//!
//! `ROLLDOCK_SIM_STEPS` sets how many steps are run (2,000 by default), `ROLLDOCK_SIM_SEED` runs one seed only.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldock::data::{DataError, DataFields, Prompt, PromptSource, PromptUid};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{FinishReason, SampleOutput, SamplingParams};
use rolldock::recipe::{EarlyStop, Launch, OnStop, RequestShape};
use rolldock::rollout::{
    AgentLoopManager, CarryLimits, Grade, Grader, Grading, Group, PromptFeed, RolloutConfig, RolloutParts,
    RolloutTimeouts, Staleness, StepEnd, invariants, sample_seed,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::{
    BalancerConfig, EngineLoad, LoadBalancer, Monitor, MonitorConfig, Policy, ServerSpec,
};
use rolldock_reward::{
    Advantage, Estimator, FilterMetric, GateConfig, GateRule, Gates, GatesConfig, GroupFilter, Shaping,
};
use rolldock_simengine::{
    Answer, AnswerKey, Fault, LengthConfig, ServerConfig, SimServer, Workload, WorkloadConfig,
};

/// Right and wrong responses end in these; neither is filler.
const RIGHT: u32 = 7;
const WRONG: u32 = 8;
const EOS: u32 = 0;

struct EveryPrompt;

impl AnswerKey for EveryPrompt {
    fn answer(&self, _prompt_hash: u64) -> Option<Answer> {
        Some(Answer { right_ids: [RIGHT].into(), wrong_ids: [WRONG].into(), difficulty: None })
    }
}

struct LastToken;

impl Grader for LastToken {
    fn grade(&self, _prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        let right =
            output.finish_reason == FinishReason::Stop && output.response_ids.ends_with(&[RIGHT, EOS]);
        let acc = f32::from(u8::from(right));
        Ok(Grade {
            score: 2.0 * acc - 1.0,
            acc,
            overlong_penalty: 0.0,
            prediction: None,
            parts: Default::default(),
        })
    }
}

/// The published filter, sometimes off, sometimes with a gate on length that perhaps yields to a short step.
fn gates(rng: &mut StdRng) -> Gates {
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

struct Numbered {
    next: u64,
    end: u64,
}

impl PromptSource for Numbered {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        if self.next == self.end {
            return Ok(None);
        }
        let row = self.next;
        self.next += 1;
        Ok(Some(Prompt {
            uid: PromptUid(row),
            row,
            visit: 0,
            ids: vec![100, 200 + (row % 1000) as u32, 1300 + (row / 1000) as u32].into(),
            text: "".into(),
            answer: "".into(),
            source: "".into(),
            difficulty: None,
            fields: DataFields::default(),
        }))
    }
}

/// One random run.
struct World {
    rng: StdRng,
    config: RolloutConfig,
    engine: SimulatedEngine,
    balancer: LoadBalancer,
    /// Places of each server.
    capacity: u32,
    workload: Arc<Workload>,
    scope: Scope,
}

fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let scope = Scope::new();
        let length = LengthConfig {
            median_easy: 20.0,
            median_hard: 90.0,
            min: 3,
            max: 400,
            ..LengthConfig::default()
        };
        let workload = Arc::new(Workload::new(WorkloadConfig {
            seed,
            eos_id: EOS,
            length,
            ..WorkloadConfig::default()
        }));
        let samples_per_prompt = rng.random_range(2..=4);
        let servers: Vec<SimServer> = (0..rng.random_range(2..=4))
            .map(|number| {
                let config = ServerConfig {
                    name: format!("s{number}"),
                    max_num_seqs: rng.random_range(2..=12),
                    speed: pick(&mut rng, &[0.3, 1.0, 1.0, 2.0]),
                    ..ServerConfig::default()
                };
                SimServer::start(
                    config,
                    Arc::clone(&workload),
                    Arc::new(EveryPrompt),
                    scope.tracker(),
                    scope.token().clone(),
                )
                .unwrap()
            })
            .collect();
        let capacity = samples_per_prompt + rng.random_range(0..8);
        let specs = servers
            .iter()
            .map(|server| ServerSpec::unreached(server.config().name.clone(), capacity))
            .collect();
        let policy = pick(&mut rng, &Policy::ALL);
        let balancer =
            LoadBalancer::new(BalancerConfig { seed, policy, ..BalancerConfig::default() }, specs).unwrap();
        let on_stop = pick(&mut rng, &[OnStop::Discard, OnStop::Requeue, OnStop::Carry]);
        let request = match on_stop {
            // Samples are resumed one by one.
            OnStop::Carry => RequestShape::Sample,
            _ => pick(&mut rng, &[RequestShape::Sample, RequestShape::Sample, RequestShape::Group]),
        };
        let config = RolloutConfig {
            run_id: format!("sim{seed}").into(),
            seed,
            workers: rng.random_range(1..=3),
            max_concurrent_prompts: rng.random_range(1..=6),
            samples_per_prompt,
            gen_batch_size: rng.random_range(6..=16),
            max_gen_batches: rng.random_range(1..=4),
            max_response_length: 200,
            launch: pick(&mut rng, &[Launch::Batch, Launch::OnDemand]),
            early_stop: pick(&mut rng, &[EarlyStop::First, EarlyStop::Fifo, EarlyStop::Fifo, EarlyStop::Off]),
            on_stop,
            request,
            sample_attempts_max: 3,
            sampling: SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: Vec::new() },
            gates: Arc::new(gates(&mut rng)),
            advantage: Estimator::PerGroup(Advantage::GRPO),
            shaping: Shaping::default(),
            mask_truncated: false,
            staleness: Staleness::default(),
            carry: CarryLimits { stream: rng.random_bool(0.3), ..CarryLimits::default() },
            bias_guard: None,
            cache_salt: false,
            timeouts: RolloutTimeouts {
                sample: Duration::from_secs(120),
                permit: Duration::from_secs(60),
                reward: Duration::from_secs(10),
                drain: Duration::from_secs(5),
            },
            ledger_entries_max: 64,
            validation: false,
        };
        Self { rng, config, engine: SimulatedEngine::new(servers), balancer, capacity, workload, scope }
    }

    fn disturb(&mut self) {
        let names: Vec<String> = self.engine.servers().map(|server| server.config().name.clone()).collect();
        let name = &names[self.rng.random_range(0..names.len())];
        let server = self.engine.server(name).unwrap();
        match self.rng.random_range(0..18) {
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
            _ => {
                self.engine.servers().for_each(SimServer::heal);
                for name in names {
                    match self.balancer.find(&name) {
                        Some(id) => self.balancer.set_paused(id, false).unwrap(),
                        None => drop(self.balancer.add(ServerSpec::unreached(name, self.capacity)).unwrap()),
                    }
                }
            }
        }
    }

    /// Servers leave, join, are drained or paused, have other places, or are said to be as busy as they are not.
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
                self.balancer.observe(id, &EngineLoad { running, waiting, ..EngineLoad::default() })
            }
        };
        done.unwrap();
    }

    /// What was drawn is what was drawn, wherever and whenever it ran.
    fn check_samples(&self, group: &Group) {
        assert_eq!(group.samples.len() as u32, self.config.samples_per_prompt);
        for sample in &group.samples {
            let seed = sample_seed(self.config.seed, group.prompt.uid.0, group.prompt.visit, sample.attempt)
                + u64::from(sample.index);
            let draw = self.workload.draw(&group.prompt.ids, seed, &EveryPrompt);
            let length = draw.length.min(self.config.max_response_length);
            assert_eq!(sample.response_ids.len() as u32, length, "length of {group:?}");
            assert_eq!(sample.logprobs.len(), sample.response_ids.len());
            let covered = sample.version_spans.iter().fold(0, |end, span| {
                assert_eq!(span.start, end, "spans of {sample:?}");
                span.end
            });
            assert_eq!(covered, length, "spans of {sample:?}");
            assert_eq!(sample.acc == 1.0, draw.correct && draw.length <= length, "correctness");
        }
    }

    fn check_between_steps(&self, manager: &AgentLoopManager) {
        manager.check().unwrap();
        invariants::no_permit_out(self.balancer.snapshot().in_use()).unwrap();
        for server in self.engine.servers() {
            rolldock_simengine::invariants::check(&server.census()).unwrap();
            let stats = server.stats();
            assert_eq!((stats.running, stats.waiting), (0, 0), "{} is still busy", server.config().name);
        }
    }

    async fn run(mut self, steps: usize) -> Vec<(u64, u64)> {
        let monitor_config = MonitorConfig { stall: Duration::from_secs(5), ..MonitorConfig::default() };
        let monitor = Monitor::new(self.balancer.clone(), Arc::new(self.engine.clone()), monitor_config);
        let _monitoring = self.scope.spawn(monitor.run(self.scope.token().clone()));
        let parts = RolloutParts {
            engine: Arc::new(self.engine.clone()),
            balancer: self.balancer.clone(),
            grading: Grading::Inline(Arc::new(LastToken)),
        };
        let mut manager = AgentLoopManager::new(self.config.clone(), parts, self.scope.clone());
        let prompts = PromptFeed::inline(Box::new(Numbered { next: 0, end: 1_000_000 }));
        let mut seen = BTreeSet::new();
        let mut fingerprint = Vec::new();
        for step in 0..steps {
            let target = self.rng.random_range(1..=8.min(self.config.gen_batch_size));
            manager.control().set_policy_version(step as u64 / 2);
            let patience = if self.rng.random_bool(0.1) { 1.0 } else { 3600.0 };
            let collected = {
                let mut collecting = std::pin::pin!(manager.generate(&prompts, target));
                let give_up = tokio::time::Instant::now() + Duration::from_secs_f64(patience);
                loop {
                    let disturbance = Duration::from_millis(self.rng.random_range(200..4000));
                    tokio::select! {
                        biased;
                        output = &mut collecting => break Some(output.unwrap()),
                        () = tokio::time::sleep_until(give_up) => break None,
                        () = tokio::time::sleep(disturbance) => self.disturb(),
                    }
                }
            };
            let Some(output) = collected else {
                assert!(patience < 3600.0, "a step hangs: {:?}", self.config);
                // The dropped step's tasks are gone once they have been polled.
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.check_between_steps(&manager);
                continue;
            };
            let numbers: Vec<u64> = output.groups.iter().map(|group| group.number).collect();
            invariants::accepted_once(&numbers, target, &mut seen).unwrap();
            let kept = output.groups.iter().position(|group| group.set_aside.is_some());
            let (passed, kept) = output.groups.split_at(kept.unwrap_or(output.groups.len()));
            assert!(kept.iter().all(|group| group.set_aside.is_some()), "what yields comes last");
            if self.config.early_stop != EarlyStop::First {
                for part in [passed, kept] {
                    let numbers: Vec<u64> = part.iter().map(|group| group.number).collect();
                    invariants::in_dispatch_order(&numbers).unwrap();
                }
            }
            match output.metrics.end {
                StepEnd::Reached => assert_eq!(numbers.len(), target),
                StepEnd::OutOfBatches => assert!(numbers.len() < target),
                other => panic!("nobody asked for {other:?}"),
            }
            output.groups.iter().for_each(|group| self.check_samples(group));
            self.check_between_steps(&manager);
            fingerprint.extend(output.groups.iter().map(|group| (group.number, group.tokens())));
        }
        self.scope.close(Duration::from_secs(1)).await;
        fingerprint
    }
}

const STEPS_PER_SEED: usize = 10;

fn run_seed(seed: u64) -> Vec<(u64, u64)> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async { World::new(seed).run(STEPS_PER_SEED).await })
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}

#[test]
fn invariants_hold_whatever_happens_to_the_fleet() {
    if let Some(seed) = env_number("ROLLDOCK_SIM_SEED") {
        run_seed(seed);
        return;
    }
    let steps = env_number("ROLLDOCK_SIM_STEPS").unwrap_or(2_000) as usize;
    for seed in 0..steps.div_ceil(STEPS_PER_SEED) as u64 {
        let outcome = std::panic::catch_unwind(|| run_seed(seed));
        assert!(outcome.is_ok(), "repeat with ROLLDOCK_SIM_SEED={seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 5, 8] {
        assert_eq!(run_seed(seed), run_seed(seed), "seed={seed}");
    }
}

/// Nothing ends on a silent fleet, so nothing but the taking of prompts itself can ask for more of them.
#[tokio::test(start_paused = true)]
async fn workers_are_filled_before_anything_has_ended() {
    let mut world = World::new(1);
    world.config.workers = 4;
    world.config.max_concurrent_prompts = 50;
    world.config.gen_batch_size = 200;
    world.config.launch = Launch::Batch;
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let parts = RolloutParts {
        engine: Arc::new(world.engine.clone()),
        balancer: world.balancer.clone(),
        grading: Grading::Inline(Arc::new(LastToken)),
    };
    let mut manager = AgentLoopManager::new(world.config.clone(), parts, world.scope.clone());
    let view = manager.view();
    let prompts = PromptFeed::inline(Box::new(Numbered { next: 0, end: 1_000 }));
    let step = tokio::time::timeout(Duration::from_secs(1), manager.generate(&prompts, 200));
    let watch = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        view.counts().running
    };
    let (ended, running) = tokio::join!(step, watch);
    assert!(ended.is_err(), "a silent fleet finishes nothing");
    assert_eq!(running, 200);
}
