//! Collects step after step, until the recipe's last step, the end of the data, or Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rolldock_dispatch::{StepEnd, TokenTotals, Totals};
use rolldock_reward::{Estimator, GateCounts};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::figures::RunFigures;
use super::journalling::RunJournal;
use super::meters::Meters;
use super::policy::RunPolicy;
use super::puts::Puts;
use super::queue::RunQueue;
use super::{Run, convert};
use crate::data::{Dataset, DrawCounts};
use crate::policy::PolicyMode;
use crate::process::{plural, say};
use crate::recipe::{OnShort, Validation};
use crate::report::{Progress, Stage, step_table, validation_line};
use crate::rollout::{AgentLoopManager, PromptFeed, RolloutControl, StepMetrics};
use crate::scope::Scope;

/// The components with which the steps work.
pub(super) struct Steps<'a> {
    pub(super) run: &'a Run,
    pub(super) queue: &'a RunQueue,
    pub(super) ledger: &'a RunJournal,
    pub(super) figures: &'a RunFigures,
    pub(super) policy: Option<&'a RunPolicy>,
    pub(super) progress: &'a Progress,
    pub(super) meters: &'a Meters,
    pub(super) manager: AgentLoopManager,
    pub(super) advantage: Estimator,
    pub(super) prompts: PromptFeed,
    /// The scope of the steps only. The engines and the queue have their own scopes, because they have to
    /// outlive the steps.
    pub(super) scope: Scope,
}

/// The outcome of all steps.
pub(super) struct Collected {
    pub(super) steps: u64,
    pub(super) interrupted: bool,
    pub(super) totals: Totals,
    pub(super) tokens: TokenTotals,
    pub(super) gates: Vec<GateCounts>,
    pub(super) drawn: DrawCounts,
}

impl<'a> Steps<'a> {
    /// Collects all steps. The watchdog runs beside them, and ends the steps after a silence if the recipe
    /// asks for that.
    pub(super) async fn collect(mut self) -> anyhow::Result<Collected> {
        let recipe = &self.run.recipe;
        let silence = convert::seconds(recipe.timeouts.silence);
        let watchdog = self.manager.control().watchdog(silence, recipe.run.on_silence);
        let (stop, scope) = (CancellationToken::new(), self.scope.token().clone());
        let watching = async {
            let silence = stop.run_until_cancelled(watchdog.run()).await;
            // The steps are interrupted instead of dropped, so that accepted groups are put before the run
            // ends.
            if silence.is_some() {
                scope.cancel();
            }
            silence
        };
        let collecting = async {
            let _stop = stop.clone().drop_guard();
            self.validate_missed().await?;
            match recipe.policy.mode {
                PolicyMode::FullyAsync => self.flows().await,
                PolicyMode::Off | PolicyMode::Sync | PolicyMode::OneStepOff => self.step_by_step().await,
            }
        };
        let (silence, ended) = tokio::join!(watching, collecting);
        // Also after an error, so that the ledger has all tokens.
        self.manager.end_audits().await;
        let (steps, interrupted) = ended?;
        if let Some(silence) = silence {
            anyhow::bail!("{silence} (run.on_silence = \"stop\")");
        }
        let drawn = self.prompts.with_source(|source| source.drawn()).unwrap_or_default();
        let (totals, gates) = (self.manager.run_totals(), self.manager.gate_counts());
        let tokens = self.manager.view().run_tokens();
        Ok(Collected { steps, interrupted, totals, tokens, gates, drawn })
    }

    /// Collects the steps one by one. Returns the last step, and whether the run was interrupted.
    async fn step_by_step(&mut self) -> anyhow::Result<(u64, bool)> {
        let last = self.run.recipe.run.steps.unwrap_or(u64::MAX);
        loop {
            let step = self.manager.next_step();
            if step > last || self.data_has_ended().await? {
                return Ok((step - 1, false));
            }
            let ready_at = Instant::now();
            // An earlier process may have accepted all groups of a step without ending it. Such a step
            // generates nothing more, so it waits for no version. The trainer may already have trained on it
            // and announced the next version, which must count for the step after it.
            let is_complete = self.manager.next_step_is_complete(self.run.recipe.rollout.train_batch_size);
            if let Some(policy) = self.policy
                && !is_complete
            {
                let end = self.scope.token().clone();
                match end.run_until_cancelled(policy.before_step(step)).await {
                    Some(ready) => ready?,
                    None => return Ok((step - 1, true)),
                }
            }
            let metrics = self.step(step, ready_at.elapsed()).await?;
            if metrics.end == StepEnd::Interrupted {
                return Ok((step, true));
            }
            self.judge(&metrics)?;
            self.tell_of_short(&metrics);
            if metrics.end == StepEnd::OutOfPrompts {
                return Ok((step, false));
            }
            if !self.validate_after(step).await? {
                return Ok((step, true));
            }
        }
    }

    /// Whether nothing is left to generate for the next step, which could only be empty, and could wait for a version
    /// that no trainer announces. A first step is collected all the same, and says that there are no prompts.
    async fn data_has_ended(&self) -> anyhow::Result<bool> {
        let last = self.manager.next_step() - 1;
        let has_ended = last > 0 && self.manager.has_nothing_left(&self.prompts).await?;
        if has_ended {
            say(&format!(
                "the data has ended with step {last}, and nothing is left to generate; a larger data.epochs continues \
                 the run"
            ));
        }
        Ok(has_ended)
    }

    /// Collects a step's groups and puts each into the queue as soon as it is accepted, or all of them at the
    /// end if the advantages need the whole batch. `before` is the time for which the step has waited for the
    /// trainer.
    async fn step(&mut self, step: u64, before: Duration) -> anyhow::Result<StepMetrics> {
        let target = self.run.recipe.rollout.train_batch_size;
        self.meters.begin_step();
        let (sender, handed) = mpsc::unbounded_channel();
        let puts = self.puts();
        let done = CancellationToken::new();
        let following = self.progress.follow(step, self.manager.view(), done.clone());
        let working = async {
            let _done = done.drop_guard();
            // `Ok` hides an error of the step from `try_join`, so that accepted groups are put before the
            // error is returned.
            let generating = async {
                let generated = self.manager.generate_into(&self.prompts, target, sender).await;
                anyhow::Ok((generated, Instant::now()))
            };
            tokio::try_join!(generating, puts.all(handed, async |_| Ok(())))
        };
        let (worked, ()) = tokio::join!(working, following);
        let ((metrics, generated_at), ()) = worked?;
        let metrics = metrics?;
        self.manager.check()?;
        self.meters.step_ended(&metrics);
        self.progress.say(&step_table(&metrics));
        self.figures.step_ended(&metrics, before, generated_at.elapsed()).await;
        Ok(metrics)
    }

    /// Collects all steps as a flow, in which generation continues while a step ends. A step that ends short ends
    /// its flow, and the next step begins another one. Returns the last step, and whether the run was interrupted.
    async fn flows(&mut self) -> anyhow::Result<(u64, bool)> {
        let last = self.run.recipe.run.steps.unwrap_or(u64::MAX);
        loop {
            let first = self.manager.next_step();
            if first > last || self.data_has_ended().await? {
                return Ok((first - 1, false));
            }
            let metrics = self.flow(first, last).await?;
            if metrics.end == StepEnd::Interrupted {
                return Ok((metrics.step, true));
            }
            self.judge(&metrics)?;
            self.tell_of_short(&metrics);
            if !self.validate_after(metrics.step).await? {
                return Ok((metrics.step, true));
            }
            if metrics.end == StepEnd::OutOfPrompts {
                return Ok((metrics.step, false));
            }
        }
    }

    /// Collects the steps from `first` to `last`, or to the first one that does not reach its target. Returns the
    /// metrics of the last step.
    async fn flow(&mut self, first: u64, last: u64) -> anyhow::Result<StepMetrics> {
        let target = self.run.recipe.rollout.train_batch_size;
        self.meters.begin_step();
        let (sender, handed) = mpsc::unbounded_channel();
        let puts = self.puts();
        let done = CancellationToken::new();
        let following = self.progress.follow(first, self.manager.view(), done.clone());
        let (figures, measured) = (self.figures, self.measured());
        let ended = async |metrics: Box<StepMetrics>| {
            self.meters.step_ended(&metrics);
            self.progress.say(&step_table(&metrics));
            figures.step_ended(&metrics, Duration::ZERO, Duration::ZERO).await;
            measured.validate_after(metrics.step).await.map(drop)
        };
        let working = async {
            let _done = done.drop_guard();
            let generating =
                async { anyhow::Ok(self.manager.generate_flow(&self.prompts, target, last, sender).await) };
            tokio::try_join!(generating, puts.all(handed, ended))
        };
        let (worked, ()) = tokio::join!(working, following);
        let (metrics, ()) = worked?;
        let metrics = metrics?;
        self.manager.check()?;
        self.meters.step_ended(&metrics);
        self.progress.say(&step_table(&metrics));
        figures.step_ended(&metrics, Duration::ZERO, Duration::ZERO).await;
        Ok(metrics)
    }

    fn puts(&self) -> Puts<'a> {
        Puts {
            queue: self.queue,
            ledger: self.ledger,
            figures: self.figures,
            control: self.manager.control(),
            meters: self.meters,
            advantage: self.advantage,
            interrupted: self.scope.token().clone(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns an error if the run must not continue after this step. The step must have ended without an
    /// interruption.
    fn judge(&self, metrics: &StepMetrics) -> anyhow::Result<()> {
        let StepMetrics { step, counts, totals, .. } = metrics;
        if metrics.end == StepEnd::OutOfBatches && self.run.recipe.run.on_short == OnShort::Error {
            anyhow::bail!(
                "step {step} ended with {} of {} after {} (run.on_short = \"error\")",
                counts.accepted,
                plural(counts.target as u64, "group"),
                plural(counts.batches_opened as u64, "generation batch")
            );
        }
        if metrics.end != StepEnd::OutOfPrompts && totals.failed > 0 && totals.failed == totals.dispatched {
            let reason = self.manager.last_failure().unwrap_or_default();
            anyhow::bail!("all {} groups of step {step} failed; the last one: {reason}", totals.failed);
        }
        Ok(())
    }

    /// Tells the run's own consumer of a step that has ended with too few groups, so that it does not wait for more.
    fn tell_of_short(&self, metrics: &StepMetrics) {
        if metrics.end == StepEnd::OutOfBatches {
            self.queue.ended_short(metrics.step);
        }
    }

    /// Runs a validation after `step` if it is due. Returns false if it was interrupted.
    async fn validate_after(&self, step: u64) -> anyhow::Result<bool> {
        self.meters.enter(Stage::Validating);
        let validated = self.measured().validate_after(step).await;
        self.meters.enter(Stage::Collecting);
        validated
    }

    /// Runs the validation that is due before the next step, if an earlier process of the run ended before it
    /// was complete. Before the first step, a validation is due if the recipe asks for that and the run has
    /// dispatched nothing yet.
    async fn validate_missed(&self) -> anyhow::Result<()> {
        let last = self.manager.next_step() - 1;
        let asks = self.run.recipe.validation.as_ref().is_some_and(|validation| validation.before_training);
        let is_due = last > 0 || asks && self.manager.run_totals().dispatched == 0;
        if !is_due || self.scope.token().is_cancelled() || self.figures.has_validation(last) {
            return Ok(());
        }
        self.validate_after(last).await.map(drop)
    }

    fn measured(&self) -> Measured<'a> {
        let Self { run, queue, figures, progress, .. } = *self;
        Measured { run, queue, figures, progress, control: self.manager.control(), scope: self.scope.clone() }
    }
}

/// The components that a validation needs.
struct Measured<'a> {
    run: &'a Run,
    queue: &'a RunQueue,
    progress: &'a Progress,
    /// The rollout that counts the validation's tokens.
    control: RolloutControl,
    figures: &'a RunFigures,
    scope: Scope,
}

impl Measured<'_> {
    /// Runs a validation after `step` if it is due. Returns false if it was interrupted.
    async fn validate_after(&self, step: u64) -> anyhow::Result<bool> {
        let (Some(validation), Some(dataset)) = (&self.run.recipe.validation, &self.run.validation) else {
            return Ok(true);
        };
        if !step.is_multiple_of(validation.every_steps) {
            return Ok(true);
        }
        self.validate(step, validation, dataset).await
    }

    async fn validate(&self, step: u64, validation: &Validation, dataset: &Dataset) -> anyhow::Result<bool> {
        let run = self.run;
        let prompts = usize::try_from(dataset.rows()).unwrap_or(usize::MAX);
        let run_id = format!("{}v{step}", run.id());
        let served = self.control.policy_version();
        let config = convert::validation_rollout_config(&run.recipe, validation, &run_id, prompts, served);
        let mut manager = run.manager(config, self.scope.clone());
        let cursor = dataset.cursor(Arc::clone(&run.codec));
        let feed = PromptFeed::new(run.fleet.watch(Box::new(cursor), &run.codec));
        let output = manager.generate(&feed, prompts).await;
        self.control.count_validation(&manager.view().run_tokens());
        let output = output?;
        if self.scope.token().is_cancelled() {
            // The samples that ended before the interrupt are the short ones, so their mean accuracy would mislead.
            self.progress.say(&format!("validation after step {step}: interrupted, without a result"));
            return Ok(false);
        }
        let accs: Vec<Vec<f32>> = output
            .groups
            .iter()
            .map(|group| group.samples.iter().map(|sample| sample.acc).collect())
            .collect();
        self.progress.say(&validation_line(step, validation.samples_per_prompt, &accs));
        self.queue.keep_validation(step, &output.groups).await;
        self.figures.validated(step, validation.samples_per_prompt, &output).await;
        Ok(true)
    }
}
