//! Runs flows of steps. Groups that are in flight when a step ends count for the next step.
//!
//! The servers suffer random simulated faults. A trainer takes whole steps, trains for a while and
//! announces versions. The servers are paused for each version. Every seed is one run in virtual time, and
//! a failure prints the seed that repeats it.
//!
//! `ROLLDOCK_FLOW_RUNS` sets the number of runs (400 by default). `ROLLDOCK_FLOW_SEED` runs one seed only.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use crate::support::{World, in_virtual_time, pick, prompts};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldock::dispatch::{StepEnd, Totals};
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::rollout::{
    AgentLoopManager, BiasGuard, CarryLimits, EarlyStop, Group, GuardAction, Handed, OnSilence, OnStale,
    OnStop, PromptFeed, RequestShape, RolloutControl, RolloutView, Staleness, invariants,
};
use rolldock_simengine::PauseMode;
use rolldock_tests::env_number;
use tokio::sync::mpsc;
use tokio::time::Instant;

const RUNS: u64 = 400;
/// With at least this number of runs, the test asserts that each kind of event happened at least once.
const RUNS_TELLING: u64 = 200;
/// The time without progress after which the watchdog acts, in runs that have a watchdog.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest virtual time of a run. A run that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(6 * 3_600);

/// The settings of one run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rule: Staleness,
    target: usize,
    /// The numbers of the last steps of the two flows, which run one after the other.
    lasts: [u64; 2],
    /// The longest training time of a step, in seconds.
    training_s_max: f64,
    /// The longest time to put a group, in milliseconds.
    put_ms_max: u64,
    pause: PauseMode,
    /// Whether the watchdog gives up groups when there is no progress.
    has_watchdog: bool,
}

impl Plan {
    /// Draws a plan, and changes the configuration of the world to match it.
    fn draw(world: &mut World) -> Self {
        let rng = &mut world.rng;
        let on_stale = pick(
            rng,
            &[
                OnStale::Drop,
                OnStale::Requeue,
                OnStale::Requeue,
                OnStale::MaskTokens,
                OnStale::DeliverFlagged,
            ],
        );
        let rule = Staleness {
            max: rng.random_range(0..=3),
            on_stale,
            pacing: rng.random_bool(0.6),
            is_announced: true,
            first_version: rng.random_range(0..5),
            steps_per_version: rng.random_range(1..=2),
        };
        let config = &mut world.config;
        config.staleness = rule;
        config.max_gen_batches = 10_000;
        config.carry = CarryLimits { segments_max: pick(rng, &[2, 16]), ..config.carry };
        if rng.random_bool(0.5) {
            (config.on_stop, config.request) = (OnStop::Carry, RequestShape::Sample);
        }
        if rng.random_bool(0.3) {
            let action = pick(rng, &[GuardAction::Fifo, GuardAction::LongRound]);
            config.bias_guard = Some(BiasGuard { share: 0.05, action });
        }
        let first_flow = rng.random_range(1..=6);
        Self {
            rule,
            target: rng.random_range(1..=6),
            lasts: [first_flow, first_flow + rng.random_range(1..=6)],
            training_s_max: pick(rng, &[0.2, 1.0, 5.0, 30.0]),
            put_ms_max: pick(rng, &[1, 50, 2_000]),
            pause: pick(rng, &[PauseMode::Abort, PauseMode::Abort, PauseMode::Keep]),
            has_watchdog: rng.random_bool(0.5),
        }
    }

    fn steps(&self) -> u64 {
        self.lasts[1]
    }

    /// The largest number of groups that the rollout may be ahead of the trainer.
    fn ahead_max(&self) -> usize {
        self.target * (self.rule.max as usize + 1)
    }

    /// Whether no group can become too old, because dispatch is paced and groups are delivered in the order
    /// of their dispatch.
    fn never_discards(&self, early_stop: EarlyStop) -> bool {
        self.rule.pacing && early_stop.keeps_dispatch_order()
    }
}

/// A step that the trainer has taken.
struct Claim {
    step: u64,
    version: u64,
    groups: Vec<Group>,
}

/// Takes whole steps, trains on them, and updates the servers.
struct Trainer<'a> {
    plan: Plan,
    rng: StdRng,
    engine: SimulatedEngine,
    control: RolloutControl,
    /// The version with which servers label the tokens that they generate from now on.
    label: &'a Cell<u64>,
}

impl Trainer<'_> {
    async fn train(mut self, mut queue: mpsc::Receiver<Group>) -> Vec<Claim> {
        let mut claims = Vec::new();
        for step in 1..=self.plan.steps() {
            let mut groups = Vec::new();
            while groups.len() < self.plan.target {
                let Some(group) = queue.recv().await else { return claims };
                groups.push(group);
            }
            claims.push(Claim { step, version: self.control.policy_version(), groups });
            let training_s = self.rng.random_range(0.0..self.plan.training_s_max);
            tokio::time::sleep(Duration::from_secs_f64(training_s)).await;
            if step % self.plan.rule.steps_per_version == 0 {
                self.update().await;
            }
        }
        claims
    }

    /// Pauses all servers, gives them the label of the next version, resumes them, and announces the version.
    async fn update(&mut self) {
        for server in self.engine.servers() {
            server.pause(self.plan.pause).await;
        }
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..500))).await;
        let version = self.label.get() + 1;
        self.label.set(version);
        label_all(&self.engine, version);
        for server in self.engine.servers() {
            server.reset_prefix_cache(false);
            server.resume();
        }
        self.control.set_policy_version(version);
    }
}

fn label_all(engine: &SimulatedEngine, version: u64) {
    engine.servers().for_each(|server| server.update_weight_version(version.to_string()));
}

/// Hands groups to the trainer one after the other, and checks that their steps are in order.
struct Putter {
    plan: Plan,
    rng: StdRng,
    control: RolloutControl,
    view: RolloutView,
    queue: mpsc::Sender<Group>,
    step: u64,
    in_step: usize,
}

impl Putter {
    async fn put_all(&mut self, mut handed: mpsc::UnboundedReceiver<Handed>) {
        while let Some(handed) = handed.recv().await {
            let not_put = self.view.counts().not_put;
            assert!(not_put <= self.plan.ahead_max(), "not_put={not_put} {:?}", self.plan);
            match handed {
                Handed::Group(group) => self.put(*group).await,
                Handed::StepEnd(metrics) => {
                    assert_eq!((metrics.step, metrics.end), (self.step, StepEnd::Reached));
                    self.end_step();
                }
            }
        }
        // The last step of a flow has no `Handed::StepEnd`: its end is the return of `generate_flow`.
        self.end_step();
    }

    async fn put(&mut self, group: Group) {
        assert_eq!(group.step, self.step, "steps follow each other");
        self.in_step += 1;
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..self.plan.put_ms_max))).await;
        self.queue.send(group).await.unwrap_or_else(|_| panic!("the trainer has ended"));
        self.control.was_put();
    }

    fn end_step(&mut self) {
        assert_eq!(self.in_step, self.plan.target, "groups of step={}", self.step);
        self.step += 1;
        self.in_step = 0;
    }
}

async fn roll_out(manager: &mut AgentLoopManager, feed: &PromptFeed, plan: Plan, mut putter: Putter) {
    for last in plan.lasts {
        let (sender, handed) = mpsc::unbounded_channel();
        let flowing = manager.generate_flow(feed, plan.target, last, sender);
        let (ended, ()) = tokio::join!(flowing, putter.put_all(handed));
        let metrics = ended.unwrap();
        assert_eq!((metrics.step, metrics.end), (last, StepEnd::Reached));
        manager.check().unwrap();
    }
}

/// Counts of the events of a run.
#[derive(Debug, Default)]
struct Tally {
    stale: u64,
    carried: u64,
    resumed: u64,
    new_attempts: u64,
    flagged: u64,
    masked: u64,
    of_two_versions: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.stale += other.stale;
        self.carried += other.carried;
        self.resumed += other.resumed;
        self.new_attempts += other.new_attempts;
        self.flagged += other.flagged;
        self.masked += other.masked;
        self.of_two_versions += other.of_two_versions;
    }

    fn of(claims: &[Claim], totals: &Totals) -> Self {
        let mut tally = Self { stale: totals.stale, carried: totals.carried, ..Self::default() };
        for group in claims.iter().flat_map(|claim| &claim.groups) {
            tally.flagged += u64::from(group.is_stale && group.mask_before == 0);
            tally.masked += u64::from(group.mask_before > 0);
            for sample in &group.samples {
                tally.resumed += u64::from(sample.segments > 1);
                tally.new_attempts += u64::from(sample.attempt > 0);
                tally.of_two_versions += u64::from(sample.version_spans.len() > 1);
            }
        }
        tally
    }
}

/// Checks that a claim keeps the staleness rule.
fn check_claims(world: &World, plan: Plan, claims: &[Claim]) {
    assert_eq!(claims.len() as u64, plan.steps());
    let mut seen = BTreeSet::new();
    let numbers = |claim: &Claim| claim.groups.iter().map(|group| group.number).collect::<Vec<_>>();
    for claim in claims {
        let announced = (claim.step - 1) / plan.rule.steps_per_version;
        assert_eq!(claim.version, plan.rule.first_version + announced, "the trainer's own version");
        invariants::accepted_once(&numbers(claim), plan.target, &mut seen).unwrap();
        for group in &claim.groups {
            assert_eq!(group.step, claim.step);
            assert!(group.set_aside.is_none(), "no step was short");
            check_age(world, plan, claim.version, group);
            world.check_samples(group);
        }
    }
    if world.config.early_stop.keeps_dispatch_order() {
        let all: Vec<u64> = claims.iter().flat_map(numbers).collect();
        invariants::in_dispatch_order(&all).unwrap();
    }
}

fn check_age(world: &World, plan: Plan, version: u64, group: &Group) {
    let rule = plan.rule;
    let age = version.saturating_sub(group.policy_version_min());
    assert_eq!(group.staleness, age, "{group:?}");
    assert_eq!(group.is_stale, age > rule.max, "{group:?}");
    let masks = group.is_stale && rule.on_stale == OnStale::MaskTokens;
    assert_eq!(group.mask_before, if masks { version - rule.max } else { 0 }, "{group:?}");
    if matches!(rule.on_stale, OnStale::Drop | OnStale::Requeue)
        || plan.never_discards(world.config.early_stop)
    {
        assert!(age <= rule.max, "the group is too old at its claim: {group:?}");
    }
}

async fn run(seed: u64) -> (Vec<(u64, u64, u64)>, Tally) {
    let mut world = World::random(seed);
    let plan = Plan::draw(&mut world);
    let label = Cell::new(plan.rule.first_version);
    label_all(&world.engine, label.get());
    let _monitoring = world.start_monitor();
    let mut manager = world.manager();
    let (control, view) = (manager.control(), manager.view());
    let looking = control.watchdog(SILENCE, OnSilence::CancelAndRequeue);
    let (queue, waiting) = mpsc::channel(plan.ahead_max() + plan.target);
    let putter = Putter {
        plan,
        rng: StdRng::seed_from_u64(seed + 1),
        control: control.clone(),
        view,
        queue,
        step: 1,
        in_step: 0,
    };
    let trainer = Trainer {
        plan,
        rng: StdRng::seed_from_u64(seed + 2),
        engine: world.engine.clone(),
        control,
        label: &label,
    };
    let feed = prompts(1_000_000);
    let claims = {
        let rolling_out = roll_out(&mut manager, &feed, plan, putter);
        let mut running = pin!(async { tokio::join!(rolling_out, trainer.train(waiting)).1 });
        let acting = looking.clone();
        let mut acting = pin!(async {
            match plan.has_watchdog {
                true => acting.run().await,
                false => std::future::pending().await,
            }
        });
        let give_up = Instant::now() + LIMIT;
        loop {
            let disturbance = Duration::from_millis(world.rng.random_range(300..6_000));
            tokio::select! {
                biased;
                claims = &mut running => break claims,
                said = &mut acting => panic!("the watchdog stopped a run that must go on: {said}"),
                () = tokio::time::sleep_until(give_up) => panic!("the run hangs: {}; {plan:?}", looking.look(LIMIT)),
                () = tokio::time::sleep(disturbance) => {
                    world.disturb();
                    // A restarted server gets the version of the others.
                    label_all(&world.engine, label.get());
                }
            }
        }
    };
    check_claims(&world, plan, &claims);
    world.check_between_steps(&manager);
    let totals = manager.run_totals();
    if plan.never_discards(world.config.early_stop) {
        assert_eq!(totals.stale, 0, "no group may be discarded as stale: {plan:?}");
    }
    world.scope.close(Duration::from_secs(1)).await;
    let groups = claims.iter().flat_map(|claim| &claim.groups);
    let fingerprint = groups.map(|group| (group.number, group.tokens(), group.staleness)).collect();
    (fingerprint, Tally::of(&claims, &totals))
}

fn run_seed(seed: u64) -> (Vec<(u64, u64, u64)>, Tally) {
    in_virtual_time(run(seed))
}

#[test]
fn flows_hold_their_bounds_whatever_happens_to_the_fleet() {
    if let Some(seed) = env_number("ROLLDOCK_FLOW_SEED") {
        run_seed(seed);
        return;
    }
    let runs = env_number("ROLLDOCK_FLOW_RUNS").unwrap_or(RUNS);
    let mut tally = Tally::default();
    for seed in 0..runs {
        let outcome = std::panic::catch_unwind(|| run_seed(seed));
        let (_, of_run) = outcome.unwrap_or_else(|_| panic!("repeat with ROLLDOCK_FLOW_SEED={seed}"));
        tally.add(&of_run);
    }
    println!("{tally:?}");
    if runs < RUNS_TELLING {
        return;
    }
    let Tally { stale, carried, resumed, new_attempts, flagged, masked, of_two_versions } = tally;
    for times in [stale, carried, resumed, new_attempts, flagged, masked, of_two_versions] {
        assert!(times > 0, "something never happened: {tally:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_flow() {
    for seed in [1, 2, 4] {
        assert_eq!(run_seed(seed).0, run_seed(seed).0, "seed={seed}");
    }
}

/// A flow that is dropped in the middle of a step does not repeat the steps that ended before.
#[tokio::test(start_paused = true)]
async fn a_dropped_flow_is_followed_by_the_step_after_it() {
    let world = World::calm(2, 64);
    let mut manager = world.manager();
    let control = manager.control();
    let feed = prompts(1_000);
    let mut begun = 0;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let (sender, mut handed) = mpsc::unbounded_channel();
        let mut steps = Vec::new();
        {
            let mut flowing = pin!(manager.generate_flow(&feed, 2, 1_000, sender));
            while steps.len() < 7 {
                tokio::select! {
                    biased;
                    Some(handed) = handed.recv() => if let Handed::Group(group) = handed {
                        control.was_put();
                        assert!(seen.insert(group.number), "number={} was accepted twice", group.number);
                        steps.push(group.step);
                    },
                    ended = &mut flowing => panic!("the flow ended too early: {ended:?}"),
                }
            }
        }
        while let Ok(left) = handed.try_recv() {
            if let Handed::Group(group) = left {
                control.was_put();
                seen.insert(group.number);
                steps.push(group.step);
            }
        }
        assert_eq!(steps.first(), Some(&(begun + 1)));
        assert!(steps.is_sorted());
        begun = manager.view().step();
        assert!(begun >= *steps.last().unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.check_between_steps(&manager);
    }
    assert!(begun >= 12);
    world.scope.close(Duration::from_secs(1)).await;
}
