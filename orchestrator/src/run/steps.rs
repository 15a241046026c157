//! Step after step, until the recipe's last one, the end of the data, or Ctrl-C.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_loadbalancer::Monitor;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::queue::RunQueue;
use super::{Run, convert, members};
use crate::data::{Dataset, DrawCounts};
use crate::recipe::{OnShort, Validation};
use crate::report::{Progress, step_table, validation_line};
use crate::rollout::{
    AgentLoopManager, GradingMode, Group, PromptFeed, RolloutParts, StepEnd, StepMetrics, TextGrader, Totals,
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
    let Collected { steps, interrupted, totals, drawn } = outcome?;
    Ok(Summary {
        steps,
        interrupted,
        totals,
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
    drawn: DrawCounts,
}

async fn collect(
    run: &Run,
    queue: &RunQueue,
    progress: &Progress,
    scope: Scope,
) -> anyhow::Result<Collected> {
    let config = convert::rollout_config(&run.recipe, &run_id(run));
    let source = run.fleet.watch(Box::new(run.train.cursor(Arc::clone(&run.codec))), &run.codec);
    let mut steps = Steps {
        run,
        queue,
        progress,
        manager: AgentLoopManager::new(config, parts(run)?, scope.clone()),
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
    Ok(Collected { steps: step, interrupted, totals: steps.manager.run_totals(), drawn })
}

/// Unique over runs that share servers: request ids start with it.
fn run_id(run: &Run) -> String {
    let name = run.out.to_string_lossy();
    format!("rd{:08x}{:x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32, std::process::id())
}

fn parts(run: &Run) -> anyhow::Result<RolloutParts> {
    let scorer = convert::scorer(&run.recipe.reward)?;
    let grader = TextGrader::new(Arc::clone(&run.codec), scorer, convert::overlong(&run.recipe));
    Ok(RolloutParts {
        engine: Arc::clone(&run.fleet.engine),
        balancer: run.fleet.balancer.clone(),
        grader: Arc::new(grader),
        grading: GradingMode::Pool { places: run.recipe.reward.places },
    })
}

impl Steps<'_> {
    /// Collects a step's groups and puts each into the queue as soon as it is accepted.
    async fn step(&mut self, step: u64) -> anyhow::Result<StepMetrics> {
        let target = self.run.recipe.rollout.train_batch_size;
        let (sender, accepted) = mpsc::channel(target);
        let done = CancellationToken::new();
        let following = self.progress.follow(step, self.manager.view(), done.clone());
        let working = async {
            let _done = done.drop_guard();
            let generating = async { Ok(self.manager.generate_into(&self.prompts, target, sender).await?) };
            tokio::try_join!(generating, put_all(self.queue, step, accepted, self.scope.token()))
        };
        let (worked, ()) = tokio::join!(working, following);
        let (metrics, ()) = worked?;
        self.manager.check()?;
        say(&step_table(&metrics));
        Ok(metrics)
    }

    async fn validate(&self, step: u64, validation: &Validation, dataset: &Dataset) -> anyhow::Result<()> {
        let run = self.run;
        let prompts = usize::try_from(dataset.rows()).unwrap_or(usize::MAX);
        let run_id = format!("{}v{step}", run_id(run));
        let config = convert::validation_rollout_config(&run.recipe, validation, &run_id, prompts);
        let mut manager = AgentLoopManager::new(config, parts(run)?, self.scope.clone());
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

/// Puts what is accepted; after an interruption it waits no longer for room than [`INTERRUPTED_PUT_LIMIT`].
async fn put_all(
    queue: &RunQueue,
    step: u64,
    mut accepted: mpsc::Receiver<Group>,
    interrupted: &CancellationToken,
) -> anyhow::Result<()> {
    let mut lost = 0_u64;
    while let Some(group) = accepted.recv().await {
        let mut putting = std::pin::pin!(queue.put(step, &group));
        tokio::select! {
            biased;
            put = &mut putting => put?,
            () = interrupted.cancelled() => match tokio::time::timeout(INTERRUPTED_PUT_LIMIT, putting).await {
                Ok(put) => put?,
                Err(_elapsed) => lost += 1,
            },
        }
    }
    if lost > 0 {
        tracing::warn!(groups = lost, "accepted groups found no room in the full queue and are not kept");
    }
    Ok(())
}

/// Prints for people. A closed standard output is no reason to lose a run.
pub(super) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
