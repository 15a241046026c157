//! Provokes every wait that the watchdog can report, and checks the report and the action of the watchdog.

mod giving_up;
mod log;

use std::sync::Arc;
use std::time::Duration;

use crate::support::{World, prompts};
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use futures::FutureExt;
use futures::future::{self, BoxFuture};
use log::{Log, SAID};
use rolldock::data::{PromptUid, TextCodec};
use rolldock::dispatch::{DispatchId, StepEnd};
use rolldock::policy::{
    Announcement, Applied, ApplyVersion, FollowVersion, PolicyMode, PolicyState, PolicyTerms, Updates,
};
use rolldock::rollout::{
    AgentLoopManager, Grading, Handed, InWait, OnSilence, OutsideGrader, Phase, RolloutControl, Silence,
    Subject,
};
use rolldock_queue::{Partition, PartitionSpec, Put, QueueConfig, TransferQueue};
use rolldock_reward::{Gates, GatesConfig, RewardError, RewardJob, RewardRunner, Score};
use rolldock_simengine::Fault;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The time without progress after which the watchdog acts.
const SILENCE: Duration = Duration::from_secs(20);
/// The longest delay of the watchdog beyond [`SILENCE`], because it checks at intervals.
const LATE: Duration = Duration::from_secs(3);
/// The number of groups of a step.
const TARGET: usize = 4;
/// The virtual time that no test may exceed.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Runs a rollout until its watchdog stops it, and returns the report of the watchdog.
async fn stopped(world: &World, manager: &mut AgentLoopManager) -> Silence {
    Log::keep();
    let watchdog = manager.control().watchdog(SILENCE, OnSilence::Stop);
    let feed = prompts(1_000);
    let said = tokio::select! {
        biased;
        said = watchdog.run() => said,
        ended = manager.generate(&feed, TARGET) => panic!("the step ended: {ended:?}"),
    };
    world.scope.close(Duration::from_secs(1)).await;
    said
}

/// Runs a flow of steps until its watchdog stops it, and returns the report of the watchdog. `take` receives
/// the groups.
async fn flow_stopped<Taking: Future<Output = ()>>(
    world: &World,
    manager: &mut AgentLoopManager,
    take: impl FnOnce(mpsc::UnboundedReceiver<Handed>) -> Taking,
) -> Silence {
    let watchdog = manager.control().watchdog(SILENCE, OnSilence::Stop);
    let feed = prompts(1_000);
    let (sender, handed) = mpsc::unbounded_channel();
    let said = tokio::select! {
        biased;
        said = watchdog.run() => said,
        ended = manager.generate_flow(&feed, TARGET, 1_000, sender) => panic!("the flow ended: {ended:?}"),
        () = take(handed) => panic!("the receiver of groups ended too early"),
    };
    world.scope.close(Duration::from_secs(1)).await;
    said
}

/// Checks that a report contains `words`, and checks the parts that all reports share.
fn assert_says(said: &Silence, phase: Phase, words: &[&str]) {
    let text = said.to_string();
    let cause = said.cause.as_ref().unwrap_or_else(|| panic!("no cause: {text}"));
    assert_eq!(cause.phase, phase, "{text}");
    assert!(said.lasted >= SILENCE && said.lasted <= SILENCE + LATE, "{text}");
    assert!(text.starts_with("nothing has happened for 20 s; the run waits for "), "{text}");
    assert!(text.contains(&format!("the run waits for {phase} (phase={phase} age_s=")), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_server_has_a_place() {
    for draining in [false, true] {
        let world = World::calm(2, 64);
        for server in &world.balancer.snapshot().servers {
            match draining {
                true => world.balancer.set_draining(server.id).unwrap(),
                false => world.balancer.set_paused(server.id, true).unwrap(),
            }
        }
        let said = stopped(&world, &mut world.manager()).await;
        assert_says(
            &said,
            Phase::Permit,
            &[" dispatch=0 prompt_uid=0000000000000000 sample=0)", " running=4 "],
        );
        let subject = &said.cause.as_ref().unwrap().subject;
        assert_eq!((subject.dispatch, subject.prompt_uid), (Some(DispatchId(0)), Some(PromptUid(0))));
        assert!(subject.server.is_none(), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_does_not_answer() {
    for stream in [false, true] {
        let mut world = World::calm(2, 64);
        world.config.carry.stream = stream;
        let stalling = async {
            // At this time some tokens have arrived, but no group is complete.
            tokio::time::sleep(Duration::from_millis(80)).await;
            world.engine.servers().for_each(|server| server.inject(Fault::Stall));
            future::pending::<Silence>().await
        };
        let mut manager = world.manager();
        let said = tokio::select! {
            biased;
            said = stopped(&world, &mut manager) => said,
            said = stalling => said,
        };
        assert_says(&said, Phase::Engine, &[" dispatch=0 prompt_uid=0000000000000000 sample=", " server=s"]);
        let cause = said.cause.unwrap();
        assert!(cause.age >= SILENCE, "{cause}");
        assert_eq!(cause.tokens.is_some(), stream, "{cause}");
        assert!(cause.tokens.is_none_or(|tokens| tokens > 0), "{cause}");
        assert_eq!(cause.to_string().contains(" tokens="), stream, "{cause}");
    }
}

/// The silent engine holds all permits, so a group that waits for a permit waits for the engine.
#[tokio::test(start_paused = true)]
async fn a_permit_is_waited_for_while_a_silent_server_holds_them() {
    let world = World::calm(1, 2);
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let said = stopped(&world, &mut world.manager()).await;
    assert_says(&said, Phase::Engine, &[" dispatch=0 ", " server=s0", "; also phase=permit "]);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_always_busy() {
    let world = World::calm(1, 64);
    world.engine.servers().for_each(|server| server.inject(Fault::Busy503));
    let said = stopped(&world, &mut world.manager()).await;
    let cause = said.cause.as_ref().unwrap_or_else(|| panic!("{said}"));
    match cause.phase {
        Phase::Engine => assert!(said.to_string().contains(" server=s0 it was busy times="), "{said}"),
        // The balancer has already taken the server out of service.
        Phase::Permit => assert!(said.to_string().contains(" dispatch=0 "), "{said}"),
        _ => panic!("{said}"),
    }
}

/// A runner of rewards and gates that never answers.
struct Silent;

impl RewardRunner for Silent {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_reward_does_not_come() {
    let mut world = World::calm(2, 64);
    let codec = Arc::new(TextCodec::builtin().unwrap());
    let grader = OutsideGrader { codec, runner: Arc::new(Silent), overlong: None };
    world.grading = Grading::Outside { grader, places: 4 };
    let said = stopped(&world, &mut world.manager()).await;
    assert_says(&said, Phase::Reward, &[" dispatch=0 prompt_uid=0000000000000000 sample="]);
    assert!(said.cause.unwrap().subject.server.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_gate_outside_does_not_answer() {
    let mut world = World::calm(2, 64);
    let mut gates = Gates::new(&GatesConfig::default()).unwrap();
    gates.push_outside("mine", Arc::new(Silent), false).unwrap();
    world.config.gates = Arc::new(gates);
    let said = stopped(&world, &mut world.manager()).await;
    assert_says(&said, Phase::Reward, &[" dispatch=", " prompt_uid=", " gate outside)"]);
}

#[tokio::test(start_paused = true)]
async fn accepted_groups_are_never_put() {
    let world = World::calm(2, 64);
    let said = flow_stopped(&world, &mut world.manager(), |handed| async {
        let _untaken = handed;
        future::pending().await
    })
    .await;
    assert_says(&said, Phase::Queue, &[" room for accepted groups)", " running=0 not_put=8"]);
}

/// Puts each group into a queue, as one row.
struct Putter {
    control: RolloutControl,
    partition: Partition,
    _queue: TransferQueue,
}

impl Putter {
    async fn new(manager: &AgentLoopManager, capacity: usize) -> Self {
        let queue = TransferQueue::open(QueueConfig::default()).unwrap();
        let partition = queue.declare(PartitionSpec::new("train", ["train"], capacity)).await.unwrap();
        Self { control: manager.control(), partition, _queue: queue }
    }

    async fn put_all(self, mut handed: mpsc::UnboundedReceiver<Handed>) {
        while let Some(handed) = handed.recv().await {
            let Handed::Group(group) = handed else { continue };
            let number: ArrayRef = Arc::new(UInt64Array::from(vec![group.number]));
            let batch = RecordBatch::try_from_iter([("number", number)]).unwrap();
            let _putting = self.control.waits().enter(
                Phase::Queue,
                Subject {
                    dispatch: Some(group.dispatch),
                    prompt_uid: Some(group.prompt.uid),
                    detail: Some("room in partition=train".into()),
                    ..Subject::default()
                },
            );
            let deadline = Some(Instant::now() + LIMIT);
            self.partition.put(Put::group(group.number.to_string(), batch), deadline).await.unwrap();
            self.control.was_put();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_full() {
    for is_announced in [false, true] {
        let mut world = World::calm(2, 64);
        world.config.staleness.is_announced = is_announced;
        let mut manager = world.manager();
        let putter = Putter::new(&manager, TARGET + 2).await;
        let said = flow_stopped(&world, &mut manager, |handed| putter.put_all(handed)).await;
        assert_says(&said, Phase::Queue, &[" dispatch=", " prompt_uid=", " room in partition=train)"]);
        let held_for_trainer = said.others.iter().any(|wait| wait.phase == Phase::Trainer);
        assert_eq!(held_for_trainer, is_announced, "{said}");
    }
}

/// Between steps no group runs, but the run still waits for the task that puts groups.
#[tokio::test(start_paused = true)]
async fn the_queue_is_full_between_two_steps() {
    let world = World::calm(2, 64);
    let mut manager = world.manager();
    let putter = Putter::new(&manager, TARGET - 1).await;
    let watchdog = manager.control().watchdog(SILENCE, OnSilence::Stop);
    let (sender, handed) = mpsc::unbounded_channel();
    let feed = prompts(1_000);
    let one_step = async {
        manager.generate_into(&feed, TARGET, sender).await.unwrap();
        putter.put_all(handed).await;
    };
    let said = tokio::select! {
        biased;
        said = watchdog.run() => said,
        () = one_step => panic!("the step did not wait for room in the queue"),
    };
    assert_says(
        &said,
        Phase::Queue,
        &[" dispatch=", " room in partition=train)", " accepted=4 target=4 running=0 "],
    );
    world.scope.close(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_trainer_announces_nothing() {
    let mut world = World::calm(2, 64);
    world.config.staleness.is_announced = true;
    world.config.staleness.first_version = 3;
    let mut manager = world.manager();
    let putter = Putter::new(&manager, 100 * TARGET).await;
    let said = flow_stopped(&world, &mut manager, |handed| putter.put_all(handed)).await;
    assert_says(&said, Phase::Trainer, &[" the version after version=3)", " running=0 not_put=0"]);
}

/// An update whose weights never arrive.
struct Hanging;

impl ApplyVersion for Hanging {
    fn apply<'a>(&'a self, _announcement: &'a Announcement) -> BoxFuture<'a, Applied> {
        future::pending().boxed()
    }
}

/// A follower of versions that registers the wait for an update with the watchdog.
struct Following {
    control: RolloutControl,
    updating: parking_lot::Mutex<Option<InWait>>,
}

impl FollowVersion for Following {
    fn before_update(&self, version: u64) -> BoxFuture<'_, ()> {
        let subject = Subject { detail: Some(format!("version={version}").into()), ..Subject::default() };
        *self.updating.lock() = Some(self.control.waits().enter(Phase::Update, subject));
        future::ready(()).boxed()
    }

    fn publish<'a>(&'a self, announcement: &'a Announcement) -> BoxFuture<'a, ()> {
        *self.updating.lock() = None;
        self.control.set_policy_version(announcement.version);
        future::ready(()).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_does_not_end() {
    let mut world = World::calm(2, 64);
    world.config.staleness.is_announced = true;
    let mut manager = world.manager();
    let run = Arc::new(Following { control: manager.control(), updating: parking_lot::Mutex::new(None) });
    let state = PolicyState::new(PolicyTerms { mode: PolicyMode::FullyAsync, max_staleness: 1 }, 0);
    let updates = Updates::start(state, Arc::new(Hanging), run, &world.scope).await;
    updates.state().announce(Announcement::new(1)).unwrap();
    let putter = Putter::new(&manager, 100 * TARGET).await;
    let said = flow_stopped(&world, &mut manager, |handed| putter.put_all(handed)).await;
    assert_says(&said, Phase::Update, &[" version=1)", "; also phase=trainer "]);
}

/// A fleet and its manager, for steps on which the watchdog acts.
struct Acting {
    world: World,
    manager: AgentLoopManager,
}

impl Acting {
    fn new(world: World) -> Self {
        Log::keep();
        Self { manager: world.manager(), world }
    }

    /// Runs a step and its watchdog. `meanwhile` runs beside them and may change the fleet.
    async fn step(
        &mut self,
        action: OnSilence,
        target: usize,
        meanwhile: impl Future<Output = ()>,
    ) -> StepEnd {
        let watchdog = self.manager.control().watchdog(SILENCE, action);
        let feed = prompts(1_000);
        let beside = async {
            tokio::join!(watchdog.run(), meanwhile);
        };
        let collected = tokio::select! {
            biased;
            collected = tokio::time::timeout(LIMIT, self.manager.generate(&feed, target)) => collected,
            () = beside => panic!("the step was stopped unexpectedly"),
        };
        let output = collected.unwrap_or_else(|_| panic!("the step hangs")).unwrap();
        output.groups.iter().for_each(|group| self.world.check_samples(group));
        self.world.check_between_steps(&self.manager);
        output.metrics.end
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_is_repeated_and_changes_nothing() {
    let world = World::calm(1, 64);
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let server = world.engine.server("s0").unwrap().clone();
    let mut acting = Acting::new(world);
    let healing = async {
        tokio::time::sleep(SILENCE * 3 + LATE).await;
        server.heal();
    };
    let end = acting.step(OnSilence::Report, TARGET, healing).await;
    let reports = SAID.take();
    let reports: Vec<&String> = reports.iter().filter(|said| said.starts_with("nothing has")).collect();
    assert_eq!(reports.len(), 3, "{reports:?}");
    for (report, seconds) in reports.into_iter().zip([20, 40, 60]) {
        assert!(report.starts_with(&format!("nothing has happened for {seconds} s")), "{report}");
        assert!(report.contains(" dispatch=0 "), "{report}");
    }
    let totals = acting.manager.run_totals();
    assert_eq!((end, totals.accepted, totals.failed), (StepEnd::Reached, 4, 0));
    let cut_off = totals.requeued + totals.held;
    assert_eq!(
        totals.dispatched,
        totals.accepted + totals.filtered + cut_off,
        "by the early stop: {totals:?}"
    );
}
