//! Opens the components of a run in order, collects the steps, and closes the components again.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use rolldock_loadbalancer::Monitor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::directory::{RECIPE_FILE, StartingDirectory, write_whole};
use super::figures::RunFigures;
use super::going_on::{Unfinished, resume_command};
use super::interrupt::Interrupt;
use super::journalling::RunJournal;
use super::meters::Meters;
use super::policy::{EarlierVersions, RunPolicy};
use super::queue::{RowsAtEnd, RunQueue};
use super::reporting::{Reporter, Reporting, wait_limits};
use super::secrets::record_secrets;
use super::steps::{Collected, Steps};
use super::summary::Summary;
use super::{Run, convert, members};
use crate::data::DrawCounts;
use crate::policy::PolicyState;
use crate::process::{plural, say};
use crate::report::{Progress, Stage};
use crate::rollout::{AgentLoopManager, PromptFeed};
use crate::scope::Scope;
use rolldock_ledger::{LedgerError, Resumption};

/// The log of all processes of the run, inside its directory.
const LOG_FILE: &str = "run.log";

/// Maximum time for which the close of a scope waits for the tasks of the scope.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Collects all steps of a run. When the function returns, the accepted groups are in the queue, except for
/// groups for which the queue had no free capacity after an interruption. If the run fails but can be resumed,
/// the error is [`Unfinished`].
pub(super) async fn execute(mut run: Run, progress: &Progress) -> anyhow::Result<Summary> {
    let services = run.scope.child();
    let steps_scope = run.scope.child();
    let command = resume_command(&run.out, &run.recipe);
    let ended_by = Arc::new(OnceLock::new());
    let interrupt = Interrupt { ended_by: Arc::clone(&ended_by), command: command.clone() };
    let _interrupt = run.endings.take().map(|endings| {
        services.spawn(
            "interrupt",
            interrupt.watch(endings, steps_scope.token().clone(), services.token().clone()),
        )
    });
    let mut directory = StartingDirectory::make(&run.out)?;
    let (records, resumption) = Records::open(&run, progress, &mut directory).await?;
    let is_new = resumption.is_none();
    let unfinished = |cause| anyhow::Error::new(Unfinished { cause, command: command.clone() });
    let started = match start(&run, &records, resumption, &steps_scope, &services).await {
        Ok(started) => started,
        Err(error) => {
            // The files are closed before the directory is removed. An error of the close is ignored, because
            // the user needs the error of the start.
            let _ = records.close(&run, &services).await;
            return Err(if is_new { error } else { unfinished(error) });
        }
    };
    directory.keep();
    let collected = collect(&run, progress, &records, started, steps_scope, &services).await;
    let (collected, consumed_groups, rows) = collected.map_err(unfinished)?;
    let Collected { steps, interrupted, totals, tokens, gates, drawn } = collected;
    let ended_by = ended_by.get().copied();
    let (reward_outages, reward_out) = run.reward.outages();
    Ok(Summary {
        reward_outages,
        reward_out,
        steps,
        interrupted,
        ended_by,
        resume_command: ended_by.map(|_| command),
        totals,
        tokens,
        gates,
        drawn,
        consumed_groups: run.recipe.queue.consumer.is_some().then_some(consumed_groups),
        rows_left: rows.left,
        rows_stale: rows.stale,
        group_rows: run.group_rows(),
        task: run.recipe.queue.tasks.last_in_line().unwrap_or_default(),
        out: run.out,
    })
}

/// The files that the run writes, besides its recipe and its log.
struct Records {
    queue: RunQueue,
    ledger: RunJournal,
    figures: RunFigures,
}

impl Records {
    /// Opens the ledger, the log, the queue and the figures in the run's directory. A new run writes its recipe before
    /// its queue.
    async fn open(
        run: &Run,
        progress: &Progress,
        directory: &mut StartingDirectory,
    ) -> anyhow::Result<(Self, Option<Resumption>)> {
        let opened = RunJournal::open(&run.out, &run.recipe).await.inspect_err(|error| {
            if matches!(error.downcast_ref(), Some(LedgerError::InUse { .. })) {
                directory.keep();
            }
        })?;
        // If the process is killed during the start, the run can be resumed or started again with this recipe.
        if !run.out.join(RECIPE_FILE).exists() {
            keep_recipe(run)?;
        }
        let log = run.out.join(LOG_FILE);
        progress.keep_log(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let begun = opened.state.run().map(|begun| begun.run_id.as_str());
        let queue = RunQueue::open(&run.out, &run.recipe, begun).await?;
        let begun = opened.state.steps().clone();
        let (ledger, resumption) = RunJournal::begin(opened, run.id(), queue.partition()).await?;
        let figures = RunFigures::open(run, begun, resumption.as_ref()).await?;
        Ok((Self { queue, ledger, figures }, resumption))
    }

    /// Ends the services, closes the ledger and the queue, and ends the run's other tasks. Returns the rows
    /// at the end.
    async fn close(&self, run: &Run, services: &Scope) -> anyhow::Result<RowsAtEnd> {
        close(services, "services").await;
        self.ledger.close().await?;
        let rows = self.queue.close().await?;
        close(&run.scope, "the run").await;
        Ok(rows)
    }
}

/// Closes a scope. Tasks that do not end in time are reported, because the run has waited for them in vain.
async fn close(scope: &Scope, of: &str) {
    if !scope.close(CLOSE_LIMIT).await {
        let tasks = scope.tracker().len();
        tracing::warn!(tasks, "tasks of {of} have not ended in {} s", CLOSE_LIMIT.as_secs());
    }
}

/// The components that collect the steps, and the tasks that run beside them.
struct Started {
    manager: AgentLoopManager,
    prompts: PromptFeed,
    serving: Serving,
}

/// Opens everything that has to work before the first dispatch. If this succeeds, writes the recipe into the
/// run's directory. A run that cannot continue with a changed recipe therefore keeps the old recipe.
async fn start(
    run: &Run,
    records: &Records,
    resumption: Option<Resumption>,
    steps: &Scope,
    services: &Scope,
) -> anyhow::Result<Started> {
    let Records { queue, ledger, .. } = records;
    steps.token().run_until_cancelled(run.check_reward()).await.unwrap_or(Ok(()))?;
    steps.token().run_until_cancelled(run.check_trajectories()).await.unwrap_or(Ok(()))?;
    if let Some(agents) = &run.agents {
        agents.begin(&queue.whole()).await?;
    }
    let earlier = resumption.as_ref().map(EarlierVersions::of).transpose()?.unwrap_or_default();
    queue.allow_earlier(resumption.as_ref())?;
    let (manager, prompts) = open_rollout(run, ledger, resumption, steps, services).await?;
    let serving = Serving::open(run, queue, ledger, &manager, earlier, services).await?;
    keep_recipe(run)?;
    Ok(Started { manager, prompts, serving })
}

/// Writes the recipe into the run's directory, after the names of its secrets.
fn keep_recipe(run: &Run) -> anyhow::Result<()> {
    record_secrets(&run.out, &run.recipe)?;
    write_whole(&run.out.join(RECIPE_FILE), &run.recipe.to_toml()?)
}

/// Collects the steps, waits for consumers, and closes everything. Returns the outcome of the steps, the
/// number of groups that the embedded consumer acked, and the rows at the end.
async fn collect(
    run: &Run,
    progress: &Progress,
    records: &Records,
    started: Started,
    scope: Scope,
    services: &Scope,
) -> anyhow::Result<(Collected, u64, RowsAtEnd)> {
    let interrupted = scope.token().clone();
    let Records { queue, ledger, figures } = records;
    let Started { manager, prompts, mut serving } = started;
    let steps = Steps {
        run,
        queue,
        ledger,
        figures,
        policy: serving.policy.as_ref(),
        progress,
        meters: &serving.meters,
        manager,
        advantage: run.recipe.reward.advantage.estimator(),
        prompts,
        scope,
    };
    let ledger_after_interrupt =
        services.spawn("ledger after an interrupt", ledger.stop_waiting_after(interrupted.clone()));
    let outcome = steps.collect().await;
    serving.meters.enter(Stage::Serving);
    // The next process of an interrupted run puts the rest of the step. A consumer that hears of an end would train on
    // a part of the step, or go away, and so would a worker that has the tasks of agents.
    if outcome.as_ref().is_ok_and(|collected| !collected.interrupted) {
        queue.end_of_puts();
        run.agents.iter().for_each(|agents| agents.end_of_tasks());
    }
    let consumed_groups = serving.until_taken(queue, outcome.is_ok(), &interrupted).await?;
    // The run is over, so no interrupt follows for which this task would wait.
    drop(ledger_after_interrupt);
    let rows = records.close(run, services).await?;
    Ok((outcome?, consumed_groups, rows))
}

/// Opens the rollout and its prompts. The prompts begin at the position in the data at which an earlier
/// process of the run ended.
async fn open_rollout(
    run: &Run,
    ledger: &RunJournal,
    resumption: Option<Resumption>,
    steps: &Scope,
    services: &Scope,
) -> anyhow::Result<(AgentLoopManager, PromptFeed)> {
    let config = convert::rollout_config(&run.recipe, &ledger.run_id, Arc::clone(&run.reward.gates));
    let mut manager = run.manager(config, steps.clone());
    let keeps_tokens = !run.has_trajectories();
    let mut cursor = run.train.cursor(Arc::clone(&run.codec));
    if let Some(position) = resumption.as_ref().and_then(|resumption| resumption.position) {
        cursor.seek(position)?;
    }
    if let Some(resumption) = &resumption {
        cursor.count_from(drawn_before(resumption));
    }
    let prompts = PromptFeed::new(run.fleet.watch(Box::new(cursor), &run.codec));
    let restored = match resumption {
        Some(resumption) => {
            say(&format!(
                "the run continues: {} accepted in {}, {} to be issued again",
                plural(resumption.run_totals.accepted, "group"),
                plural(resumption.last_step, "step"),
                plural(resumption.queued.len() as u64, "prompt")
            ));
            Some(RunJournal::restore(&run.out, resumption, &prompts, keeps_tokens, services).await?)
        }
        None => None,
    };
    manager.keep_journal(ledger.writer.clone(), restored);
    Ok((manager, prompts))
}

/// The counts of the rows that earlier processes of the run have drawn. A prompt that was drawn but never
/// sent out is not counted, because it is drawn again.
fn drawn_before(resumption: &Resumption) -> DrawCounts {
    let meters = resumption.meters.as_ref();
    DrawCounts {
        // Each prompt that was sent out has its own number.
        prompts: resumption.next_number,
        overlong_dropped: meters.map_or(0, |meters| meters.overlong_dropped),
        overlong_truncated: meters.map_or(0, |meters| meters.overlong_truncated),
    }
}

/// The tasks that run beside the steps. This value must live until the scope of the tasks is closed, because
/// dropping the value aborts the tasks.
struct Serving {
    policy: Option<RunPolicy>,
    /// The task of the embedded consumer. The task returns the number of groups that the consumer acked.
    consuming: Option<AbortOnDropHandle<anyhow::Result<u64>>>,
    /// The address at which other processes take rows.
    served_at: Option<SocketAddr>,
    meters: Arc<Meters>,
    /// The run's address for its metrics and status.
    _reporting: Option<Reporting>,
    _monitoring: AbortOnDropHandle<()>,
    _members: Vec<AbortOnDropHandle<()>>,
}

impl Serving {
    async fn open(
        run: &Run,
        queue: &RunQueue,
        ledger: &RunJournal,
        manager: &AgentLoopManager,
        earlier: EarlierVersions,
        services: &Scope,
    ) -> anyhow::Result<Self> {
        let recipe = &run.recipe;
        let (balancer, control) = (run.fleet.balancer.clone(), Arc::clone(&run.fleet.control));
        let monitor = Monitor::new(balancer, control, convert::monitor_config(recipe));
        let monitoring = services.spawn("server monitor", monitor.run(services.token().clone()));
        let members = match &run.fleet.members {
            Some(members) => {
                members::open(members, &run.fleet.absent, recipe, run.metrics.clone(), services).await?
            }
            None => Vec::new(),
        };
        let (partition, writer) = (queue.partition(), ledger.writer.clone());
        let policy = RunPolicy::open(run, manager.control(), partition, writer, earlier, services).await?;
        let versions = policy.as_ref().map(|policy| policy.state().clone());
        let consuming = recipe.queue.consumer.clone().map(|consumer| {
            let claims = convert::claims(recipe);
            services.spawn(
                "consumer",
                queue.clone().consume(consumer, claims, versions, services.token().clone()),
            )
        });
        let served_at = match recipe.queue.address() {
            Some(address) => {
                let at = queue.serve(address, convert::queue_service(recipe), services).await?;
                say(&format!("serving the queue at http://{at}"));
                Some(at)
            }
            None => None,
        };
        let meters = Arc::new(Meters::new());
        let state = policy.as_ref().map(|policy| policy.state().clone());
        let reporter = reporter(run, queue, ledger, manager, state, Arc::clone(&meters));
        let reporting = reporter.open(recipe, &run.out, services).await;
        Ok(Self {
            policy,
            consuming,
            served_at,
            meters,
            _reporting: reporting,
            _monitoring: monitoring,
            _members: members,
        })
    }

    /// Waits for the consumers after the last put, unless the steps failed: first until the clients of the served
    /// queue have taken everything, and then until the embedded consumer has ended. Neither is waited for after
    /// `interrupted` is cancelled: consumers go on when the run does. Returns the number of groups that the
    /// embedded consumer acked.
    async fn until_taken(
        &mut self,
        queue: &RunQueue,
        all_collected: bool,
        interrupted: &CancellationToken,
    ) -> anyhow::Result<u64> {
        if !all_collected {
            return Ok(0);
        }
        if let Some(at) = self.served_at {
            tokio::select! {
                biased;
                () = queue.until_taken(at, interrupted) => (),
                () = after_steps(self.policy.as_ref()) => (),
            }
        }
        let Some(consuming) = &mut self.consuming else { return Ok(0) };
        // The embedded consumer ends by itself when it has acked all groups that it is allowed to take.
        tokio::select! {
            biased;
            consumed = consuming => consumed.context("the embedded consumer died")?,
            () = interrupted.cancelled() => Ok(queue.consumed_groups()),
            () = after_steps(self.policy.as_ref()) => Ok(0),
        }
    }
}

/// The sources of the run's metrics page and of its status.
fn reporter(
    run: &Run,
    queue: &RunQueue,
    ledger: &RunJournal,
    manager: &AgentLoopManager,
    versions: Option<PolicyState>,
    meters: Arc<Meters>,
) -> Reporter {
    let rollout = &run.recipe.rollout;
    Reporter {
        run_id: ledger.run_id.clone(),
        view: manager.view(),
        meters,
        balancer: run.fleet.balancer.clone(),
        queue: queue.whole(),
        partition: queue.partition(),
        ledger: ledger.writer.clone(),
        lack: queue.lack(),
        versions,
        samples_per_prompt: rollout.samples_per_prompt,
        own_trainer_groups: run.recipe.own_trainer().map(|consumer| consumer.take_groups),
        request: rollout.request,
        limits: wait_limits(&run.recipe),
        process: run.metrics.clone(),
    }
}

async fn after_steps(policy: Option<&RunPolicy>) {
    match policy {
        Some(policy) => policy.after_steps().await,
        None => std::future::pending().await,
    }
}
