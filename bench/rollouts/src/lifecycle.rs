//! `lifecycle`: the path of a batch from generation to training, in virtual time. It consists of a simulated
//! fleet, the rollout in each mode, a queue, and a trainer that takes batches, trains for a while and
//! announces versions.
//!
//! Training takes half as long as a synchronous rollout. Two bounds are printed, both computed from the
//! draws. The saturation bound is the time of a fleet that is never idle. The other bound is for the plan's
//! staleness: no schedule is faster, even if it knows all lengths in advance. The trainer claims batches from
//! the queue, and the staleness of the claimed groups is compared with the plan's `max_staleness`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::policy::PolicyMode;
use rolldock::rollout::{
    AgentLoopManager, EarlyStop, Grading, Group, Handed, Launch, OnStop, PromptFeed, RolloutConfig,
    RolloutControl, RolloutParts, Staleness,
};
use rolldock::scope::Scope;
use rolldock_loadbalancer::Policy;
use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, Take, TransferQueue};
use rolldock_simengine::PauseMode;
use rolldock_simulate::bounds::{Lengths, Reference};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::rollout::{
    FleetShape, Mode, PROMPT_TOKENS, TARGET, config, fleet_model, in_virtual_time, reference, start_balancer,
    start_servers, workload,
};
use crate::workload::{LastToken, Numbered};
use rolldock_bench_figures::{Bar, Figure};

/// Number of steps. The first [`WARM_UP`] and the last [`COOL_DOWN`] steps do not count in step times: groups of later steps
/// run ahead, so the servers have less to do for the first and the last claims than for the others.
const STEPS: u64 = 28;
const WARM_UP: u64 = 4;
const COOL_DOWN: u64 = 4;
/// The last claim that counts, from 0.
const LAST: u64 = STEPS - 1 - COOL_DOWN;
/// Number of groups that a worker runs at a time. Together the groups have more samples than the fleet has slots,
/// so no slot is empty while the last sample of a group runs.
const CONCURRENT_PROMPTS: usize = 32;
/// The time of training divided by the time of a synchronous rollout.
const TRAINING_SHARE: f64 = 0.5;
/// The name of the comparison of routing policies.
const AFFINITY: &str = "group_affinity";
/// The lengths of its prompts, with the largest allowed step time of `group_affinity`, relative to `least_load`. Short
/// prompts gain nothing.
const AFFINITY_BARS: [(usize, f64); 3] = [(PROMPT_TOKENS, 1.01), (512, 0.99), (2_048, 0.95)];
const FLEET: FleetShape = FleetShape { servers: 8, mixed: false };
const TASK: &str = "train";
/// The longest wait for a claim, in virtual time.
const CLAIM_LIMIT: Duration = Duration::from_secs(360_000);

/// The configuration of a run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    name: &'static str,
    mode: PolicyMode,
    early_stop: EarlyStop,
    on_stop: OnStop,
    launch: Launch,
    max_staleness: u64,
    policy: Policy,
    prompt_tokens: usize,
    bars: Bars,
}

/// The largest allowed time of a step, relative to each of the two bounds.
#[derive(Debug, Clone, Copy, Default)]
struct Bars {
    staleness: Option<f64>,
    saturation: Option<f64>,
}

const SYNC: Plan = Plan {
    name: "sync (fifo, requeue)",
    mode: PolicyMode::Sync,
    early_stop: EarlyStop::Fifo,
    on_stop: OnStop::Requeue,
    launch: Launch::OnDemand,
    max_staleness: 0,
    policy: Policy::GroupAffinity,
    prompt_tokens: PROMPT_TOKENS,
    bars: Bars { staleness: None, saturation: None },
};
const PUBLISHED: Plan = Plan {
    name: "published recipe (first, discard, trained in turn)",
    early_stop: EarlyStop::First,
    on_stop: OnStop::Discard,
    launch: Launch::Batch,
    ..SYNC
};
const ONE_STEP_OFF: Plan = Plan {
    name: "one_step_off (fifo, carry)",
    mode: PolicyMode::OneStepOff,
    on_stop: OnStop::Carry,
    max_staleness: 1,
    bars: Bars { staleness: Some(1.20), saturation: Some(1.35) },
    ..SYNC
};
const FULLY_ASYNC: Plan = Plan {
    name: "fully_async (fifo, carry, max_staleness 2)",
    mode: PolicyMode::FullyAsync,
    on_stop: OnStop::Carry,
    launch: Launch::Batch,
    max_staleness: 2,
    bars: Bars { staleness: Some(1.05), saturation: Some(1.08) },
    ..SYNC
};
const FULLY_ASYNC_1: Plan = Plan {
    name: "fully_async (fifo, carry, max_staleness 1)",
    max_staleness: 1,
    bars: Bars { staleness: Some(1.12), saturation: Some(1.30) },
    ..FULLY_ASYNC
};
const PLANS: [Plan; 5] = [SYNC, PUBLISHED, ONE_STEP_OFF, FULLY_ASYNC_1, FULLY_ASYNC];

/// The results of a run without its warm-up.
struct Outcome {
    /// Mean time from claim to claim, in seconds.
    step_s: f64,
    /// Mean time of a step's rollout in seconds; `None` if steps overlap.
    rollout_s: Option<f64>,
    /// Claimed groups of all steps by their staleness.
    ages: BTreeMap<u64, u64>,
    /// Mean length of the accepted samples, divided by the mean length of the samples of the valid groups in
    /// data order.
    bias: f64,
    /// The share of right samples among the accepted samples, divided by the share among the samples of the
    /// valid groups in data order.
    acc_bias: f64,
    stale: u64,
    preemptions: u64,
}

/// A run in progress.
struct World {
    engine: SimulatedEngine,
    manager: AgentLoopManager,
    control: RolloutControl,
    prompts: PromptFeed,
    partition: Partition,
    scope: Scope,
}

/// Measures the plans whose names contain `part`, or all plans if `part` is absent.
pub fn measure(part: Option<&str>) -> anyhow::Result<Vec<Figure>> {
    let reference = reference(&workload(), &FLEET.speeds(), STEPS as usize);
    let alone = in_virtual_time(run(SYNC, Duration::ZERO, &reference))?;
    let rollout_s = alone.rollout_s.unwrap_or(alone.step_s);
    let training = Duration::from_secs_f64(rollout_s * TRAINING_SHARE);
    let sync = in_virtual_time(run(SYNC, training, &reference))?;
    let mut figures = vec![
        Figure::new("saturation bound of a step", reference.saturation_s / STEPS as f64, "s"),
        Figure::new("training of a step", training.as_secs_f64(), "s"),
    ];
    for plan in PLANS.into_iter().filter(|plan| part.is_none_or(|part| plan.name.contains(part))) {
        let outcome = in_virtual_time(run(plan, training, &reference))?;
        figures.extend(figures_of(plan, &outcome, &sync, &Bounds::new(&reference, plan, training)));
    }
    if part.is_none_or(|part| AFFINITY.contains(part)) {
        for (prompt_tokens, at_most) in AFFINITY_BARS {
            figures.push(affinity(prompt_tokens, training, &reference)?.bar(Bar::AtMost(at_most)));
        }
    }
    Ok(figures)
}

/// Step time of `fully_async` with the policy `group_affinity`, relative to `least_load`, for prompts of this length.
/// The caches have the same size, whatever the prompts.
fn affinity(prompt_tokens: usize, training: Duration, reference: &Reference) -> anyhow::Result<Figure> {
    let step_s = |policy| {
        let plan = Plan { policy, prompt_tokens, ..FULLY_ASYNC };
        anyhow::Ok(in_virtual_time(run(plan, training, reference))?.step_s)
    };
    let ratio = step_s(Policy::GroupAffinity)? / step_s(Policy::LeastLoad)?;
    let name =
        format!("{AFFINITY}, prompts of {prompt_tokens} tokens: step time / step time with least_load");
    Ok(Figure::new(name, ratio, "x"))
}

/// Lower bounds of the time of a step, in seconds.
struct Bounds {
    saturation_s: f64,
    staleness_s: f64,
}

impl Bounds {
    fn new(reference: &Reference, plan: Plan, training: Duration) -> Self {
        let claims = reference.claims_s(&fleet_model(FLEET), plan.max_staleness, training.as_secs_f64());
        let (first, last) = (claims[WARM_UP as usize], claims[LAST as usize]);
        Self {
            saturation_s: reference.saturation_s / STEPS as f64,
            staleness_s: (last - first) / (LAST - WARM_UP) as f64,
        }
    }
}

fn figures_of(plan: Plan, outcome: &Outcome, sync: &Outcome, bounds: &Bounds) -> Vec<Figure> {
    let name = |what: &str| format!("{}: {what}", plan.name);
    let per_hour = Figure::new(name("steps an hour (ratio: to sync)"), 3600.0 / outcome.step_s, "1/h")
        .against(3600.0 / sync.step_s);
    let over = |what: &str, bound_s: f64, bar: Option<f64>| {
        let figure = Figure::new(name(what), outcome.step_s / bound_s, "x");
        bar.into_iter().fold(figure, |figure, most| figure.bar(Bar::AtMost(most)))
    };
    let bias = Figure::new(name("length bias"), outcome.bias, "x");
    let acc_bias = Figure::new(name("accuracy bias"), outcome.acc_bias, "x");
    let oldest = outcome.ages.keys().next_back().copied().unwrap_or(0);
    let groups: u64 = outcome.ages.values().sum();
    let mean_age =
        outcome.ages.iter().map(|(age, count)| age * count).sum::<u64>() as f64 / groups.max(1) as f64;
    let stale = Figure::new(name("groups thrown away as stale"), outcome.stale as f64, "groups");
    vec![
        per_hour,
        over("step time / bound for this staleness", bounds.staleness_s, plan.bars.staleness),
        over("step time / saturation bound", bounds.saturation_s, plan.bars.saturation),
        if plan.early_stop == EarlyStop::Fifo { bias.bar(Bar::Within(0.99, 1.01)) } else { bias },
        if plan.early_stop == EarlyStop::Fifo { acc_bias.bar(Bar::Within(0.99, 1.01)) } else { acc_bias },
        Figure::new(name("greatest staleness at a claim"), oldest as f64, "versions")
            .bar(Bar::AtMost(plan.max_staleness as f64)),
        Figure::new(name("mean staleness at a claim"), mean_age, "versions"),
        if plan.max_staleness > 0 { stale.bar(Bar::AtMost(0.0)) } else { stale },
        Figure::new(name("preemptions of a step"), outcome.preemptions as f64 / STEPS as f64, "samples"),
    ]
}

impl World {
    async fn new(plan: Plan) -> anyhow::Result<Self> {
        let scope = Scope::new();
        let engine = SimulatedEngine::new(start_servers(&FLEET.speeds(), &workload(), &scope)?);
        let parts = RolloutParts {
            engine: Arc::new(engine.clone()),
            balancer: start_balancer(&engine, None, plan.policy, &scope)?,
            grading: Grading::Inline(Arc::new(LastToken)),
        };
        let rollout = RolloutConfig {
            early_stop: plan.early_stop,
            on_stop: plan.on_stop,
            launch: plan.launch,
            max_concurrent_prompts: CONCURRENT_PROMPTS,
            staleness: Staleness { max: plan.max_staleness, is_announced: true, ..Staleness::default() },
            ..config(FLEET, Mode::Moving)?
        };
        let manager = AgentLoopManager::new(rollout, parts, scope.clone());
        let queue = TransferQueue::open(QueueConfig::default())?;
        let capacity = TARGET * (plan.max_staleness as usize + 2);
        let partition = queue.declare(PartitionSpec::new("train", [TASK], capacity)).await?;
        let prompts = PromptFeed::inline(Box::new(Numbered::new(plan.prompt_tokens)));
        Ok(Self { engine, control: manager.control(), manager, prompts, partition, scope })
    }
}

async fn run(plan: Plan, training: Duration, reference: &Reference) -> anyhow::Result<Outcome> {
    let World { engine, mut manager, control, prompts, partition, scope } = World::new(plan).await?;
    let version = watch::Sender::new(0_u64);
    let ended = watch::Sender::new(0_u64);
    let (sender, handed) = mpsc::unbounded_channel();
    let trainer = Trainer {
        plan,
        training,
        engine: engine.clone(),
        control: control.clone(),
        partition: partition.clone(),
        version: &version,
        ended: &ended,
    };
    let rolling_out = async {
        let mut times = Vec::new();
        if plan.mode == PolicyMode::FullyAsync {
            manager.generate_flow(&prompts, TARGET, STEPS, sender).await?;
            return Ok((times, manager.run_totals().stale));
        }
        let lag = u64::from(plan.mode == PolicyMode::OneStepOff);
        for step in 1..=STEPS {
            version.subscribe().wait_for(|version| version + lag + 1 >= step).await?;
            times.push(manager.generate_into(&prompts, TARGET, sender.clone()).await?.elapsed);
            ended.send_replace(step);
        }
        drop(sender);
        anyhow::Ok((times, manager.run_totals().stale))
    };
    let putting = put_all(handed, &partition, &control);
    let ((times, stale), accepted, claims) = tokio::try_join!(rolling_out, putting, trainer.train())?;
    let preemptions = engine.servers().map(|server| server.stats().preemptions_total).sum();
    scope.close(Duration::from_secs(1)).await;
    let counted = times.get(WARM_UP as usize..).filter(|times| !times.is_empty());
    let [first, last] = [WARM_UP, LAST].map(|claim| claims.at.get(claim as usize).copied());
    let (Some(first), Some(last)) = (first, last) else { anyhow::bail!("too few claims") };
    Ok(Outcome {
        step_s: (last - first).as_secs_f64() / (LAST - WARM_UP) as f64,
        rollout_s: counted.map(|times| times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64),
        ages: claims.ages,
        bias: accepted.mean_length() / reference.all_valid().mean_length(),
        acc_bias: accepted.mean_acc() / reference.all_valid().mean_acc(),
        stale,
        preemptions,
    })
}

/// Puts each accepted group as one row, because only the order and the versions of groups matter here.
async fn put_all(
    mut handed: mpsc::UnboundedReceiver<Handed>,
    partition: &Partition,
    control: &RolloutControl,
) -> anyhow::Result<Lengths> {
    let mut lengths = Lengths::default();
    while let Some(handed) = handed.recv().await {
        let Handed::Group(group) = handed else { continue };
        partition.put(row(&group)?, Some(Instant::now() + CLAIM_LIMIT)).await?;
        control.was_put();
        for sample in &group.samples {
            lengths.add(sample.response_ids.len() as u32, sample.acc == 1.0);
        }
    }
    partition.end_of_puts();
    Ok(lengths)
}

fn row(group: &Group) -> anyhow::Result<Put> {
    let number: ArrayRef = Arc::new(UInt64Array::from(vec![group.number]));
    let batch = RecordBatch::try_from_iter([("number", number)])?;
    Ok(Put { policy_version: group.policy_version_min(), ..Put::group(group.number.to_string(), batch) })
}

/// A trainer that takes batches, trains and announces versions.
struct Trainer<'a> {
    plan: Plan,
    training: Duration,
    engine: SimulatedEngine,
    control: RolloutControl,
    partition: Partition,
    version: &'a watch::Sender<u64>,
    /// The last step whose rollout has ended.
    ended: &'a watch::Sender<u64>,
}

/// The times at which batches were claimed, and the staleness of their groups.
struct Claims {
    at: Vec<Instant>,
    ages: BTreeMap<u64, u64>,
}

impl Trainer<'_> {
    async fn train(self) -> anyhow::Result<Claims> {
        let mut claims = Claims { at: Vec::new(), ages: BTreeMap::new() };
        for version in 0..STEPS {
            let take = Take { at_least: TARGET, ..Take::groups(TASK, TARGET) };
            let lease = self.partition.take(&take.until(Instant::now() + CLAIM_LIMIT)).await?;
            let Some(lease) = lease else { anyhow::bail!("no batch for version={version}") };
            anyhow::ensure!(lease.rows().len() == TARGET, "a batch of {} groups", lease.rows().len());
            claims.at.push(Instant::now());
            for generated_by in lease.policy_versions() {
                *claims.ages.entry(version - generated_by).or_default() += 1;
            }
            lease.ack().await?;
            tokio::time::sleep(self.training).await;
            if self.plan.mode == PolicyMode::OneStepOff {
                // As in a run, the servers get new weights between two steps.
                let under_way = (version + 2).min(STEPS);
                self.ended.subscribe().wait_for(|ended| *ended >= under_way).await?;
            }
            self.update(version + 1).await?;
        }
        Ok(claims)
    }

    /// Updates the weights of all servers together, and announces the version. Running samples continue with the new
    /// weights, as by default in a run.
    async fn update(&self, version: u64) -> anyhow::Result<()> {
        for server in self.engine.servers() {
            server.pause(PauseMode::Keep).await;
        }
        for server in self.engine.servers() {
            server.update_weight_version(version.to_string());
            server.reset_prefix_cache(false);
            server.resume();
        }
        self.partition.announce(version).await?;
        self.control.set_policy_version(version);
        self.version.send_replace(version);
        Ok(())
    }
}
