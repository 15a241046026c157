//! Opens what a run consists of, in order, lets it collect its steps, and closes everything in the other order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_loadbalancer::Monitor;
use tokio_util::sync::CancellationToken;

use super::journalling::RunJournal;
use super::policy::{RunPolicy, last_announcement};
use super::queue::RunQueue;
use super::signals::Endings;
use super::steps::{Collected, Steps, say};
use super::summary::Summary;
use super::{Run, convert, members};
use crate::report::Progress;
use crate::rollout::{AgentLoopManager, PromptFeed, RolloutParts};

/// The resolved recipe, inside a run's directory.
pub const RECIPE_FILE: &str = "recipe.toml";

/// What was logged over all lives of the run.
const LOG_FILE: &str = "run.log";

/// How long the run's own tasks may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn execute(run: Run, progress: &Progress) -> anyhow::Result<Summary> {
    std::fs::create_dir_all(&run.out).with_context(|| format!("cannot create {}", run.out.display()))?;
    let opened = RunJournal::open(&run.out, &run.recipe).await?;
    write_whole(&run.out.join(RECIPE_FILE), &run.recipe.to_toml()?)?;
    let log = run.out.join(LOG_FILE);
    progress.keep_log(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let queue = RunQueue::open(&run.out, &run.recipe).await?;
    let (ledger, resumption) = RunJournal::begin(opened, run_id(&run), queue.partition()).await?;
    let services = run.scope.child();
    let steps_scope = run.scope.child();
    let interrupted = steps_scope.token().clone();
    let _interrupt = services.spawn(interrupt(steps_scope.token().clone(), services.token().clone()));

    let config = convert::rollout_config(&run.recipe, &ledger.run_id, Arc::clone(&run.reward.gates));
    let (rule, advantage) = (config.staleness, config.advantage);
    let mut manager = AgentLoopManager::new(config, parts(&run), steps_scope.clone());
    let mut cursor = run.train.cursor(Arc::clone(&run.codec));
    if let Some(position) = resumption.as_ref().and_then(|resumption| resumption.position) {
        cursor.seek(position)?;
    }
    let prompts = PromptFeed::new(run.fleet.watch(Box::new(cursor), &run.codec));
    queue.allow_earlier(resumption.as_ref())?;
    let last = resumption.as_ref().map(last_announcement).transpose()?.flatten();
    let restored = match resumption {
        Some(resumption) => {
            say(&format!(
                "the run goes on: {} groups accepted in {} steps, {} prompts to be issued again",
                resumption.run_totals.accepted,
                resumption.last_step,
                resumption.queued.len()
            ));
            Some(RunJournal::restore(&run.out, resumption, &prompts, &services).await?)
        }
        None => None,
    };
    manager.keep_journal(ledger.writer.clone(), restored);

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
    let (partition, writer) = (queue.partition(), ledger.writer.clone());
    let policy = RunPolicy::open(&run, rule, manager.control(), partition, writer, last, &services).await?;
    let versions = policy.as_ref().map(|policy| policy.state().clone());
    let consuming = run.recipe.queue.consumer.clone().map(|consumer| {
        let claims = convert::claims(&run.recipe);
        services.spawn(queue.clone().consume(consumer, claims, versions, services.token().clone()))
    });
    let served_at = match run.recipe.queue.address() {
        Some(address) => {
            let at = queue.serve(address, run.recipe.queue.token.clone(), &services).await?;
            say(&format!("serving the queue at http://{at}"));
            Some(at)
        }
        None => None,
    };

    let steps = Steps {
        run: &run,
        queue: &queue,
        ledger: &ledger,
        policy: policy.as_ref(),
        progress,
        manager,
        advantage,
        prompts,
        scope: steps_scope,
    };
    let outcome = steps.collect().await;
    queue.end_of_puts();
    if let (Some(at), Ok(_)) = (served_at, &outcome) {
        queue.until_taken(at, &interrupted).await;
    }
    let consumed_groups = match consuming {
        // It ends by itself when it has taken all that it may.
        Some(consuming) if outcome.is_ok() => tokio::select! {
            biased;
            consumed = consuming => consumed.context("the embedded consumer died")??,
            () = after_steps(policy.as_ref()) => 0,
        },
        _ => 0,
    };
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

/// So that whoever reads it, now or after a crash, reads all of it.
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

/// First Ctrl-C or SIGTERM: the step is cut off, everything accepted is kept. A second one is the shell's again.
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

/// Unique over runs that share servers: request ids start with it.
pub(super) fn run_id(run: &Run) -> String {
    let name = run.out.to_string_lossy();
    format!("rd{:08x}{:x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32, std::process::id())
}

pub(super) fn parts(run: &Run) -> RolloutParts {
    RolloutParts {
        engine: Arc::clone(&run.fleet.engine),
        balancer: run.fleet.balancer.clone(),
        grading: run.reward.grading.clone(),
    }
}
