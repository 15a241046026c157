//! The servers of a run: real ones at endpoints, or simulated ones of our own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::membership::{Enlist, Membership, name_of};
use rolldock_loadbalancer::{EngineControl, LoadBalancer, ServerSpec};
use rolldock_simengine::{
    Answer, AnswerKey, AnswerTable, Codec, LengthConfig, ServerConfig, SimServer, TextCodec as SimTextCodec,
    Workload, WorkloadConfig, http,
};

use super::convert;
use crate::data::{DataError, DrawCounts, Position, Prompt, PromptSource, TextCodec};
use crate::engine::Engine;
use crate::engine::http::{Encode, HttpEngine};
use crate::engine::simulated::SimulatedEngine;
use crate::recipe::{Recipe, Simulated, Transport};
use crate::scope::Scope;

/// Control calls are small; one that takes longer says that something is wrong.
const CONTROL_DEADLINE: Duration = Duration::from_secs(5);
/// A response much longer than the mean: the tail of the length distribution is cut here.
const LENGTH_SPREAD: f64 = 64.0;
/// About half of the samples are wrong, and those are a quarter longer.
const WRONG_ANSWERS_ARE_LONGER: f64 = 1.12;

/// What a run sends its requests to.
pub(super) struct Fleet {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) control: Arc<dyn EngineControl>,
    pub(super) balancer: LoadBalancer,
    /// Who may join or leave; absent where the servers are in this process.
    pub(super) members: Option<Membership>,
    pub(super) description: String,
    /// The simulated model's answers; filled as prompts are drawn.
    pub(super) key: Option<GrowingKey>,
}

impl Fleet {
    pub(super) async fn open(recipe: &Recipe, codec: &Arc<TextCodec>, scope: &Scope) -> anyhow::Result<Self> {
        match &recipe.fleet.simulated {
            Some(simulated) => Self::simulated(recipe, simulated, codec, scope).await,
            None => Self::of_endpoints(recipe, &recipe.fleet.endpoints, codec, scope, None).await,
        }
    }

    async fn of_endpoints(
        recipe: &Recipe,
        endpoints: &[String],
        codec: &Arc<TextCodec>,
        scope: &Scope,
        key: Option<GrowingKey>,
    ) -> anyhow::Result<Self> {
        let encoder = Arc::clone(codec);
        // An unencodable text has no ids, which the engine reports as a bad answer.
        let encode: Encode = Arc::new(move |text: &str| encoder.encode(text).unwrap_or_default());
        let engine = HttpEngine::new(convert::http_config(recipe), Some(encode), scope.clone())?;
        let named: Vec<(String, String)> =
            endpoints.iter().map(|url| (name_of(url).to_owned(), url.clone())).collect();
        let facts = engine.add_all(&named).await?;
        let capacity = convert::permits_per_server(recipe);
        let capacity_tokens = recipe.fleet.max_tokens_per_server;
        let mut specs = Vec::new();
        let mut words = Vec::new();
        for ((name, url), facts) in named.into_iter().zip(&facts) {
            let room = recipe.data.max_prompt_length + recipe.rollout.max_response_length as usize;
            if let Some(longest) = facts.max_model_len.filter(|longest| (*longest as usize) < room) {
                tracing::warn!(
                    server = %name,
                    max_model_len = longest,
                    "the longest prompt and response together have {room} tokens; the server refuses longer ones than its own limit"
                );
            }
            words.push(format!(
                "{name} ({}, max_model_len {})",
                facts.dialect.as_str(),
                or_unknown(facts.max_model_len)
            ));
            specs.push(ServerSpec { capacity_tokens, ..ServerSpec::new(name, url, capacity) });
        }
        let api_key = recipe.fleet.api_key.as_deref().map(Arc::from);
        let engine = Arc::new(engine);
        let balancer = LoadBalancer::new(convert::balancer_config(recipe), specs)?;
        let members = Membership::new(balancer.clone(), Arc::new(Probed(Arc::clone(&engine))), capacity)
            .with_capacity_tokens(capacity_tokens);
        Ok(Self {
            engine,
            control: Arc::new(VllmControl::new(CONTROL_DEADLINE, api_key)?),
            balancer,
            members: Some(members),
            description: format!("{}, {capacity} permits each", words.join(", ")),
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
        let servers = start_servers(recipe, simulated, workload, &key, scope)?;
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
            return Self::of_endpoints(recipe, &endpoints, codec, scope, Some(key)).await;
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
            description: format!(
                "{} simulated servers in this process, {capacity} permits each, {} real seconds per simulated second",
                simulated.servers, simulated.time_scale
            ),
            key: Some(key),
        })
    }

    /// Lets the simulated model know the answers to the prompts that `source` draws.
    pub(super) fn watch(
        &self,
        source: Box<dyn PromptSource>,
        codec: &Arc<TextCodec>,
    ) -> Box<dyn PromptSource> {
        match &self.key {
            None => source,
            Some(key) => Box::new(Watched { source, key: key.clone(), codec: Arc::clone(codec) }),
        }
    }
}

/// A server joins when its probe has found what it speaks.
struct Probed(Arc<HttpEngine>);

impl Enlist for Probed {
    fn enlist<'a>(&'a self, name: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        async move { self.0.add(name, url).await.map(drop).map_err(|error| error.to_string()) }.boxed()
    }

    fn dismiss(&self, name: &str) {
        self.0.remove(name);
    }
}

fn or_unknown(tokens: Option<u32>) -> String {
    tokens.map_or("unknown".to_owned(), |tokens| tokens.to_string())
}

/// The simulated servers' own view of the tokenizer that `codec` was opened from under the name `tokenizer`.
pub fn open_sim_codec(tokenizer: &str, codec: &TextCodec) -> anyhow::Result<SimTextCodec> {
    if tokenizer == "builtin" {
        return Ok(SimTextCodec::builtin()?);
    }
    // A hub id is no path; where it was found is one.
    let path = [tokenizer, codec.origin()].map(Path::new).into_iter().find(|path| path.exists());
    let path = path.with_context(|| format!("cannot find the files of tokenizer {tokenizer}"))?;
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let json = std::fs::read(&file).with_context(|| format!("cannot read tokenizer {}", file.display()))?;
    SimTextCodec::from_json(&json).with_context(|| format!("tokenizer {}", file.display()))
}

/// The simulated model for a tokenizer and a mean response length.
pub fn simulated_workload(
    codec: &SimTextCodec,
    eos_id: u32,
    seed: u64,
    mean_response_length: f64,
) -> Workload {
    // Lengths are log-normal, so their mean is above their median; hard prompts get four times easy ones'.
    let sigma = LengthConfig::default().sigma;
    let median = mean_response_length / (sigma * sigma / 2.0).exp() / WRONG_ANSWERS_ARE_LONGER;
    let length = LengthConfig {
        median_easy: median * 0.4,
        median_hard: median * 1.6,
        max: (mean_response_length * LENGTH_SPREAD) as u32,
        ..LengthConfig::default()
    };
    Workload::new(WorkloadConfig {
        seed,
        eos_id,
        vocab_size: codec.vocab_size(),
        filler_ids: codec.filler_ids(),
        length,
        ..WorkloadConfig::default()
    })
}

/// Starts the servers of a `[fleet.simulated]` table.
fn start_servers(
    recipe: &Recipe,
    simulated: &Simulated,
    workload: Workload,
    key: &GrowingKey,
    scope: &Scope,
) -> anyhow::Result<Vec<SimServer>> {
    let workload = Arc::new(workload);
    let mut servers = Vec::new();
    for number in 0..simulated.servers {
        let config = ServerConfig {
            name: format!("sim-{number}"),
            model: recipe.model.name.clone(),
            max_num_seqs: simulated.max_num_seqs,
            speed: simulated.speeds.get(number).copied().unwrap_or(1.0),
            time_scale: simulated.time_scale,
            ..ServerConfig::default()
        };
        let answers: Arc<dyn AnswerKey> = Arc::new(key.clone());
        let server =
            SimServer::start(config, Arc::clone(&workload), answers, scope.tracker(), scope.token().clone())?;
        servers.push(server);
    }
    Ok(servers)
}

/// How a simulated response gives its result.
#[derive(Debug, Clone, Copy)]
enum AnswerForm {
    /// As `math_dapo` reads it.
    AnswerLine,
    /// As every scorer reads it, whichever a prompt is routed to.
    Every,
}

/// Answers to the prompts drawn so far; as large as the part of the data set that was drawn.
#[derive(Debug, Clone)]
pub struct GrowingKey {
    table: Arc<RwLock<AnswerTable>>,
    form: AnswerForm,
}

impl GrowingKey {
    /// An empty key whose answers the scorer of that name can read.
    pub fn for_scorer(scorer: &str) -> Self {
        let form = if scorer == "math_dapo" { AnswerForm::AnswerLine } else { AnswerForm::Every };
        Self { table: Arc::default(), form }
    }

    /// Adds the answer to a prompt.
    pub fn learn(&self, prompt: &Prompt, codec: &TextCodec) {
        let ending = |answer: &str| -> Arc<[u32]> {
            let text = match self.form {
                AnswerForm::AnswerLine => format!("\nAnswer: {answer}"),
                AnswerForm::Every => format!("\n#### {answer}\nAnswer: \\boxed{{{answer}}}"),
            };
            codec.encode(&text).unwrap_or_default().into()
        };
        let wrong = format!("{}7", prompt.answer);
        let answer = Answer {
            right_ids: ending(&prompt.answer),
            wrong_ids: ending(&wrong),
            difficulty: prompt.difficulty,
        };
        self.table.write().insert(&prompt.ids, answer);
    }
}

impl AnswerKey for GrowingKey {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        self.table.read().answer(prompt_hash)
    }
}

/// A source whose prompts the simulated model learns the answers to.
struct Watched {
    source: Box<dyn PromptSource>,
    key: GrowingKey,
    codec: Arc<TextCodec>,
}

impl PromptSource for Watched {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.next()?;
        if let Some(prompt) = &prompt {
            self.key.learn(prompt, &self.codec);
        }
        Ok(prompt)
    }

    fn fetch(&mut self, row: u64, visit: u32) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.fetch(row, visit)?;
        if let Some(prompt) = &prompt {
            self.key.learn(prompt, &self.codec);
        }
        Ok(prompt)
    }

    fn position(&self) -> Option<Position> {
        self.source.position()
    }

    fn drawn(&self) -> Option<DrawCounts> {
        self.source.drawn()
    }
}

/// The wall clock, for what only people read.
#[expect(clippy::disallowed_methods, reason = "the start time that simulated servers show in their metrics")]
pub fn unix_seconds() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |elapsed| elapsed.as_secs())
}
