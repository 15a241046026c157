//! Step after step, until the recipe's last one, the end of the data, or Ctrl-C.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_loadbalancer::Monitor;
use rolldock_reward::{Estimator, GateCounts};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::queue::RunQueue;
use super::{Run, convert, members};
use crate::data::{Dataset, DrawCounts};
use crate::recipe::{OnShort, Validation};
use crate::report::{Progress, step_table, validation_line};
use crate::rollout::{
    AgentLoopManager, Group, Handed, PromptFeed, RolloutControl, RolloutParts, Sample, StepEnd, StepMetrics,
    Totals,
};
use crate::scope::Scope;

/// How long the run's own tasks may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long an interrupted run waits for room for a group that it has accepted.
const INTERRUPTED_PUT_LIMIT: Duration = Duration::from_secs(1);

/// What a run did.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Steps that ended, the interrupted one included.
    pub steps: u64,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// Dispatches of the run by fate.
    pub totals: Totals,
    /// What each gate of the filter did.
    pub gates: Vec<GateCounts>,
    /// Rows of the training data that were read.
    pub drawn: DrawCounts,
    /// Groups that the embedded consumer took and acked.
    pub consumed_groups: u64,
    /// Rows that are left in the queue.
    pub rows_left: u64,
    /// Where the run is kept.
    pub out: PathBuf,
    /// Whose rows are left.
    pub task: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        let word = if self.interrupted { "interrupted after" } else { "done:" };
        writeln!(
            f,
            "{word} {} steps; {} groups accepted of {} dispatched ({} filtered, {} requeued, {} held, {} cancelled, {} stale, {} failed)",
            self.steps,
            totals.accepted,
            totals.dispatched,
            totals.filtered,
            totals.requeued,
            totals.held,
            totals.cancelled,
            totals.stale,
            totals.failed
        )?;
        for gate in self.gates.iter().filter(|_| self.gates.len() > 1) {
            let GateCounts { name, seen, rejected, kept, .. } = gate;
            writeln!(
                f,
                "gate {name}: {seen} groups seen, {rejected} rejected, {kept} of them kept for a short step"
            )?;
        }
        if self.drawn.overlong_dropped + self.drawn.overlong_truncated > 0 {
            writeln!(
                f,
                "{} prompts were longer than data.max_prompt_length: {} dropped, {} truncated",
                self.drawn.overlong_dropped + self.drawn.overlong_truncated,
                self.drawn.overlong_dropped,
                self.drawn.overlong_truncated
            )?;
        }
        write!(
            f,
            "{} groups were consumed while it ran; {} rows are left in {}",
            self.consumed_groups,
            self.rows_left,
            self.out.display()
        )?;
        if self.rows_left > 0 {
            write!(f, "\ntake them with: rolldock consume {} --task {}", self.out.display(), self.task)?;
        }
        Ok(())
    }
}

/// What the steps work with.
struct Steps<'a> {
    run: &'a Run,
    queue: &'a RunQueue,
    progress: &'a Progress,
    manager: AgentLoopManager,
    advantage: Estimator,
    prompts: PromptFeed,
    /// Ends the steps and nothing else: engines and queue have to outlive them.
    scope: Scope,
}

pub(super) async fn execute(run: Run, progress: &Progress) -> anyhow::Result<Summary> {
    std::fs::create_dir_all(&run.out).with_context(|| format!("cannot create {}", run.out.display()))?;
    let recipe_file = run.out.join("recipe.toml");
    std::fs::write(&recipe_file, run.recipe.to_toml()?)
        .with_context(|| format!("cannot write {}", recipe_file.display()))?;
    let queue = RunQueue::open(&run.out, &run.recipe).await?;
    let services = run.scope.child();
    let monitor = Monitor::new(
        run.fleet.balancer.clone(),
        Arc::clone(&run.fleet.control),
        convert::monitor_config(&run.recipe),
    );
    let _monitoring = services.spawn(monitor.run(services.token().clone()));
    let _members = match &run.fleet.members {
        Some(members) => members::open(members, &run.recipe, &services).await?,
        None => Vec::new(),
    };
    let consuming = run
        .recipe
        .queue
        .consumer
        .clone()
        .map(|consumer| services.spawn(queue.clone().consume(consumer, services.token().clone())));
    let served_at = match run.recipe.queue.address() {
        Some(address) => {
            let at = queue.serve(address, run.recipe.queue.token.clone(), &services).await?;
            say(&format!("serving the queue at http://{at}"));
            Some(at)
        }
        None => None,
    };
    let steps_scope = run.scope.child();
    let interrupted = steps_scope.token().clone();
    let _interrupt = services.spawn(interrupt(steps_scope.token().clone(), services.token().clone()));

    let outcome = collect(&run, &queue, progress, steps_scope).await;
    queue.end_of_puts();
    if let (Some(at), Ok(_)) = (served_at, &outcome) {
        queue.until_taken(at, &interrupted).await;
    }
    let consumed_groups = match consuming {
        // It ends by itself when it has taken all that it may.
        Some(consuming) => consuming.await.context("the embedded consumer died")??,
        None => 0,
    };
    services.close(CLOSE_LIMIT).await;
    let rows_left = queue.close().await?;
    run.scope.close(CLOSE_LIMIT).await;
    let Collected { steps, interrupted, totals, gates, drawn } = outcome?;
    Ok(Summary {
        steps,
        interrupted,
        totals,
        gates,
        drawn,
        consumed_groups,
        rows_left,
        task: run.recipe.queue.tasks.first().cloned().unwrap_or_default(),
        out: run.out,
    })
}

/// First Ctrl-C: the step is cut off, everything accepted is kept. A second one is the shell's again.
async fn interrupt(steps: CancellationToken, end: CancellationToken) {
    let pressed = end.run_until_cancelled(tokio::signal::ctrl_c()).await;
    if !matches!(pressed, Some(Ok(()))) {
        return;
    }
    tracing::warn!("interrupted: cancelling what runs on the engines; press Ctrl-C again to end at once");
    steps.cancel();
    if let Some(Ok(())) = end.run_until_cancelled(tokio::signal::ctrl_c()).await {
        #[expect(clippy::disallowed_methods, reason = "the user asked twice; the journal is made for this")]
        std::process::exit(130);
    }
}

/// What the steps came to.
struct Collected {
    steps: u64,
    interrupted: bool,
    totals: Totals,
    gates: Vec<GateCounts>,
    drawn: DrawCounts,
}

async fn collect(
    run: &Run,
    queue: &RunQueue,
    progress: &Progress,
    scope: Scope,
) -> anyhow::Result<Collected> {
    let checked = scope.token().run_until_cancelled(run.reward.check());
    checked.await.unwrap_or(Ok(()))?;
    let config = convert::rollout_config(&run.recipe, &run_id(run), Arc::clone(&run.reward.gates));
    let advantage = config.advantage;
    let source = run.fleet.watch(Box::new(run.train.cursor(Arc::clone(&run.codec))), &run.codec);
    let mut steps = Steps {
        run,
        queue,
        progress,
        manager: AgentLoopManager::new(config, parts(run), scope.clone()),
        advantage,
        prompts: PromptFeed::new(source),
        scope,
    };
    let mut step = 0;
    let last = run.recipe.run.steps.unwrap_or(u64::MAX);
    let mut interrupted = false;
    while step < last && !interrupted {
        step += 1;
        let metrics = steps.step(step).await?;
        interrupted = metrics.end == StepEnd::Interrupted;
        match metrics.end {
            StepEnd::OutOfPrompts => break,
            StepEnd::OutOfBatches if run.recipe.run.on_short == OnShort::Error => {
                let counts = metrics.counts;
                anyhow::bail!(
                    "step {step} ended with {} of {} groups after {} generation batches (run.on_short = \"error\")",
                    counts.accepted,
                    counts.target,
                    counts.batches_opened
                );
            }
            _ => {}
        }
        if !interrupted && metrics.totals.failed > 0 && metrics.totals.failed == metrics.totals.dispatched {
            let reason = steps.manager.last_failure().unwrap_or_default();
            anyhow::bail!(
                "all {} groups of step {step} failed; the last one: {reason}",
                metrics.totals.failed
            );
        }
        if let (Some(validation), Some(dataset)) = (&run.recipe.validation, &run.validation)
            && !interrupted
            && step.is_multiple_of(validation.every_steps)
        {
            steps.validate(step, validation, dataset).await?;
        }
    }
    let drawn = steps.prompts.with_source(|source| source.drawn()).unwrap_or_default();
    let (totals, gates) = (steps.manager.run_totals(), steps.manager.gate_counts());
    Ok(Collected { steps: step, interrupted, totals, gates, drawn })
}

/// Unique over runs that share servers: request ids start with it.
fn run_id(run: &Run) -> String {
    let name = run.out.to_string_lossy();
    format!("rd{:08x}{:x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32, std::process::id())
}

fn parts(run: &Run) -> RolloutParts {
    RolloutParts {
        engine: Arc::clone(&run.fleet.engine),
        balancer: run.fleet.balancer.clone(),
        grading: run.reward.grading.clone(),
    }
}

impl Steps<'_> {
    /// Collects a step's groups and puts each into the queue as soon as it is accepted.
    async fn step(&mut self, step: u64) -> anyhow::Result<StepMetrics> {
        let target = self.run.recipe.rollout.train_batch_size;
        let (sender, handed) = mpsc::unbounded_channel();
        let control = self.manager.control();
        let done = CancellationToken::new();
        let following = self.progress.follow(step, self.manager.view(), done.clone());
        let working = async {
            let _done = done.drop_guard();
            // A step that cannot go on hands over what it has accepted before it says so.
            let generating =
                async { anyhow::Ok(self.manager.generate_into(&self.prompts, target, sender).await) };
            let putting = put_all(self.queue, step, self.advantage, handed, &control, self.scope.token());
            tokio::try_join!(generating, putting)
        };
        let (worked, ()) = tokio::join!(working, following);
        let (metrics, ()) = worked?;
        let metrics = metrics?;
        self.manager.check()?;
        say(&step_table(&metrics));
        Ok(metrics)
    }

    async fn validate(&self, step: u64, validation: &Validation, dataset: &Dataset) -> anyhow::Result<()> {
        let run = self.run;
        let prompts = usize::try_from(dataset.rows()).unwrap_or(usize::MAX);
        let run_id = format!("{}v{step}", run_id(run));
        let config = convert::validation_rollout_config(&run.recipe, validation, &run_id, prompts);
        let mut manager = AgentLoopManager::new(config, parts(run), self.scope.clone());
        let cursor = dataset.cursor(Arc::clone(&run.codec));
        let feed = PromptFeed::new(run.fleet.watch(Box::new(cursor), &run.codec));
        let output = manager.generate(&feed, prompts).await?;
        let accs: Vec<Vec<f32>> = output
            .groups
            .iter()
            .map(|group| group.samples.iter().map(|sample| sample.acc).collect())
            .collect();
        say(&validation_line(step, validation.samples_per_prompt, &accs));
        Ok(())
    }
}

/// Puts what is accepted as soon as it is, or when all of it is there where advantages need the whole batch. After an
/// interruption it waits no longer for room than [`INTERRUPTED_PUT_LIMIT`].
async fn put_all(
    queue: &RunQueue,
    step: u64,
    advantage: Estimator,
    mut handed: mpsc::UnboundedReceiver<Handed>,
    control: &RolloutControl,
    interrupted: &CancellationToken,
) -> anyhow::Result<()> {
    let mut lost = 0_u64;
    let mut batch = Vec::new();
    while let Some(Handed::Group(group)) = handed.recv().await {
        match advantage.per_group() {
            Some(_) => lost += u64::from(!put(queue, step, &group, interrupted).await?),
            None => batch.push(*group),
        }
        control.was_put();
    }
    estimate(&mut batch, advantage);
    for group in &batch {
        lost += u64::from(!put(queue, step, group, interrupted).await?);
    }
    if lost > 0 {
        tracing::warn!(groups = lost, "accepted groups found no room in the full queue and are not kept");
    }
    Ok(())
}

/// Says whether there was room.
async fn put(
    queue: &RunQueue,
    step: u64,
    group: &Group,
    interrupted: &CancellationToken,
) -> anyhow::Result<bool> {
    let mut putting = std::pin::pin!(queue.put(step, group));
    let put = tokio::select! {
        biased;
        put = &mut putting => put,
        () = interrupted.cancelled() => match tokio::time::timeout(INTERRUPTED_PUT_LIMIT, putting).await {
            Ok(put) => put,
            Err(_elapsed) => return Ok(false),
        },
    };
    put.map(|()| true)
}

/// The advantages that need every group of the step.
fn estimate(groups: &mut [Group], advantage: Estimator) {
    let of_each = |group: &Group| group.samples.iter().map(|sample| sample.reward).collect::<Vec<f32>>();
    let rewards: Vec<Vec<f32>> = groups.iter().map(of_each).collect();
    let length = |sample: &Sample| if sample.is_masked { 0 } else { sample.response_ids.len() as u32 };
    let lengths: Vec<Vec<u32>> =
        groups.iter().map(|group| group.samples.iter().map(length).collect()).collect();
    let rewards: Vec<&[f32]> = rewards.iter().map(Vec::as_slice).collect();
    let lengths: Vec<&[u32]> = lengths.iter().map(Vec::as_slice).collect();
    let advantages = advantage.of_batch_by_tokens(&rewards, &lengths);
    for (group, advantages) in groups.iter_mut().zip(advantages) {
        for (sample, advantage) in group.samples.iter_mut().zip(advantages) {
            sample.advantage = advantage;
        }
    }
}

/// Prints for people. A closed standard output is no reason to lose a run.
pub(super) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
