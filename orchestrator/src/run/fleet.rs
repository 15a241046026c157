//! The servers of a run: real servers at endpoints, or simulated servers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::membership::{Enlist, EnlistError, Membership, NewMember, name_of};
use rolldock_loadbalancer::{EngineControl, LoadBalancer, ServerSpec};
use rolldock_simengine::{AnswerKey, Codec, SimServer, http};

use super::await_servers::{Endpoint, Found, await_servers};
use super::convert;
use super::simulated::{GrowingKey, TurnKey, open_sim_codec, simulated_workload, start_servers};
use crate::data::{PromptSource, TextCodec};
use crate::engine::http::{Encode, HttpEngine, ServerFacts};
use crate::engine::simulated::SimulatedEngine;
use crate::engine::{Engine, EngineError, ErrorClass};
use crate::process::{plural, unix_seconds};
use crate::recipe::{Recipe, Simulated, Transport};
use crate::scope::Scope;

/// The time limit of a control call. It does not apply to calls that wait until running requests have ended
/// or weights have been loaded. The other calls are small, so one that takes longer is a sign of a fault.
const CONTROL_DEADLINE: Duration = Duration::from_secs(5);

/// The servers to which a run sends its requests, and their load balancer.
pub(super) struct Fleet {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) control: Arc<dyn EngineControl>,
    pub(super) balancer: LoadBalancer,
    /// The membership through which servers join and leave; `None` if the run calls simulated servers without
    /// HTTP.
    pub(super) members: Option<Membership>,
    /// Servers of the recipe that have not answered yet. They join the fleet when they answer.
    pub(super) absent: Vec<NewMember>,
    pub(super) description: String,
    /// The answers that a simulated model knows. When a prompt is drawn, its answer is added.
    pub(super) key: Option<GrowingKey>,
}

impl Fleet {
    /// Opens the fleet as soon as the run can start with the servers that answer; see [`await_servers`].
    /// Until then, servers that do not answer are asked again, but for no longer than `servers_wait`. If
    /// `servers_wait` is `None`, the recipe's time-outs apply.
    pub(super) async fn open(
        recipe: &Recipe,
        servers_wait: Option<Duration>,
        codec: &Arc<TextCodec>,
        scope: &Scope,
    ) -> anyhow::Result<Self> {
        match &recipe.fleet.simulated {
            Some(simulated) => Self::simulated(recipe, simulated, codec, scope).await,
            None => {
                Self::of_endpoints(recipe, &recipe.fleet.endpoints, servers_wait, codec, scope, None).await
            }
        }
    }

    async fn of_endpoints(
        recipe: &Recipe,
        endpoints: &[String],
        servers_wait: Option<Duration>,
        codec: &Arc<TextCodec>,
        scope: &Scope,
        key: Option<GrowingKey>,
    ) -> anyhow::Result<Self> {
        let encoder = Arc::clone(codec);
        // A text that cannot be encoded gets no ids, and the engine reports a bad answer.
        let encode: Encode = Arc::new(move |text: &str| encoder.encode(text).unwrap_or_default());
        let engine = HttpEngine::new(convert::http_config(recipe, codec), Some(encode), scope.clone())?;
        let of_answers = recipe.data.max_prompt_length + recipe.rollout.max_response_length as usize;
        let of_turns = recipe.environment.as_ref().map(|environment| environment.context_tokens as usize);
        let room = of_turns.unwrap_or(of_answers);
        let probed = Probed { engine: Arc::new(engine), room };
        let named = |url: &String| Endpoint { name: name_of(url).to_owned(), url: url.clone() };
        let endpoints = endpoints.iter().map(named).collect();
        let terms = convert::server_terms(recipe, servers_wait);
        let ask = |server: Endpoint| {
            let probed = &probed;
            async move { probed.add(&server.name, &server.url).await }
        };
        let Found { ready, absent } = await_servers(endpoints, &terms, ask).await?;
        let capacity = convert::permits_per_server(recipe);
        let capacity_tokens = recipe.fleet.max_tokens_per_server;
        let description = described(&ready, &absent, &convert::described_permits(recipe));
        let spec = |(server, _): (Endpoint, ServerFacts)| ServerSpec {
            capacity_tokens,
            ..ServerSpec::new(server.name, server.url, capacity)
        };
        let specs = ready.into_iter().map(spec).collect();
        let balancer = LoadBalancer::new(convert::balancer_config(recipe), specs)?;
        let api_key = recipe.fleet.api_key.as_deref().map(Arc::from);
        let engine = Arc::clone(&probed.engine);
        let members = Membership::new(balancer.clone(), Arc::new(probed), capacity)
            .with_capacity_tokens(capacity_tokens);
        let late = |Endpoint { name, url }| NewMember { url, name: Some(name), capacity: None };
        Ok(Self {
            engine,
            control: Arc::new(VllmControl::new(CONTROL_DEADLINE, api_key)?),
            balancer,
            members: Some(members),
            absent: absent.into_iter().map(late).collect(),
            description,
            key,
        })
    }

    async fn simulated(
        recipe: &Recipe,
        simulated: &Simulated,
        codec: &Arc<TextCodec>,
        scope: &Scope,
    ) -> anyhow::Result<Self> {
        let key = GrowingKey::for_scorer(&recipe.reward.scorer);
        let sim_codec = open_sim_codec(&recipe.model.tokenizer, codec)?;
        let eos_id = codec.eos_ids().first().copied().unwrap_or(0);
        let workload = simulated_workload(&sim_codec, eos_id, simulated.seed, simulated.mean_response_length);
        let answers: Arc<dyn AnswerKey> = match &recipe.environment {
            Some(environment) => {
                let filler = sim_codec.filler_ids();
                let mean = simulated.mean_response_length;
                Arc::new(TurnKey::new(&key, environment.name, codec, workload.clone(), filler, mean))
            }
            None => Arc::new(key.clone()),
        };
        let servers = start_servers(recipe, simulated, workload, &answers, scope)?;
        if simulated.transport == Transport::Http {
            let mut endpoints = Vec::new();
            let face_codec: Arc<dyn Codec> = Arc::new(sim_codec);
            for server in servers {
                let listener =
                    tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.context("loopback socket")?;
                let codec = Arc::clone(&face_codec);
                let started_s = unix_seconds();
                let addr =
                    http::serve(server, codec, listener, started_s, scope.tracker(), scope.token().clone())?;
                endpoints.push(format!("http://{addr}"));
            }
            return Self::of_endpoints(recipe, &endpoints, None, codec, scope, Some(key)).await;
        }
        let capacity = convert::permits_per_server(recipe);
        let spec = |server: &SimServer| ServerSpec {
            capacity_tokens: recipe.fleet.max_tokens_per_server,
            ..ServerSpec::unreached(server.config().name.clone(), capacity)
        };
        let specs = servers.iter().map(spec).collect();
        let engine = SimulatedEngine::new(servers);
        Ok(Self {
            engine: Arc::new(engine.clone()),
            control: Arc::new(engine),
            balancer: LoadBalancer::new(convert::balancer_config(recipe), specs)?,
            members: None,
            absent: Vec::new(),
            description: format!(
                "{} in this process, {}, {} real seconds per simulated second",
                plural(simulated.servers as u64, "simulated server"),
                convert::described_permits(recipe),
                simulated.time_scale
            ),
            key: Some(key),
        })
    }

    /// Wraps `source` so that a simulated model learns the answers to the prompts as they are drawn.
    pub(super) fn watch(
        &self,
        source: Box<dyn PromptSource>,
        codec: &Arc<TextCodec>,
    ) -> Box<dyn PromptSource> {
        match &self.key {
            None => source,
            Some(key) => key.watch(source, codec),
        }
    }
}

/// Adds servers to the engine. Each server is probed first to find out its dialect.
struct Probed {
    engine: Arc<HttpEngine>,
    /// The maximum number of tokens of a prompt and its response together.
    room: usize,
}

impl Probed {
    /// Probes a server and adds it to the engine. Cancel-safe.
    async fn add(&self, name: &str, url: &str) -> Result<ServerFacts, EngineError> {
        let facts = self.engine.add(name, url).await?;
        if let Some(longest) = facts.max_model_len.filter(|longest| (*longest as usize) < self.room) {
            let room = self.room;
            tracing::warn!(
                server = name,
                max_model_len = longest,
                "the longest prompt and response together have {room} tokens; the server has a lower limit, and \
                 refuses longer requests or cuts their responses short"
            );
        }
        Ok(facts)
    }
}

impl Enlist for Probed {
    fn enlist<'a>(&'a self, name: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), EnlistError>> {
        async move {
            self.add(name, url).await.map(drop).map_err(|error| match error.class() {
                ErrorClass::Client => EnlistError::Unfit(error.to_string()),
                _ => EnlistError::Absent(error.to_string()),
            })
        }
        .boxed()
    }

    fn dismiss(&self, name: &str) {
        self.engine.remove(name);
    }
}

/// A description of the fleet, for people.
fn described(ready: &[(Endpoint, ServerFacts)], absent: &[Endpoint], permits: &str) -> String {
    let found = |(server, facts): &(Endpoint, ServerFacts)| {
        let longest = facts.max_model_len.map_or("unknown".to_owned(), |tokens| tokens.to_string());
        format!("{} ({}, max_model_len {longest})", server.name, facts.dialect.as_str())
    };
    let found: Vec<String> = ready.iter().map(found).collect();
    let mut words = format!("{}, {permits}", found.join(", "));
    if !absent.is_empty() {
        let absent: Vec<&str> = absent.iter().map(|server| server.name.as_str()).collect();
        words.push_str(&format!("; not answering yet: {}", absent.join(", ")));
    }
    words
}
