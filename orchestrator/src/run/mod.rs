//! A run, which assembles the components that a recipe describes and drives them step by step.
//!
//! [`Run::prepare`] opens the data, the tokenizer and the fleet. If one of them does not fit the recipe, the
//! call fails before anything is written. [`Run::execute`] opens the queue in the run's directory and
//! collects step after step.
//!
//! ```text
//! data ---> AgentLoopManager ---> accepted groups ---> queue <--- consumer (in a trainer's place; optional)
//!                  |  ^
//!               engine (HTTP or simulated), permits, monitor
//! ```

mod agents;
mod await_servers;
mod convert;
mod descriptors;
mod directory;
mod environment;
mod execute;
mod figures;
mod fleet;
mod going_on;
mod interrupt;
mod journalling;
mod members;
mod meters;
mod policy;
mod ports;
mod puts;
mod queue;
mod reporting;
mod reward;
mod secrets;
mod short_versions;
mod simulated;
mod steps;
mod summary;
mod validation_rows;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rolldock_agent::RewardBy;
use rolldock_listener::RenderMetrics;

use crate::data::{DataError, Dataset, PromptSource, TextCodec};
use crate::policy::PolicyMode;
use crate::process::{Endings, keep_metrics, of_members, plural, queue_folder, unix_seconds};
use crate::recipe::{Recipe, Validation};
use crate::report::Progress;
use crate::rollout::{AgentLoopManager, RolloutConfig, RolloutParts, TrajectoryRunner};
use crate::scope::Scope;

pub use convert::default_out;
pub use directory::{RECIPE_FILE, is_free};
pub use going_on::{EndedEarly, Unfinished, resume_command};
pub use reporting::{RunAddress, STATUS_PATH};
pub use secrets::missing_secrets;
pub use simulated::{GrowingKey, open_sim_codec, simulated_workload};
pub use summary::Summary;

pub(crate) use convert::{
    balancer_config, codec_config, monitor_config, permits_per_server, rollout_config, train_data,
};
pub(crate) use directory::write_whole;
pub(crate) use simulated::{length_config, server_config};

use agents::RunAgents;
use environment::Environments;
use fleet::Fleet;
use reward::Reward;

/// A run that is ready to start.
pub struct Run {
    recipe: Recipe,
    out: PathBuf,
    codec: Arc<TextCodec>,
    train: Dataset,
    validation: Option<Dataset>,
    fleet: Fleet,
    reward: Reward,
    /// Runs the samples as trajectories, if the recipe has an environment.
    trajectories: Option<Arc<Environments>>,
    /// The agents that make the samples; `None` if a sample is one answer of a server.
    agents: Option<Arc<RunAgents>>,
    /// The metrics of the process; `None` if other code has installed a recorder.
    metrics: Option<RenderMetrics>,
    scope: Scope,
    /// The signals since the preparation began. [`Run::execute`] takes them over.
    endings: Option<Endings>,
}

impl Run {
    /// Opens data, tokenizer and fleet, and checks that the addresses of the recipe are free. Nothing is
    /// written. Servers that do not answer are asked again for `servers_wait` if it is given, and otherwise
    /// for the recipe's time-outs.
    ///
    /// # Errors
    /// Returns [`EndedEarly`] if a signal asks the process to end before this returns, and the errors of the
    /// components that are opened.
    pub async fn prepare(
        recipe: Recipe,
        out: PathBuf,
        servers_wait: Option<Duration>,
        scope: Scope,
    ) -> anyhow::Result<Self> {
        let mut endings = Endings::listen()?;
        let mut run = tokio::select! {
            biased;
            ending = endings.asked() => return Err(EndedEarly(ending).into()),
            opened = Self::open(recipe, out, servers_wait, scope) => opened?,
        };
        run.endings = Some(endings);
        Ok(run)
    }

    async fn open(
        recipe: Recipe,
        out: PathBuf,
        servers_wait: Option<Duration>,
        scope: Scope,
    ) -> anyhow::Result<Self> {
        descriptors::prepare(&recipe)?;
        let opening = recipe.clone();
        let opened = scope
            .spawn_blocking("data set", move || open_data(&opening))
            .await
            .context("cannot open the data")?;
        let (codec, train, validation) = match (opened, ports::check(&recipe)) {
            (Ok(opened), Ok(())) => opened,
            (Err(error), Ok(())) | (Ok(_), Err(error)) => return Err(error),
            (Err(data), Err(ports)) => anyhow::bail!("{data:#}; and {ports:#}"),
        };
        // The recorder is installed first, because each component looks its metrics up once, when it is
        // created.
        let metrics = keep_metrics(&scope).inspect_err(|error| tracing::warn!("{error:#}")).ok();
        let fleet = Fleet::open(&recipe, servers_wait, &codec, &scope).await?;
        let metrics = metrics.map(|metrics| of_members(metrics, fleet.balancer.clone()));
        let reward = Reward::open(&recipe, &codec, &scope)?;
        let trajectories = Environments::open(&recipe, &codec, &scope)?.map(Arc::new);
        let agents = RunAgents::open(&recipe, &out, &codec, &fleet, &scope).await?.map(Arc::new);
        Ok(Self {
            recipe,
            out,
            codec,
            train,
            validation,
            fleet,
            reward,
            trajectories,
            agents,
            metrics,
            scope,
            endings: None,
        })
    }

    /// A description of the run, for people.
    pub fn describe(&self) -> String {
        let rollout = &self.recipe.rollout;
        let steps =
            self.recipe.run.steps.map_or("until the data ends".to_owned(), |steps| plural(steps, "step"));
        let mut lines = vec![
            format!("tokenizer: {} ({} tokens)", self.codec.origin(), self.codec.vocab_size()),
            format!("training data: {}", self.train.report()),
        ];
        lines.push(match (&self.validation, &self.recipe.validation) {
            (Some(data), _) => format!("validation data: {}", data.report()),
            (None, Some(validation)) => {
                format!("validation: none, the run ends before step {}", validation.every_steps)
            }
            (None, None) => "validation: none".to_owned(),
        });
        lines.push(format!("fleet: {}", self.fleet.description));
        lines.push(format!(
            "plan: {steps} of {} x {}, from generation batches of {}, at most {} a step; \
             early stop {}, on stop {}, launch {}",
            plural(rollout.train_batch_size as u64, "group"),
            plural(rollout.samples_per_prompt.into(), "sample"),
            plural(rollout.gen_batch_size as u64, "prompt"),
            rollout.max_gen_batches,
            rollout.early_stop,
            rollout.on_stop,
            self.recipe.launch(),
        ));
        lines.push(format!("policy: {}", policy_plan(&self.recipe)));
        if let Some(environment) = &self.recipe.environment {
            lines.push(format!("environment: {}", environment::described(environment)));
        }
        if let (Some(agents), Some(agent)) = (&self.agents, &self.recipe.agent) {
            lines.push(format!(
                "agent: {}; at most {} at a time, which call {}",
                agent.describe(),
                agent.concurrency,
                agents.url()
            ));
        }
        lines.push(format!("reward: {}", scored_by(&self.recipe)));
        if let Some(overlong) = &self.recipe.reward.overlong
            && overlong.buffer_length >= rollout.max_response_length
        {
            lines.push(format!(
                "note: reward.overlong.buffer_length={} is not below rollout.max_response_length={}, so every \
                 response is punished for its length",
                overlong.buffer_length, rollout.max_response_length
            ));
        }
        if let Some(listen) = &self.recipe.queue.listen {
            lines.push(format!("queue: served at http://{listen} until all rows are taken"));
            let step_rows = rollout.train_batch_size * rollout.samples_per_prompt as usize;
            let capacity = self.recipe.queue.capacity_rows;
            if capacity < step_rows {
                lines.push(format!(
                    "note: queue.capacity_rows={capacity} is less than the {step_rows} rows of a step, so a trainer \
                     that takes whole steps would wait for ever"
                ));
            }
        }
        lines.push(format!(
            "rows go to: {} (partition {:?})",
            queue_folder(&self.out).display(),
            self.recipe.queue.partition
        ));
        lines.join("\n")
    }

    /// Checks with a row of the data that rewards and gates outside of this process answer. Cancel-safe.
    async fn check_reward(&self) -> anyhow::Result<()> {
        if !self.reward.is_outside() {
            return Ok(());
        }
        let mut rows = self.train.pass(Arc::clone(&self.codec));
        let drawn = self.scope.spawn_blocking("reward probe", move || rows.next()).await;
        // If the data has no prompt that fits, the first step ends the run.
        match drawn.context("cannot read the data")?? {
            Some(prompt) => self.reward.check(&prompt).await,
            None => Ok(()),
        }
    }

    /// The id of the run. Request ids start with it, so it must be unique among the runs that share servers.
    fn id(&self) -> String {
        let name = self.out.to_string_lossy();
        format!("rd{:08x}{:x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32, std::process::id())
    }

    /// Checks that the environment of the recipe can be used. Cancel-safe.
    async fn check_trajectories(&self) -> anyhow::Result<()> {
        match &self.trajectories {
            Some(environments) => environments.check().await.context("the environment cannot be used"),
            None => Ok(()),
        }
    }

    fn has_trajectories(&self) -> bool {
        self.trajectories.is_some() || self.agents.is_some()
    }

    /// The rows of a group; `None` if groups differ, because a trajectory may have several rows.
    fn group_rows(&self) -> Option<u64> {
        (!self.has_trajectories()).then_some(u64::from(self.recipe.rollout.samples_per_prompt))
    }

    /// A rollout of this run, for training or for a validation.
    fn manager(&self, config: RolloutConfig, scope: Scope) -> AgentLoopManager {
        let parts = RolloutParts {
            engine: Arc::clone(&self.fleet.engine),
            balancer: self.fleet.balancer.clone(),
            grading: self.reward.grading.clone(),
        };
        let manager = AgentLoopManager::new(config, parts, scope);
        match (&self.agents, &self.trajectories) {
            (Some(agents), _) => manager.with_trajectories(Arc::clone(agents) as Arc<dyn TrajectoryRunner>),
            (None, Some(runner)) => {
                manager.with_trajectories(Arc::clone(runner) as Arc<dyn TrajectoryRunner>)
            }
            (None, None) => manager,
        }
    }

    /// Runs to the end, or until the scope is ended. A run that cannot start leaves no files behind.
    pub async fn execute(self, progress: &Progress) -> anyhow::Result<Summary> {
        execute::execute(self, progress).await
    }
}

/// Describes what scores the samples.
fn scored_by(recipe: &Recipe) -> String {
    match &recipe.agent {
        Some(agent) if agent.reward == RewardBy::Agent => "the agent's own".to_owned(),
        _ => recipe.reward.scored_by(),
    }
}

/// Describes how far generation may run ahead, and where versions are announced.
fn policy_plan(recipe: &Recipe) -> String {
    let policy = &recipe.policy;
    if policy.mode == PolicyMode::Off {
        return format!(
            "{}, there is no trainer and the version stays {}",
            policy.mode, policy.first_version
        );
    }
    if !recipe.is_announced_to() {
        return format!(
            "{}; note: no trainer announces versions (policy.listen, policy.watch, queue.consumer.announces), so the \
             version stays {}",
            policy.mode, policy.first_version
        );
    }
    let listen = policy.listen.as_ref().map(|listen| format!("at http://{listen}"));
    let watch = policy.watch.as_ref().map(|watch| format!("in {}", watch.display()));
    let consumer = recipe.own_trainer().map(|_| "by the embedded consumer".to_owned());
    let announced: Vec<String> = [listen, watch, consumer].into_iter().flatten().collect();
    format!(
        "{}, at most {} versions behind{}; versions are announced {}; servers are updated by {}, pause {}",
        policy.mode,
        policy.staleness_max(),
        if policy.pacing { ", paced" } else { "" },
        announced.join(" and "),
        policy.update.method,
        policy.update.pause,
    )
}

fn open_data(recipe: &Recipe) -> anyhow::Result<(Arc<TextCodec>, Dataset, Option<Dataset>)> {
    let codec = Arc::new(TextCodec::open(&convert::codec_config(&recipe.model, unix_seconds()))?);
    let open = |config| Dataset::open(config).map_err(|error| with_places(error, recipe));
    let train = open(convert::train_data(&recipe.data))?;
    let validation = match convert::validation_data(&recipe.data) {
        Some(config) if validates(recipe) => Some(open(config)?),
        _ => None,
    };
    Ok((codec, train, validation))
}

/// Adds the paths that were tried to the error of a data file that does not exist.
fn with_places(error: DataError, recipe: &Recipe) -> anyhow::Error {
    let places = match &error {
        DataError::Read { file, reason } if reason.kind() == ErrorKind::NotFound => {
            recipe.looked_for.places(file)
        }
        _ => None,
    };
    let Some(places) = places else { return error.into() };
    let whole = |place: &PathBuf| std::path::absolute(place).unwrap_or_else(|_| place.clone());
    let places: Vec<String> = places.iter().map(|place| whole(place).display().to_string()).collect();
    anyhow::anyhow!("{error}; it was looked for at {}", places.join(", "))
}

/// Whether the run is long enough to reach its first validation. If it is not, the validation data need not
/// exist.
fn validates(recipe: &Recipe) -> bool {
    let steps = recipe.run.steps.unwrap_or(u64::MAX);
    let reaches = |validation: &Validation| validation.before_training || steps >= validation.every_steps;
    recipe.validation.as_ref().is_some_and(reaches)
}
