//! The public entry: one call collects one step's groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use rolldock_loadbalancer::{LoadBalancer, Priority};
use rolldock_reward::GateCounts;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::rollout::board::{Board, BoardConfig, Counts};
use crate::rollout::grading::{Grades, Grading};
use crate::rollout::meter::{LengthBias, Meter, Phases, StepCosts};
use crate::rollout::sample::StepContext;
use crate::rollout::worker::{AgentLoopWorker, StepState};
use crate::rollout::{Fate, Group, PromptFeed, RolloutConfig, RolloutError, Totals, invariants};
use crate::scope::Scope;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    /// The target was reached.
    Reached,
    /// Every allowed generation batch was used up before.
    OutOfBatches,
    /// The data set has no more prompts.
    OutOfPrompts,
    /// The scope was ended.
    Interrupted,
}

/// What a step did.
#[derive(Debug, Clone)]
pub struct StepMetrics {
    /// Counted from 1.
    pub step: u64,
    /// Why it ended.
    pub end: StepEnd,
    /// From its start until the last permit was back.
    pub elapsed: Duration,
    /// Target, accepted and generation batches.
    pub counts: Counts,
    /// Dispatches by fate.
    pub totals: Totals,
    /// Tokens, samples and time.
    pub costs: StepCosts,
    /// `None` before the first accepted group.
    pub length_bias: Option<LengthBias>,
}

/// The groups of a step, and what it did.
#[derive(Debug)]
pub struct RolloutOutput {
    /// Exactly the target, or fewer when the step ended short.
    pub groups: Vec<Group>,
    /// See [`StepMetrics`].
    pub metrics: StepMetrics,
}

/// What a rollout is made of.
pub struct RolloutParts {
    /// The servers.
    pub engine: Arc<dyn Engine>,
    /// Their permits.
    pub balancer: LoadBalancer,
    /// The reward.
    pub grading: Grading,
}

/// Reads the state of a running step; cheap to clone and to ask.
#[derive(Clone)]
pub struct RolloutView {
    board: Arc<Mutex<Board>>,
    meter: Arc<Meter>,
}

impl RolloutView {
    /// Groups by state.
    pub fn counts(&self) -> Counts {
        self.board.lock().counts()
    }

    /// Dispatches of the step by fate.
    pub fn totals(&self) -> Totals {
        self.board.lock().ledger().step_totals().clone()
    }

    /// Costs of the step so far.
    pub fn costs(&self) -> StepCosts {
        self.meter.step_costs()
    }

    /// Samples by phase.
    pub fn phases(&self) -> &Phases {
        &self.meter.phases
    }
}

/// Splits prompts across workers and collects accepted groups.
///
/// State that outlives a step lives here: held groups, requeued prompts, drawn prompts that were not sent out,
/// the ledger, and the measured accept rate.
pub struct AgentLoopManager {
    config: Arc<RolloutConfig>,
    engine: Arc<dyn Engine>,
    balancer: LoadBalancer,
    grades: Arc<Grades>,
    meter: Arc<Meter>,
    board: Arc<Mutex<Board>>,
    scope: Scope,
    epoch: Instant,
    step: u64,
    policy_version: u64,
    priority_new: Priority,
}

impl AgentLoopManager {
    /// A manager whose tasks live in `scope`; ending the scope interrupts a running step.
    pub fn new(config: RolloutConfig, parts: RolloutParts, scope: Scope) -> Self {
        let board_config = BoardConfig {
            early_stop: config.early_stop,
            on_stop: config.on_stop,
            launch: config.launch,
            gen_batch_size: config.gen_batch_size,
            max_gen_batches: config.max_gen_batches,
            max_staleness: config.max_staleness,
            ledger_entries_max: config.ledger_entries_max,
        };
        let grades = Grades::new(parts.grading, config.timeouts.reward, scope.clone());
        Self {
            meter: Arc::new(Meter::new(config.max_response_length)),
            board: Arc::new(Mutex::new(Board::new(board_config))),
            engine: parts.engine,
            balancer: parts.balancer,
            grades: Arc::new(grades),
            scope,
            epoch: Instant::now(),
            step: 0,
            policy_version: 0,
            priority_new: if config.validation { Priority::Validation } else { Priority::New },
            config: Arc::new(config),
        }
    }

    /// A reader for displays.
    pub fn view(&self) -> RolloutView {
        RolloutView { board: Arc::clone(&self.board), meter: Arc::clone(&self.meter) }
    }

    /// Counts what the next steps generate as `version`.
    pub fn set_policy_version(&mut self, version: u64) {
        self.policy_version = version;
    }

    /// What the gates have counted in the whole run.
    pub fn gate_counts(&self) -> Vec<GateCounts> {
        self.config.gates.counts()
    }

    /// Totals of the whole run by fate.
    pub fn run_totals(&self) -> Totals {
        self.board.lock().ledger().run_totals().clone()
    }

    /// Collects `expected_prompt_num` valid groups.
    ///
    /// Not cancel-safe: dropping the future ends the step; what it had accepted is gone, everything else is cut
    /// off as by an early stop.
    pub async fn generate(
        &mut self,
        prompts: &PromptFeed,
        expected_prompt_num: usize,
    ) -> Result<RolloutOutput, RolloutError> {
        let (sender, mut accepted) = mpsc::channel(expected_prompt_num.max(1));
        let metrics = self.generate_into(prompts, expected_prompt_num, sender).await?;
        let mut groups = Vec::with_capacity(metrics.counts.accepted);
        while let Ok(group) = accepted.try_recv() {
            groups.push(group);
        }
        Ok(RolloutOutput { groups, metrics })
    }

    /// As [`AgentLoopManager::generate`], but hands every group on as soon as it is accepted. The channel must
    /// have room for `expected_prompt_num` groups, so that accepting one never waits for its reader.
    ///
    /// Not cancel-safe in the same sense, but what went into the channel stays there.
    pub async fn generate_into(
        &mut self,
        prompts: &PromptFeed,
        expected_prompt_num: usize,
        accepted: mpsc::Sender<Group>,
    ) -> Result<StepMetrics, RolloutError> {
        if accepted.max_capacity() < expected_prompt_num {
            return Err(RolloutError::NarrowChannel {
                capacity: accepted.max_capacity(),
                expected: expected_prompt_num,
            });
        }
        self.step += 1;
        let started_at = Instant::now();
        self.meter.begin_step();
        let context = Arc::new(self.step_context());
        let state = Arc::new(StepState {
            board: Arc::clone(&self.board),
            changed: Notify::new(),
            low: Notify::new(),
            stop: self.scope.token().child_token(),
            accepted,
            failures: AtomicUsize::new(0),
        });
        let open_step = OpenStep { board: Arc::clone(&self.board), stop: state.stop.clone() };
        {
            let mut board = self.board.lock();
            board.begin_step(self.step, expected_prompt_num, self.policy_version);
            state.publish(&context, &mut board);
        }
        let drawn = self.drive(prompts, &context, &state).await;
        let interrupted = self.scope.token().is_cancelled();
        self.engine.settle(self.config.timeouts.drain).await;
        let ended = self.board.lock().end_step();
        drop(open_step);
        ended?;
        drawn?;
        let counts = self.board.lock().counts();
        Ok(StepMetrics {
            step: self.step,
            end: self.step_end(counts, interrupted),
            elapsed: started_at.elapsed(),
            counts,
            totals: self.board.lock().ledger().step_totals().clone(),
            costs: self.meter.step_costs(),
            length_bias: self.meter.length_bias(),
        })
    }

    fn step_context(&self) -> StepContext {
        StepContext {
            config: Arc::clone(&self.config),
            engine: Arc::clone(&self.engine),
            balancer: self.balancer.clone(),
            grades: Arc::clone(&self.grades),
            meter: Arc::clone(&self.meter),
            sampling: Arc::new(self.config.sampling.clone()),
            priority_new: self.priority_new,
            policy_version: self.policy_version,
            epoch: self.epoch,
        }
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

    /// Runs the workers, draws prompts for them, and returns when all have ended.
    async fn drive(
        &self,
        prompts: &PromptFeed,
        context: &Arc<StepContext>,
        state: &Arc<StepState>,
    ) -> Result<(), RolloutError> {
        let mut workers: FuturesUnordered<_> = (0..self.config.workers)
            .map(|_| {
                let worker = AgentLoopWorker { context: Arc::clone(context), state: Arc::clone(state) };
                self.scope.spawn(worker.run())
            })
            .collect();
        let mut failure = None;
        let mut silence = Silence::new(self.config.timeouts.silence);
        loop {
            let changed = state.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wanted = {
                let mut board = state.board.lock();
                if board.is_finished() && !board.is_stopped() {
                    board.finish();
                    state.publish(context, &mut board);
                }
                board.draw_wanted()
            };
            if workers.is_empty() {
                break;
            }
            if wanted > 0 {
                match prompts.draw(wanted, &self.scope).await {
                    Ok(drawn) => state.board.lock().add_prompts(wanted, drawn),
                    Err(error) => {
                        failure = Some(error);
                        state.board.lock().stop();
                    }
                }
                state.publish(context, &mut state.board.lock());
                continue;
            }
            tokio::select! {
                biased;
                () = state.stop.cancelled() => break,
                () = self.grades.has_ended.cancelled() => break,
                Some(worker) = workers.next() => if let Err(error) = worker {
                    failure = failure.or(Some(RolloutError::WorkerDied { reason: error.to_string() }));
                    state.board.lock().stop();
                    state.publish(context, &mut state.board.lock());
                },
                () = &mut changed => silence.broken(),
                () = state.low.notified() => {}
                () = silence.wait() => self.report_silence(state),
            }
        }
        // Interrupted from outside: the workers learn of it from the board.
        state.board.lock().stop();
        state.publish(context, &mut state.board.lock());
        let all_ended = async { while workers.next().await.is_some() {} };
        if tokio::time::timeout(self.config.timeouts.drain, all_ended).await.is_err() {
            tracing::warn!(
                drain_s = self.config.timeouts.drain.as_secs_f64(),
                "workers did not end in time and are aborted; their groups are cut off"
            );
        }
        let ended_by_reward = || self.grades.ending().map(|reason| RolloutError::Reward { reason });
        failure.or_else(ended_by_reward).map_or(Ok(()), Err)
    }

    fn report_silence(&self, state: &StepState) {
        let board = state.board.lock();
        let counts = board.counts();
        let phases = &self.meter.phases;
        let oldest = board.waits_for();
        tracing::warn!(
            silence_s = self.config.timeouts.silence.as_secs_f64(),
            accepted = counts.accepted,
            target = counts.target,
            running = counts.running,
            waiting_for_permit = phases.permit.load(Ordering::Relaxed),
            on_engine = phases.engine.load(Ordering::Relaxed),
            in_reward = phases.reward.load(Ordering::Relaxed),
            dispatch = oldest.as_ref().map(|(id, _)| id.0),
            prompt_uid = oldest.as_ref().map(|(_, prompt)| prompt.uid.to_string()),
            "no group has ended for a while; waiting for the oldest dispatch"
        );
    }

    /// Why the last group that failed did so, as far as the ledger still has it.
    pub fn last_failure(&self) -> Option<String> {
        let board = self.board.lock();
        let reasons = board.ledger().ended().filter_map(|entry| match &entry.fate {
            Some(Fate::Failed(reason)) => Some(reason.clone()),
            _ => None,
        });
        reasons.last()
    }

    /// Checks what must hold between steps.
    pub fn check(&self) -> Result<(), RolloutError> {
        let board = self.board.lock();
        board.ledger().check()?;
        invariants::settled(board.ledger().step_totals())?;
        Ok(())
    }
}

/// Ends the step on every way out, a dropped future included.
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

/// A deadline that every change pushes back.
struct Silence {
    limit: Duration,
    due: Instant,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        Self { limit, due: Instant::now() + limit }
    }

    fn broken(&mut self) {
        self.due = Instant::now() + self.limit;
    }

    async fn wait(&mut self) {
        tokio::time::sleep_until(self.due).await;
        self.due = Instant::now() + self.limit;
    }
}
