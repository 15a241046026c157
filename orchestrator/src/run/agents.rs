//! The agents of a run. Agents produce the samples of the run's groups, and call the model through the run's
//! gateway.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rolldock_agent::{
    AgentConfig, AgentJob, Agents, AgentsParts, Finished, RewardBy, Stage, TASKS_PARTITION, Watch,
};
use rolldock_dispatch::{Spent, Stamp, VersionSpan};
use rolldock_gateway::{CallMeter, Entropy, GatewayConfig, GatewaySettings, Hosted, Sampling};
use rolldock_listener::Connections;
use rolldock_loadbalancer::{LoadBalancer, Priority};
use rolldock_queue::TransferQueue;
use rolldock_trajectory::Template;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::convert::seconds;
use super::fleet::Fleet;
use crate::data::{Prompt, TextCodec};
use crate::process::unix_seconds;
use crate::recipe::Recipe;
use crate::rollout::{
    EndedTrajectory, InWait, ModelCalls, Phase, TrajectoryFailure, TrajectoryJob, TrajectoryRunner,
};
use crate::scope::Scope;

/// Runs the samples of a run as agents.
pub(super) struct RunAgents {
    agents: Agents,
    /// Whether each version has a prefix cache of its own.
    salts_versions: bool,
}

impl RunAgents {
    /// Opens the gateway, and checks that the agent can be started and that the servers have its endpoints.
    /// `None` if the recipe has no agent.
    pub(super) async fn open(
        recipe: &Recipe,
        out: &Path,
        codec: &Arc<TextCodec>,
        fleet: &Fleet,
        scope: &Scope,
    ) -> anyhow::Result<Option<Self>> {
        let Some(config) = &recipe.agent else { return Ok(None) };
        if !codec.has_template() {
            anyhow::bail!(
                "model.chat_template: the tokenizer has no chat template, and an agent calls the model with messages; \
                 expected a Jinja file"
            );
        }
        let settings = recipe.gateway.clone().unwrap_or_default();
        let gateway = gateway(recipe, config, &settings, codec, fleet.balancer.clone(), scope).await?;
        let agents = Agents::new(AgentsParts {
            config: config.clone(),
            gateway,
            limits: settings.limits(recipe.rollout.max_response_length),
            out: out.to_owned(),
            scope: scope.clone(),
        });
        let urls: Vec<Arc<str>> =
            fleet.balancer.snapshot().servers.iter().filter_map(|server| server.url.clone()).collect();
        agents.check(&urls).await.context("the agent cannot be used")?;
        Ok(Some(Self { agents, salts_versions: recipe.policy.update.cache_salt }))
    }

    /// Kills the agents that an earlier process of the run left behind, and opens the parts of the run's
    /// queue that agents need. The caller owns the run's directory.
    pub(super) async fn begin(&self, queue: &TransferQueue) -> anyhow::Result<()> {
        self.agents.end_earlier().await;
        self.agents.begin(queue).await.context("the agent cannot be used")
    }

    /// Tells workers that the run has no more tasks.
    pub(super) fn end_of_tasks(&self) {
        self.agents.end_of_tasks();
    }

    /// The URL at which agents reach the gateway.
    pub(super) fn url(&self) -> &str {
        self.agents.gateway().root()
    }

    async fn work(&self, job: TrajectoryJob) -> Result<EndedTrajectory, TrajectoryFailure> {
        let meter = Arc::new(Meter {
            calls: job.calls.clone(),
            salts_versions: self.salts_versions,
            spent: Mutex::default(),
        });
        let of_agent: Arc<dyn CallMeter> = Arc::clone(&meter) as Arc<dyn CallMeter>;
        let stages = Stages { calls: &job.calls, wait: Mutex::default() };
        let (sampling, row) = (&job.sampling, task(&job.prompt));
        let finished = self.agents.run(AgentJob {
            uid: &job.uid,
            index: job.index,
            seed: job.seed,
            task: &row,
            prompt: job.prompt.messages.last().map_or("", |message| &message.content),
            sampling: Sampling {
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                seed: None,
            },
            deadline: job.deadline,
            meter: of_agent,
            watch: &stages,
        });
        let Finished { taken, reward, end, is_truncated } =
            finished.await.map_err(|error| TrajectoryFailure::new(error.to_string()))?;
        let spent = *meter.spent.lock();
        Ok(EndedTrajectory {
            trajectory: taken.trajectory,
            reward,
            end,
            is_truncated,
            reencoded: taken.reencoded,
            metadata: "{}".to_owned(),
            spent,
            server: taken.server.into(),
        })
    }
}

impl TrajectoryRunner for RunAgents {
    fn run(&self, job: TrajectoryJob) -> BoxFuture<'_, Result<EndedTrajectory, TrajectoryFailure>> {
        self.work(job).boxed()
    }
}

/// Opens the gateway of a run, which calls the servers with the run's own permits.
async fn gateway(
    recipe: &Recipe,
    agent: &AgentConfig,
    settings: &GatewaySettings,
    codec: &Arc<TextCodec>,
    balancer: LoadBalancer,
    scope: &Scope,
) -> anyhow::Result<Hosted> {
    let template: Arc<dyn Template> = Arc::clone(codec) as Arc<dyn Template>;
    // Capabilities must not be guessable, so they are not drawn from the seed of the run.
    let entropy = Entropy(Arc::new(rand::random::<u128>));
    let config = GatewayConfig {
        vocab_size: Some(codec.vocab_size_max()),
        history: settings.history,
        model: Some(recipe.model.name.clone()),
        limits: settings.limits(recipe.rollout.max_response_length),
        advertise: settings.advertise.clone(),
        heartbeat: seconds(settings.heartbeat),
        permit_wait: seconds(recipe.timeouts.permit),
        call_timeout: seconds(settings.call_timeout),
        attempts_max: settings.attempts_max,
        connections: Connections::new("gateway", &recipe.limits.connections),
        agents_reward: agent.reward == RewardBy::Agent,
        advantage: recipe.reward.advantage.estimator(),
        ..GatewayConfig::new("", template, entropy, unix_seconds)
    };
    let listener = bind(settings.listen).await?;
    let api_key = recipe.fleet.api_key.as_deref().map(Arc::from);
    Ok(Hosted::open(config, balancer, api_key, listener, scope)?)
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("gateway.listen: cannot listen at {address}"))
}

/// The data row as the agent reads it.
fn task(prompt: &Prompt) -> Value {
    let messages: Vec<Value> = prompt
        .messages
        .iter()
        .map(|message| json!({ "role": message.role, "content": message.content }))
        .collect();
    json!({
        "messages": messages,
        "answer": &*prompt.answer,
        "source": &*prompt.source,
        "extra_info": prompt.fields.extra_info(),
        "prompt_uid": prompt.uid.to_string(),
    })
}

/// Records the stages in which an agent waits as waits of its trajectory.
struct Stages<'a> {
    calls: &'a ModelCalls,
    wait: Mutex<Option<InWait>>,
}

impl std::fmt::Debug for Stages<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stages").field("dispatch", &self.calls.dispatch()).finish_non_exhaustive()
    }
}

impl Watch for Stages<'_> {
    fn entered(&self, stage: Stage) {
        let wait = match stage {
            Stage::Place => {
                self.calls.enter(Phase::Start, None, "a place: agent.concurrency agents are open")
            }
            Stage::Worker => {
                let detail = format!("a worker that takes its task from the partition {TASKS_PARTITION:?}");
                self.calls.enter(Phase::Start, None, detail)
            }
            Stage::Agent => self.calls.enter(Phase::Environment, None, "an agent"),
        };
        *self.wait.lock() = Some(wait);
    }
}

/// Reports the events of calls to the rollout.
struct Meter {
    calls: ModelCalls,
    salts_versions: bool,
    /// The time of all calls so far.
    spent: Mutex<Spent>,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Meter").field("dispatch", &self.calls.dispatch()).finish_non_exhaustive()
    }
}

impl CallMeter for Meter {
    fn priority(&self) -> Priority {
        self.calls.priority()
    }

    fn policy_version(&self) -> u64 {
        self.calls.policy_version()
    }

    fn stamp(&self, sent: u64, server: &str, spans: &[VersionSpan]) -> Stamp {
        self.calls.stamp(sent, server, spans)
    }

    fn salts_versions(&self) -> bool {
        self.salts_versions
    }

    fn permitted(&self, waited: Duration) {
        self.calls.started();
        self.spent.lock().permit += waited;
    }

    fn drew(&self, tokens: u64, time: Duration) {
        self.calls.sampled(tokens);
        self.spent.lock().engine += time;
    }

    fn gave_up(&self, after: Duration, generating: Duration) {
        self.calls.gave_up(generating);
        self.spent.lock().engine += after;
    }
}
