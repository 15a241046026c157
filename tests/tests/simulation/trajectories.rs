//! Rollouts whose samples are trajectories: three turns each, with a tool between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{Array, ListArray, UInt8Array};
use futures::FutureExt;
use futures::future::BoxFuture;
use rand::RngExt;
use rolldock::rollout::{
    EarlyStop, EndedTrajectory, Group, OnStop, Phase, RolloutOutput, TrajectoryFailure, TrajectoryJob,
    TrajectoryRunner, TurnPrompt, invariants,
};
use rolldock::rows::group_rows;
use rolldock_simengine::Fault;
use rolldock_trajectory::{
    Chat, Emitted, HistoryPolicy, Request, Sampled, Template, TemplateError, Trajectory, invariants as forest,
};

use crate::support::{World, in_virtual_time, prompts};

const TURNS: u32 = 3;
const TURN_TOKENS_MAX: u32 = 60;
/// The token ids of the tool's answer.
const ANSWERED: [u32; 2] = [901, 902];

/// Prompts are token ids here, so nothing is rendered.
struct NoTemplate;

impl Template for NoTemplate {
    fn render(&self, _chat: &Chat<'_>) -> Result<String, TemplateError> {
        Err(TemplateError("expected ids".to_owned()))
    }

    fn encode(&self, _text: &str) -> Result<Vec<u32>, TemplateError> {
        Err(TemplateError("expected ids".to_owned()))
    }

    fn decode(&self, _ids: &[u32]) -> String {
        String::new()
    }

    fn is_end(&self, id: u32) -> bool {
        id == 0
    }
}

/// What happens between two turns.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    Takes(Duration),
    Fails,
    Hangs,
}

/// Counts trajectories that are dropped in a turn, and in a tool.
#[derive(Default)]
struct Drops {
    in_turn: AtomicU64,
    in_tool: AtomicU64,
}

/// Adds one to the counter when it is dropped, unless it was forgotten with `std::mem::forget`.
struct Counts<'a>(&'a AtomicU64);

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Turns {
    tool: Tool,
    drops: Arc<Drops>,
}

impl Turns {
    fn of(tool: Tool) -> (Arc<Self>, Arc<Drops>) {
        let drops = Arc::<Drops>::default();
        (Arc::new(Self { tool, drops: Arc::clone(&drops) }), drops)
    }

    async fn trajectory(&self, job: TrajectoryJob) -> Result<EndedTrajectory, TrajectoryFailure> {
        let mut trajectory = Trajectory::new(Arc::clone(&job.uid), HistoryPolicy::Append);
        let mut prompt = trajectory.prompt(&Request::ids(job.prompt.ids.to_vec()), &NoTemplate).unwrap();
        let (mut server, mut spent): (Arc<str>, _) = ("".into(), Default::default());
        for number in 0..TURNS {
            let turn = TurnPrompt { number, ids: prompt.ids().into(), tokens_max: TURN_TOKENS_MAX };
            let dropped = Counts(&self.drops.in_turn);
            let answer = job.calls.turn(&turn).await;
            std::mem::forget(dropped);
            let answer = answer?;
            (server, spent) = (answer.server, answer.spent);
            let sampled = Sampled::try_from(answer.sampled).unwrap();
            let right = f32::from(u8::from(sampled.ids.ends_with(&[7, 0])));
            let id = trajectory.add(&prompt, sampled, &Emitted::text("said")).unwrap();
            trajectory.apply(Trajectory::record_reward(id, right)).unwrap();
            prompt = trajectory.extend(id, &ANSWERED).unwrap();
            self.use_tool(&job).await?;
        }
        let reward = trajectory.turns().filter_map(|turn| turn.reward()).sum();
        Ok(EndedTrajectory {
            trajectory,
            reward: Some(reward),
            end: "done",
            is_truncated: false,
            reencoded: Vec::new(),
            metadata: "{}".to_owned(),
            spent,
            server,
        })
    }

    async fn use_tool(&self, job: &TrajectoryJob) -> Result<(), TrajectoryFailure> {
        let _in_tool = job.calls.enter(Phase::Environment, None, "a tool");
        let dropped = Counts(&self.drops.in_tool);
        match self.tool {
            Tool::Takes(time) => tokio::time::sleep(time).await,
            Tool::Fails => {
                std::mem::forget(dropped);
                return Err(TrajectoryFailure::new("the tool is broken"));
            }
            Tool::Hangs => std::future::pending().await,
        }
        std::mem::forget(dropped);
        Ok(())
    }
}

impl TrajectoryRunner for Turns {
    fn run(&self, job: TrajectoryJob) -> BoxFuture<'_, Result<EndedTrajectory, TrajectoryFailure>> {
        self.trajectory(job).boxed()
    }
}

/// Checks that the rows of a group train each sampled token once, and that the columns of the batch agree.
fn check_group(group: &Group) {
    let mut trained = 0;
    for sample in &group.samples {
        let trajectory = sample.trajectory.as_ref().unwrap();
        let [row] = trajectory.rows.as_slice() else { panic!("{} rows", trajectory.rows.len()) };
        forest::aligned(&trajectory.rows).unwrap();
        let sampled: u32 = row.turns.iter().map(|turn| turn.end - turn.start).sum();
        let marked: u32 = row.response_mask.iter().map(|bit| u32::from(*bit)).sum();
        assert_eq!((sampled, marked), (sample.response_ids.len() as u32, sample.response_ids.len() as u32));
        assert_eq!(row.turns.len(), TURNS as usize);
        assert_eq!(row.response_ids.len() as u32, sampled + (TURNS - 1) * ANSWERED.len() as u32);
        assert_eq!(*row.prompt_ids, *group.prompt.ids);
        let rewards: f32 = row.turns.iter().map(|turn| turn.reward.unwrap()).sum();
        assert_eq!((sample.score, sample.acc), (rewards, rewards.min(1.0)));
        trained += u64::from(marked);
    }
    assert_eq!(trained, group.tokens());
    let batch = group_rows(group).unwrap();
    assert_eq!(batch.num_rows(), group.samples.len());
    let masks = batch.column_by_name("response_mask").unwrap().as_any().downcast_ref::<ListArray>().unwrap();
    let bits = masks.values().as_any().downcast_ref::<UInt8Array>().unwrap();
    assert_eq!(bits.values().iter().map(|bit| u64::from(*bit)).sum::<u64>(), trained);
    let starts = batch.column_by_name("turn_starts").unwrap().as_any().downcast_ref::<ListArray>().unwrap();
    assert_eq!(starts.values().len(), group.samples.len() * TURNS as usize);
}

/// Collects a step of eight groups on two servers.
async fn step(world: &World, runner: Arc<Turns>) -> RolloutOutput {
    let monitor = world.start_monitor();
    let mut manager = world.manager().with_trajectories(runner);
    let output = manager.generate(&prompts(1_000), 8).await.unwrap();
    output.groups.iter().for_each(check_group);
    world.check_between_steps(&manager);
    drop(monitor);
    output
}

fn count_tokens(world: &World, output: &RolloutOutput) {
    let generated = world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
    invariants::tokens_counted(&output.metrics.tokens_run, generated).unwrap();
}

#[test]
fn an_early_stop_cuts_trajectories_in_a_turn_and_in_a_tool_and_counts_each_token_once() {
    for on_stop in [OnStop::Discard, OnStop::Requeue] {
        in_virtual_time(async {
            let mut world = World::calm(2, 24);
            (world.config.early_stop, world.config.on_stop) = (EarlyStop::First, on_stop);
            world.config.workers = 3;
            let (runner, drops) = Turns::of(Tool::Takes(Duration::from_millis(700)));
            let output = step(&world, runner).await;
            assert_eq!(output.groups.len(), 8);
            count_tokens(&world, &output);
            let (in_turn, in_tool) = (&drops.in_turn, &drops.in_tool);
            let cut = (in_turn.load(Ordering::Relaxed), in_tool.load(Ordering::Relaxed));
            assert!(cut.0 > 0 && cut.1 > 0, "{on_stop:?}: {cut:?}");
            assert!(output.metrics.tokens.wasted.cut > 0, "{:?}", output.metrics.tokens);
            assert_eq!(output.metrics.tokens.accepted, output.groups.iter().map(Group::tokens).sum::<u64>());
            world.scope.close(Duration::from_secs(1)).await;
        });
    }
}

#[test]
fn a_server_that_dies_in_a_turn_costs_the_turn_and_not_the_trajectory() {
    in_virtual_time(async {
        let world = World::calm(2, 24);
        let (runner, _) = Turns::of(Tool::Takes(Duration::from_millis(50)));
        let engine = world.engine.clone();
        let killed = async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            engine.server("s1").unwrap().inject(Fault::Die);
        };
        let (output, ()) = tokio::join!(step(&world, runner), killed);
        assert_eq!(output.groups.len(), 8);
        let costs = &output.metrics.costs;
        assert!(costs.attempts_extra + costs.replays > 0, "{costs:?}");
        assert_eq!(output.metrics.totals.failed, 0, "{:?}", output.metrics.totals);
        world.scope.close(Duration::from_secs(1)).await;
    });
}

#[test]
fn versions_that_change_between_and_within_turns_show_in_the_rows() {
    in_virtual_time(async {
        let world = World::calm(2, 24);
        world.engine.servers().for_each(|server| server.update_weight_version("6"));
        let (runner, _) = Turns::of(Tool::Takes(Duration::from_millis(300)));
        let engine = world.engine.clone();
        let updated = async {
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            engine.servers().for_each(|server| server.update_weight_version("7"));
        };
        let (output, ()) = tokio::join!(step(&world, runner), updated);
        let samples = || output.groups.iter().flat_map(|group| &group.samples);
        let (mut between, mut within) = (0, 0);
        for sample in samples() {
            let row = &sample.trajectory.as_ref().unwrap().rows[0];
            let numbers: Vec<u64> = row.version_spans.iter().map(|span| span.number().unwrap()).collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
            assert_eq!(Some(&sample.policy_version_min), numbers.first());
            assert_eq!(Some(&sample.policy_version_max), numbers.last());
            if let Some(changed) = row.version_spans.iter().find(|span| span.number() == Some(7)) {
                let is_whole = row.turns.iter().any(|turn| turn.start == changed.start);
                between += u32::from(is_whole && numbers[0] == 6);
                within += u32::from(!is_whole);
            }
        }
        assert!(between > 0 && within > 0, "{between} between turns, {within} within a turn");
        let oldest = output.groups.iter().map(Group::policy_version_min).min();
        assert_eq!(oldest, Some(6));
        world.scope.close(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_tool_that_fails_or_hangs_fails_its_group_with_a_reason() {
    for (tool, reason) in
        [(Tool::Fails, "the tool is broken"), (Tool::Hangs, "not finished within sample_s=30")]
    {
        in_virtual_time(async {
            let mut world = World::calm(2, 24);
            world.config.timeouts.sample = Duration::from_secs(30);
            world.config.max_gen_batches = 2;
            let (runner, _) = Turns::of(tool);
            let mut manager = world.manager().with_trajectories(runner);
            let output = manager.generate(&prompts(1_000), 8).await.unwrap();
            assert!(output.groups.is_empty());
            assert_eq!(output.metrics.totals.failed, output.metrics.totals.dispatched);
            assert_eq!(manager.last_failure().as_deref(), Some(reason));
            world.check_between_steps(&manager);
            count_tokens(&world, &output);
            assert_eq!(output.metrics.tokens.wasted.failed_attempt, output.metrics.tokens.generated);
            world.scope.close(Duration::from_secs(1)).await;
        });
    }
}

/// Runs steps on a fleet with random faults: servers die, stall, report false states, and are removed.
async fn disturbed(mut world: World) {
    let _monitoring = world.start_monitor();
    let tool = Tool::Takes(Duration::from_millis(world.rng.random_range(0..1_500)));
    let mut manager = world.manager().with_trajectories(Turns::of(tool).0);
    let feed = prompts(1_000_000);
    for _ in 0..4 {
        let target = world.rng.random_range(1..=4.min(world.config.gen_batch_size));
        let output = {
            let mut collecting = std::pin::pin!(manager.generate(&feed, target));
            loop {
                let disturbance = Duration::from_millis(world.rng.random_range(200..4_000));
                tokio::select! {
                    biased;
                    output = &mut collecting => break output.unwrap(),
                    () = tokio::time::sleep(disturbance) => world.disturb(),
                }
            }
        };
        output.groups.iter().for_each(check_group);
        world.check_between_steps(&manager);
    }
    world.scope.close(Duration::from_secs(1)).await;
}

#[test]
fn the_invariants_of_trajectories_hold_whatever_happens_to_the_fleet() {
    for seed in 0..25 {
        eprintln!("seed {seed}");
        in_virtual_time(async { disturbed(World::random(seed)).await });
    }
}
