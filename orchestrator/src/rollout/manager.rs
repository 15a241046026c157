//! The public entry point. One call collects the groups of one step, or of several steps without a cut
//! between them.

mod drive;
mod resume;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use rolldock_dispatch::{Fate, StepEnd, Totals};
use rolldock_loadbalancer::{LoadBalancer, Priority};
use rolldock_reward::GateCounts;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::engine::Engine;
use crate::rollout::board::{Board, Counts};
use crate::rollout::control::{RolloutControl, RolloutView};
use crate::rollout::grading::{Grades, Grading};
use crate::rollout::guard::GuardState;
use crate::rollout::meter::Meter;
use crate::rollout::outage::RewardWatch;
use crate::rollout::sample::{StepContext, TrajectoryRunner};
use crate::rollout::step_ends::{Handed, StepEnds, StepMetrics};
use crate::rollout::stragglers::{Movable, Mover};
use crate::rollout::timeline::Timeline;
use crate::rollout::versions::Versions;
use crate::rollout::waits::Waits;
use crate::rollout::worker::audited::Audits;
use crate::rollout::worker::{Signals, StepState};
use crate::rollout::{Group, OnStop, PromptFeed, RolloutConfig, RolloutError, invariants};
use crate::scope::Scope;

/// The groups of a step, and its metrics.
#[derive(Debug)]
pub struct RolloutOutput {
    /// The accepted groups: as many as the target, or fewer if the step ended short.
    pub groups: Vec<Group>,
    /// The metrics of the step (see [`StepMetrics`]).
    pub metrics: StepMetrics,
}

/// The components that a rollout uses.
pub struct RolloutParts {
    /// The servers.
    pub engine: Arc<dyn Engine>,
    /// The load balancer that grants permits for the servers.
    pub balancer: LoadBalancer,
    /// The reward.
    pub grading: Grading,
}

/// Splits prompts across workers and collects accepted groups.
///
/// It keeps the state that outlives a step: held groups, requeued and carried prompts, prompts that were
/// drawn but not sent out, the ledger, and the measured accept rate.
pub struct AgentLoopManager {
    config: Arc<RolloutConfig>,
    engine: Arc<dyn Engine>,
    balancer: LoadBalancer,
    grades: Arc<Grades>,
    rewards: RewardWatch,
    meter: Arc<Meter>,
    timeline: Arc<Timeline>,
    waits: Arc<Waits>,
    board: Arc<Mutex<Board>>,
    signals: Arc<Signals>,
    audits: Arc<Audits>,
    guard: Arc<Mutex<GuardState>>,
    versions: Arc<Versions>,
    scope: Scope,
    step: u64,
    priority_new: Priority,
    trajectories: Option<Arc<dyn TrajectoryRunner>>,
}

impl AgentLoopManager {
    /// A manager whose tasks live in `scope`; ending the scope interrupts a running step.
    pub fn new(config: RolloutConfig, parts: RolloutParts, scope: Scope) -> Self {
        let grades = Grades::new(parts.grading, config.timeouts.reward, scope.clone());
        Self {
            meter: Arc::new(Meter::new(config.max_response_length)),
            timeline: Arc::new(Timeline::new(Instant::now())),
            board: Arc::new(Mutex::new(Board::new(config.board()))),
            engine: parts.engine,
            balancer: parts.balancer,
            rewards: RewardWatch::new(&grades, &config.gates),
            grades: Arc::new(grades),
            waits: Arc::default(),
            signals: Arc::default(),
            audits: Arc::new(Audits::new(&config, scope.clone())),
            guard: Arc::default(),
            versions: Arc::new(Versions::new(config.staleness.first_version)),
            scope,
            step: 0,
            priority_new: config.priority_new,
            trajectories: None,
            config: Arc::new(config),
        }
    }

    /// Lets `runner` run each sample as a trajectory. Without a runner, a sample is one answer of an engine.
    ///
    /// The tokens of trajectories that are cut off are not carried over. The check of a recipe refuses
    /// [`OnStop::Carry`] for trajectories. The manager treats [`OnStop::Carry`] as [`OnStop::Requeue`].
    #[must_use]
    pub fn with_trajectories(self, runner: Arc<dyn TrajectoryRunner>) -> Self {
        Self { trajectories: Some(runner), ..self }
    }

    /// The step that the next call collects first.
    pub fn next_step(&self) -> u64 {
        let board = self.board.lock();
        // A flow whose future was dropped may be at a later step than `self.step`.
        board.step_after(board.step().max(self.step))
    }

    /// Whether an earlier process accepted all groups of the next step and ended before it could end the
    /// step. The next call then ends the step and generates nothing.
    pub fn next_step_is_complete(&self, target: usize) -> bool {
        let next = self.next_step();
        self.board.lock().accepted_before(next) >= target
    }

    /// Whether the next step could only be empty: no group of an earlier step waits, no earlier process sent out a
    /// prompt in the step, and the data has no more prompts. Draws a prompt if none is drawn yet, and keeps it for the
    /// next step.
    pub async fn has_nothing_left(&self, prompts: &PromptFeed) -> Result<bool, RolloutError> {
        let next = self.next_step();
        if !self.board.lock().needs_prompt_for(next) {
            return Ok(false);
        }
        let drawn = prompts.draw(1, &self.scope).await?;
        let mut board = self.board.lock();
        board.add_prompts(1, drawn);
        Ok(board.out_of_prompts())
    }

    /// A handle that reads the state of the rollout, for displays.
    pub fn view(&self) -> RolloutView {
        RolloutView {
            board: Arc::clone(&self.board),
            meter: Arc::clone(&self.meter),
            waits: Arc::clone(&self.waits),
            signals: Arc::clone(&self.signals),
        }
    }

    /// A handle that tells a running rollout about versions and the queue.
    pub fn control(&self) -> RolloutControl {
        RolloutControl {
            board: Arc::clone(&self.board),
            signals: Arc::clone(&self.signals),
            waits: Arc::clone(&self.waits),
            versions: Arc::clone(&self.versions),
            rewards: self.rewards.clone(),
        }
    }

    /// The counts of the gates over the whole run.
    pub fn gate_counts(&self) -> Vec<GateCounts> {
        self.config.gates.counts()
    }

    /// Totals of the whole run by fate.
    pub fn run_totals(&self) -> Totals {
        self.board.lock().dispatches().run_totals().clone()
    }

    /// Collects `expected_prompt_num` valid groups.
    ///
    /// Not cancel-safe: dropping the future ends the step. The groups that the step had accepted are lost,
    /// and all other groups are cut off as by an early stop.
    pub async fn generate(
        &mut self,
        prompts: &PromptFeed,
        expected_prompt_num: usize,
    ) -> Result<RolloutOutput, RolloutError> {
        let (sender, mut handed) = mpsc::unbounded_channel();
        let control = self.control();
        let metrics = self.generate_into(prompts, expected_prompt_num, sender).await?;
        let mut groups = Vec::with_capacity(metrics.counts.accepted);
        while let Ok(Handed::Group(group)) = handed.try_recv() {
            control.was_put();
            groups.push(*group);
        }
        Ok(RolloutOutput { groups, metrics })
    }

    /// Collects groups like [`AgentLoopManager::generate`], but sends every group as soon as it is accepted.
    /// It sends at most `expected_prompt_num` groups, which bounds the channel.
    ///
    /// Not cancel-safe: dropping the future ends the step, but the groups in the channel stay there.
    pub async fn generate_into(
        &mut self,
        prompts: &PromptFeed,
        expected_prompt_num: usize,
        handed: mpsc::UnboundedSender<Handed>,
    ) -> Result<StepMetrics, RolloutError> {
        let step = self.next_step();
        self.collect(prompts, handed, |board| board.begin_step(step, expected_prompt_num)).await
    }

    /// Collects the steps up to `last`, of `target` groups each, without a cut between them. A group that is
    /// in flight when a step reaches its target counts for the next step. The call sends every group as soon
    /// as it is accepted, and the metrics of a step after its last group. It returns the metrics of the last
    /// step.
    ///
    /// It dispatches no group that would become too old (see [`Staleness`](crate::rollout::Staleness)). It
    /// accepts at most `target x (max_staleness + 1)` groups before [`RolloutControl::was_put`] is called for
    /// them, so the channel holds at most that many groups.
    ///
    /// Not cancel-safe, like [`AgentLoopManager::generate_into`].
    pub async fn generate_flow(
        &mut self,
        prompts: &PromptFeed,
        target: usize,
        last: u64,
        handed: mpsc::UnboundedSender<Handed>,
    ) -> Result<StepMetrics, RolloutError> {
        let step = self.next_step();
        self.collect(prompts, handed, |board| board.begin_flow(step, last.max(step), target)).await
    }

    async fn collect(
        &mut self,
        prompts: &PromptFeed,
        handed: mpsc::UnboundedSender<Handed>,
        begin: impl FnOnce(&mut Board),
    ) -> Result<StepMetrics, RolloutError> {
        self.meter.begin_step();
        self.timeline.begin_step();
        let stop = self.scope.token().child_token();
        let context = Arc::new(self.step_context(&stop));
        let state = Arc::new(StepState {
            board: Arc::clone(&self.board),
            signals: Arc::clone(&self.signals),
            stop: stop.clone(),
            handed,
            failures: AtomicUsize::new(0),
            step_ends: StepEnds::new(Arc::clone(&self.guard)),
            audits: Arc::clone(&self.audits),
        });
        let open_step = OpenStep { board: Arc::clone(&self.board), stop };
        {
            let mut board = self.board.lock();
            begin(&mut board);
            // If an update reached no server, `fresh_from` still has the bound for the version of that
            // update. This bound is too high.
            let bound = board.fresh_from_at(board.policy_version());
            self.signals.fresh_from.change(|fresh_from| bound.min(fresh_from));
            state.publish(&context, &mut board);
        }
        // The step is noted before the first await, so that it is known even if this future is dropped.
        self.step = self.board.lock().step();
        let _moving = context.movable.as_ref().map(|movable| self.start_mover(movable));
        let drawn = self.drive(prompts, &context, &state).await;
        let interrupted = self.scope.token().is_cancelled();
        self.engine.settle(self.config.timeouts.drain).await;
        let ended = self.board.lock().end_step();
        drop(open_step);
        context.count_probes();
        let record = self.board.lock().record();
        self.step = record.step;
        ended?;
        drawn?;
        let end = self.step_end(record.counts, interrupted);
        let bias = {
            let mut board = self.board.lock();
            board.note_step_end(record.step, end);
            board.dispatches().bias()
        };
        let metrics = state.step_ends.metrics(record, end, bias, &context);
        if let Some(early_stop) = metrics.guarded {
            self.board.lock().set_early_stop(early_stop);
        }
        Ok(metrics)
    }

    fn step_context(&self, cut: &CancellationToken) -> StepContext {
        StepContext {
            config: Arc::clone(&self.config),
            engine: Arc::clone(&self.engine),
            balancer: self.balancer.clone(),
            grades: Arc::clone(&self.grades),
            meter: Arc::clone(&self.meter),
            tokens: Arc::clone(self.board.lock().dispatches().tokens()),
            timeline: Arc::clone(&self.timeline),
            movable: Movable::of(self.config.stragglers),
            waits: Arc::clone(&self.waits),
            sampling: Arc::new(self.config.sampling.clone()),
            priority_new: self.priority_new,
            versions: Arc::clone(&self.versions),
            epoch: self.timeline.epoch(),
            carries: self.config.on_stop == OnStop::Carry && self.trajectories.is_none(),
            cut: cut.clone(),
            trajectories: self.trajectories.clone(),
        }
    }

    /// Moves requests of the step to servers that finish them sooner, until the returned handle is dropped.
    fn start_mover(&self, movable: &Arc<Movable>) -> AbortOnDropHandle<()> {
        let mover = Mover {
            movable: Arc::clone(movable),
            board: Arc::clone(&self.board),
            balancer: self.balancer.clone(),
            max_response_length: self.config.max_response_length,
        };
        self.scope.spawn("mover of stragglers", mover.run())
    }

    fn step_end(&self, counts: Counts, interrupted: bool) -> StepEnd {
        if counts.accepted >= counts.target {
            return StepEnd::Reached;
        }
        if interrupted {
            return StepEnd::Interrupted;
        }
        if self.board.lock().out_of_prompts() { StepEnd::OutOfPrompts } else { StepEnd::OutOfBatches }
    }

    /// The failure reason of the last failed group, if that group is among the ended dispatches that are
    /// kept.
    pub fn last_failure(&self) -> Option<String> {
        let board = self.board.lock();
        let reasons = board.dispatches().ended().filter_map(|entry| match &entry.fate {
            Some(Fate::Failed(reason)) => Some(reason.clone()),
            _ => None,
        });
        reasons.last()
    }

    /// Ends the audits that are still running, and writes the counts with their tokens to the ledger. Call this
    /// after the last step: the tokens of an audit that outlives the run would be in no bucket.
    pub async fn end_audits(&self) {
        self.audits.end().await;
        self.engine.settle(self.config.timeouts.drain).await;
        self.board.lock().dispatches().note_tokens();
    }

    /// Checks the invariants that hold between steps.
    pub fn check(&self) -> Result<(), RolloutError> {
        let board = self.board.lock();
        let dispatches = board.dispatches();
        dispatches.check()?;
        Ok(invariants::settled(dispatches.step_totals(), &dispatches.tokens().step())?)
    }
}

/// Ends the step when it is dropped. So the step ends on every return, and also if its future is dropped.
struct OpenStep {
    board: Arc<Mutex<Board>>,
    stop: CancellationToken,
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Err(violation) = self.board.lock().end_step() {
            tracing::error!(%violation, "at the end of a step");
        }
    }
}
