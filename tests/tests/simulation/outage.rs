//! Rollouts with a temporary or a permanent outage of the reward or of a gate, in virtual time. An outage costs no
//! group. The engines' counts of tokens show that no sample is generated twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{World, prompts};
use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock::data::TextCodec;
use rolldock::dispatch::{StepEnd, Totals};
use rolldock::rollout::{
    AgentLoopManager, EarlyStop, Grading, Hold, OnSilence, OnStop, OutsideGrader, RolloutError, RolloutOutput,
};
use rolldock::scope::Scope;
use rolldock_reward::{ExternalConfig, Gates, GatesConfig, RewardError, RewardJob, RewardRunner, Score};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// The number of groups of a step.
const TARGET: usize = 16;
/// The number of answers before the outage of the reward begins.
const ANSWERS_BEFORE: u64 = 10;
/// When the reward answers again, on the clock of a test.
const BACK_AT: Duration = Duration::from_secs(600);
/// The virtual time that no step may exceed.
const LIMIT: Duration = Duration::from_secs(3_000);

/// A reward whose outage begins after some answers.
struct Flaky {
    began: Instant,
    back_at: Duration,
    answers: AtomicU64,
}

impl Flaky {
    fn new(back_at: Duration) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), back_at, answers: AtomicU64::new(0) })
    }
}

impl RewardRunner for Flaky {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        async {
            let is_out = self.answers.load(Ordering::Relaxed) >= ANSWERS_BEFORE;
            if is_out && self.began.elapsed() < self.back_at {
                return Err(RewardError::Unreachable { what: "the test".into(), reason: "it is out".into() });
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
            Ok(Score::right_or_wrong(true, None))
        }
        .boxed()
    }
}

/// A reward that fails for the same reason at every request.
struct Raises;

impl RewardRunner for Raises {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        async { Err(RewardError::Raised { what: "the test".into(), reason: "ValueError".into() }) }.boxed()
    }
}

/// A runner behind the guard of a recipe. The tasks of the guard end with `scope`.
fn guarded(runner: Arc<dyn RewardRunner>, scope: &Scope) -> Arc<dyn RewardRunner> {
    let config = ExternalConfig { outage_deadline_s: 1_000.0, ..ExternalConfig::default() };
    config.guard_runner(runner, 64, scope.tracker().clone(), scope.token().clone()).unwrap()
}

/// A world whose steps await all of their groups, unless a test sets `early_stop`. Each sample must be generated within
/// a minute.
fn world() -> World {
    let mut world = World::calm(2, 64);
    world.config.early_stop = EarlyStop::Off;
    world.config.gen_batch_size = TARGET;
    world.config.max_gen_batches = 1;
    world.config.timeouts.sample = Duration::from_secs(60);
    world
}

fn graded_by(world: &mut World, runner: Arc<dyn RewardRunner>, scope: &Scope) {
    let codec = Arc::new(TextCodec::builtin().unwrap());
    let grader = OutsideGrader { codec, runner: guarded(runner, scope), overlong: None };
    world.grading = Grading::Outside { grader, places: 4 };
}

fn tokens_generated(world: &World) -> u64 {
    world.engine.servers().map(|server| server.stats().generation_tokens_total).sum()
}

/// Runs a step, its watchdog, and `meanwhile` at the same time. The watchdog is configured to give up groups.
async fn step(
    manager: &mut AgentLoopManager,
    meanwhile: impl Future<Output = ()>,
) -> Result<RolloutOutput, RolloutError> {
    let watchdog = manager.control().watchdog(Duration::from_secs(20), OnSilence::CancelAndRequeue);
    let feed = prompts(1_000);
    let beside = async {
        tokio::join!(watchdog.run(), meanwhile);
    };
    tokio::select! {
        biased;
        collected = timeout(LIMIT, manager.generate(&feed, TARGET)) => collected.unwrap_or_else(|_| panic!("the step hangs")),
        () = beside => panic!("the watchdog has ended"),
    }
}

/// Waits until every dispatched sample is complete, and checks that the rollout then waits only for the
/// reward.
async fn waits_for_the_reward(world: &World, view: rolldock::rollout::RolloutView) {
    sleep(Duration::from_secs(100)).await;
    let (counts, tokens) = (view.counts(), tokens_generated(world));
    assert_eq!(counts.hold, Some(Hold::Reward), "{counts:?}");
    assert!(counts.running > 0, "{counts:?}");
    assert_eq!(world.balancer.snapshot().in_use(), 0, "no permit is held while a grade is awaited");
    sleep(Duration::from_secs(400)).await;
    assert_eq!((view.counts(), tokens_generated(world)), (counts, tokens), "nothing is sent out");
}

fn assert_nothing_was_lost(world: &World, output: &RolloutOutput) {
    let RolloutOutput { groups, metrics } = output;
    assert_eq!((metrics.end, groups.len()), (StepEnd::Reached, TARGET));
    let groups_only = Totals { accepted: TARGET as u64, dispatched: TARGET as u64, ..Totals::default() };
    assert_eq!(metrics.totals, groups_only, "each group was sent out once");
    let accepted: u64 = groups.iter().map(|group| group.tokens()).sum();
    assert_eq!(accepted, tokens_generated(world), "each token was generated once");
    assert!(metrics.elapsed >= BACK_AT, "{:?}", metrics.elapsed);
}

/// Runs a step with an outage, and checks that no group and no token is lost.
async fn assert_a_step_loses_nothing(world: &World) {
    let mut manager = world.manager();
    let view = manager.view();
    let output = step(&mut manager, waits_for_the_reward(world, view)).await.unwrap();
    assert_nothing_was_lost(world, &output);
    world.check_between_steps(&manager);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_reward_costs_no_group_and_no_token() {
    let (mut world, rewards) = (world(), Scope::new());
    graded_by(&mut world, Flaky::new(BACK_AT), &rewards);
    assert_a_step_loses_nothing(&world).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_a_gate_costs_no_group_and_no_token() {
    let (mut world, rewards) = (world(), Scope::new());
    let mut gates = Gates::new(&GatesConfig::default()).unwrap();
    gates.push_outside("mine", guarded(Flaky::new(BACK_AT), &rewards), false).unwrap();
    world.config.gates = Arc::new(gates);
    assert_a_step_loses_nothing(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_of_steps_waits_out_an_outage() {
    let (mut world, rewards) = (world(), Scope::new());
    world.config.early_stop = EarlyStop::Fifo;
    graded_by(&mut world, Flaky::new(BACK_AT), &rewards);
    let mut manager = world.manager();
    let (view, control) = (manager.view(), manager.control());
    let (sender, mut handed) = mpsc::unbounded_channel();
    let taking = async {
        while handed.recv().await.is_some() {
            control.was_put();
        }
    };
    let feed = prompts(1_000);
    let flow = timeout(LIMIT, manager.generate_flow(&feed, TARGET, 2, sender));
    let (ended, (), ()) = tokio::join!(flow, taking, waits_for_the_reward(&world, view));
    let metrics = ended.unwrap_or_else(|_| panic!("the flow hangs")).unwrap();
    assert_eq!((metrics.step, metrics.end), (2, StepEnd::Reached));
    let totals = manager.run_totals();
    assert_eq!((totals.accepted, totals.failed, totals.filtered), (2 * TARGET as u64, 0, 0), "{totals:?}");
    world.check_between_steps(&manager);
}

#[tokio::test(start_paused = true)]
async fn a_reward_that_stays_out_ends_the_step_and_fails_no_group() {
    for on_stop in [OnStop::Requeue, OnStop::Carry] {
        let (mut world, rewards) = (world(), Scope::new());
        world.config.on_stop = on_stop;
        graded_by(&mut world, Flaky::new(LIMIT), &rewards);
        let mut manager = world.manager();
        let began = Instant::now();
        let error = step(&mut manager, std::future::pending()).await.unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, RolloutError::Reward { .. }), "{words}");
        assert_eq!(
            words,
            "no score for outage_deadline_s=1000; the last error: the test gave no answer: it is out"
        );
        let took = began.elapsed().as_secs();
        assert!((1_000..1_010).contains(&took), "{took}");
        let totals = manager.run_totals();
        let comes_back = totals.carried + totals.requeued + totals.held;
        assert_eq!(totals.dispatched, totals.accepted + comes_back, "{totals:?}");
        assert!(totals.carried > 0, "whole samples are kept: {totals:?}");
        world.check_between_steps(&manager);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_step_in_an_outage_and_keeps_whole_samples() {
    let (mut world, rewards) = (world(), Scope::new());
    world.config.on_stop = OnStop::Carry;
    graded_by(&mut world, Flaky::new(LIMIT), &rewards);
    let mut manager = world.manager();
    let interrupting = async {
        sleep(Duration::from_secs(200)).await;
        world.scope.token().cancel();
    };
    let began = Instant::now();
    let output = step(&mut manager, interrupting).await.unwrap();
    assert_eq!(output.metrics.end, StepEnd::Interrupted);
    assert!(began.elapsed() < Duration::from_secs(210), "{:?}", began.elapsed());
    let (totals, tokens) = (&output.metrics.totals, &output.metrics.tokens);
    assert_eq!(totals.dispatched, totals.accepted + totals.carried + totals.held, "{totals:?}");
    let accepted: u64 = output.groups.iter().map(|group| group.tokens()).sum();
    assert_eq!(accepted + tokens.held + tokens.carried, tokens_generated(&world), "{tokens:?}");
    world.check_between_steps(&manager);
}

#[tokio::test(start_paused = true)]
async fn failures_of_samples_cost_their_groups_and_hold_nothing_back() {
    let (mut world, rewards) = (world(), Scope::new());
    graded_by(&mut world, Arc::new(Raises), &rewards);
    let mut manager = world.manager();
    let view = manager.view();
    let watching = async {
        loop {
            assert_ne!(view.counts().hold, Some(Hold::Reward));
            sleep(Duration::from_millis(10)).await;
        }
    };
    let output = step(&mut manager, watching).await.unwrap();
    assert_eq!(output.metrics.end, StepEnd::OutOfBatches);
    assert_eq!(output.metrics.totals.failed, TARGET as u64);
    world.check_between_steps(&manager);
}
