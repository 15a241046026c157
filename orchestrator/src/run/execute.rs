//! Opens the parts of a run in order, lets it collect its steps, and closes the parts again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_loadbalancer::Monitor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::journalling::RunJournal;
use super::policy::{RunPolicy, last_announcement};
use super::queue::RunQueue;
use super::signals::Endings;
use super::steps::{Collected, Steps};
use super::summary::Summary;
use super::{Run, convert, members};
use crate::policy::Announcement;
use crate::report::{Progress, say};
use crate::rollout::{AgentLoopManager, PromptFeed};
use crate::scope::Scope;
use rolldock_ledger::Resumption;

/// The resolved recipe, inside a run's directory.
pub const RECIPE_FILE: &str = "recipe.toml";

/// The log of all lives of the run, inside its directory.
const LOG_FILE: &str = "run.log";

/// How long the run's own tasks may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Collects all steps of a run. When this returns, the accepted groups are in the queue, except for groups
/// that found no room in it after an interruption.
pub(super) async fn execute(run: Run, progress: &Progress) -> anyhow::Result<Summary> {
    let (queue, ledger, resumption) = open_records(&run, progress).await?;
    let services = run.scope.child();
    let steps_scope = run.scope.child();
    let interrupted = steps_scope.token().clone();
    let _interrupt =
        services.spawn("interrupt", interrupt(steps_scope.token().clone(), services.token().clone()));
    let last = resumption.as_ref().map(last_announcement).transpose()?.flatten();
    queue.allow_earlier(resumption.as_ref())?;
    let (manager, prompts) = open_rollout(&run, &ledger, resumption, &steps_scope, &services).await?;
    let mut serving = Serving::open(&run, &queue, &ledger, &manager, last, &services).await?;
    let steps = Steps {
        run: &run,
        queue: &queue,
        ledger: &ledger,
        policy: serving.policy.as_ref(),
        progress,
        manager,
        advantage: convert::estimator(run.recipe.reward.advantage),
        prompts,
        scope: steps_scope,
    };
    let outcome = steps.collect().await;
    queue.end_of_puts();
    let consumed_groups = serving.until_taken(&queue, outcome.is_ok(), &interrupted).await?;
    services.close(CLOSE_LIMIT).await;
    ledger.close().await?;
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

/// Opens everything that the run writes: its directory with its ledger, its recipe, its log and its queue.
async fn open_records(
    run: &Run,
    progress: &Progress,
) -> anyhow::Result<(RunQueue, RunJournal, Option<Resumption>)> {
    std::fs::create_dir_all(&run.out).with_context(|| format!("cannot create {}", run.out.display()))?;
    let opened = RunJournal::open(&run.out, &run.recipe).await?;
    write_whole(&run.out.join(RECIPE_FILE), &run.recipe.to_toml()?)?;
    let log = run.out.join(LOG_FILE);
    progress.keep_log(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let queue = RunQueue::open(&run.out, &run.recipe).await?;
    let (ledger, resumption) = RunJournal::begin(opened, run.id(), queue.partition()).await?;
    Ok((queue, ledger, resumption))
}

/// The rollout and its prompts, from the place in the data where an earlier life of the run left them.
async fn open_rollout(
    run: &Run,
    ledger: &RunJournal,
    resumption: Option<Resumption>,
    steps: &Scope,
    services: &Scope,
) -> anyhow::Result<(AgentLoopManager, PromptFeed)> {
    let config = convert::rollout_config(&run.recipe, &ledger.run_id, Arc::clone(&run.reward.gates));
    let mut manager = AgentLoopManager::new(config, run.parts(), steps.clone());
    let mut cursor = run.train.cursor(Arc::clone(&run.codec));
    if let Some(position) = resumption.as_ref().and_then(|resumption| resumption.position) {
        cursor.seek(position)?;
    }
    let prompts = PromptFeed::new(run.fleet.watch(Box::new(cursor), &run.codec));
    let restored = match resumption {
        Some(resumption) => {
            say(&format!(
                "the run goes on: {} groups accepted in {} steps, {} prompts to be issued again",
                resumption.run_totals.accepted,
                resumption.last_step,
                resumption.queued.len()
            ));
            Some(RunJournal::restore(&run.out, resumption, &prompts, services).await?)
        }
        None => None,
    };
    manager.keep_journal(ledger.writer.clone(), restored);
    Ok((manager, prompts))
}

/// What works beside the steps. It has to be kept until its scope is closed: dropping it aborts its tasks.
struct Serving {
    policy: Option<RunPolicy>,
    /// The embedded consumer; it returns the number of groups that it took.
    consuming: Option<AbortOnDropHandle<anyhow::Result<u64>>>,
    /// The address at which other processes take rows.
    served_at: Option<SocketAddr>,
    _monitoring: AbortOnDropHandle<()>,
    _members: Vec<AbortOnDropHandle<()>>,
}

impl Serving {
    async fn open(
        run: &Run,
        queue: &RunQueue,
        ledger: &RunJournal,
        manager: &AgentLoopManager,
        last: Option<Announcement>,
        services: &Scope,
    ) -> anyhow::Result<Self> {
        let recipe = &run.recipe;
        let (balancer, control) = (run.fleet.balancer.clone(), Arc::clone(&run.fleet.control));
        let monitor = Monitor::new(balancer, control, convert::monitor_config(recipe));
        let monitoring = services.spawn("server monitor", monitor.run(services.token().clone()));
        let members = match &run.fleet.members {
            Some(members) => members::open(members, &run.fleet.absent, recipe, services).await?,
            None => Vec::new(),
        };
        let (partition, writer) = (queue.partition(), ledger.writer.clone());
        let policy = RunPolicy::open(run, manager.control(), partition, writer, last, services).await?;
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
                let at = queue.serve(address, recipe.queue.token.clone(), services).await?;
                say(&format!("serving the queue at http://{at}"));
                Some(at)
            }
            None => None,
        };
        Ok(Self { policy, consuming, served_at, _monitoring: monitoring, _members: members })
    }

    /// Waits for consumers after the last put, unless the steps failed: for clients of the served queue until
    /// they have taken everything or `interrupted` is cancelled, and then for the embedded consumer. Returns
    /// the number of groups that the embedded consumer took.
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
            queue.until_taken(at, interrupted).await;
        }
        let Some(consuming) = &mut self.consuming else { return Ok(0) };
        // The consumer ends by itself when it has taken all that it may.
        tokio::select! {
            biased;
            consumed = consuming => consumed.context("the embedded consumer died")?,
            () = after_steps(self.policy.as_ref()) => Ok(0),
        }
    }
}

/// Writes a file under another name and then renames it, so that a reader never finds a part of it.
fn write_whole(file: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = file.with_extension("unfinished");
    let written = std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}

async fn after_steps(policy: Option<&RunPolicy>) {
    match policy {
        Some(policy) => policy.after_steps().await,
        None => std::future::pending().await,
    }
}

/// The first Ctrl-C or SIGTERM cuts the step off, and everything accepted is kept. A second one ends the
/// process at once.
async fn interrupt(steps: CancellationToken, end: CancellationToken) {
    let mut endings = match Endings::listen() {
        Ok(endings) => endings,
        Err(error) => return tracing::warn!(%error, "the run cannot be asked to end"),
    };
    if end.run_until_cancelled(endings.asked()).await.is_none() {
        return;
    }
    tracing::warn!("interrupted: cancelling what runs on the engines; press Ctrl-C again to end at once");
    steps.cancel();
    if end.run_until_cancelled(endings.asked()).await.is_some() {
        #[expect(clippy::disallowed_methods, reason = "the user asked twice; the journal is made for this")]
        std::process::exit(130);
    }
}
