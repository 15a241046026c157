//! A gateway inside of a run: the run opens a trajectory for each sample, gives its base URL to an agent, and
//! takes the turns out when the agent has ended.
//!
//! There is no log. The agents of a run end with the run, so no agent could continue a trajectory after a
//! crash. The run's ledger decides what becomes of groups: after a crash, the run requeues the trajectory's
//! group like every other group that was in flight. The run takes the turns itself, so the gateway puts nothing into
//! the queue.
//! When a trajectory has been taken out, only a tombstone is kept, by which later calls are refused.
//!
//! # Invariants
//! - A [`Session`] that is dropped aborts its trajectory: its engine calls stop, their permits are returned,
//!   and later calls for turns are refused with 400 and `x-should-retry: false` while the tombstone exists.
//! - Agents cannot open or end trajectories, because the control calls are not served.

use std::sync::Arc;
use std::time::Duration;

use rolldock_loadbalancer::LoadBalancer;
use rolldock_scope::Scope;
use rolldock_trajectory::{Trajectory, TurnId};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use crate::CONNECT;
use crate::calls::{CallError, EngineCalls, Form};
use crate::config::{GatewayConfig, Limits, Sampling, Spec};
use crate::core::Core;
use crate::error::GatewayError;
use crate::keeping;
use crate::refusal::Refusal;
use crate::serve::{self, Served};
use crate::trajectories::{CallMeter, End, Live, One, Tombstone};
use crate::turns::Maker;

/// Maximum time to wait until all calls of an ended trajectory have ended.
const CALLS_END_MAX: Duration = Duration::from_secs(5);

/// A gateway inside of a run. Clones share it.
#[derive(Debug, Clone)]
pub struct Hosted {
    core: Arc<Core>,
    calls: EngineCalls,
    /// The URL at which agents reach the gateway, without a slash at its end.
    root: Arc<str>,
}

/// The properties of a new trajectory.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The identity, unique over the run. Request ids begin with it.
    pub uid: String,
    /// The seed from which the seeds of all turns follow.
    pub seed: u64,
    /// The sampling parameters.
    pub sampling: Sampling,
    /// The limits. `reward` is the time in which the agent may still give a reward after a limit has ended its
    /// calls.
    pub limits: Limits,
    /// The meter of the trajectory's calls; absent if they are not metered.
    pub meter: Option<Arc<dyn CallMeter>>,
}

/// A trajectory that was taken out.
#[derive(Debug)]
pub struct Taken {
    /// The turns.
    pub trajectory: Trajectory,
    /// Why the trajectory took no more calls; `Completed` if no limit ended it.
    pub end: End,
    /// The reward, if the agent may give one and gave it.
    pub reward: Option<f32>,
    /// The number of tokens that engines drew for the trajectory, including tokens that became no turn.
    pub drawn_tokens: u64,
    /// The server of the last turn; empty without a turn.
    pub server: String,
    /// The turns whose prompts were encoded by a server. Such a prompt does not necessarily continue the
    /// sampled tokens.
    pub reencoded: Vec<TurnId>,
}

/// A trajectory that was not taken out. Dropping it aborts the trajectory.
#[derive(Debug)]
pub struct Session {
    core: Arc<Core>,
    one: Arc<One>,
    root: Arc<str>,
    is_taken: bool,
}

impl Hosted {
    /// Serves agents at `listener` until `scope` ends. `config.dir` and the settings for the queue are not
    /// used.
    ///
    /// # Errors
    /// [`GatewayError`]: the configuration is wrong, the HTTP client cannot be made, or the listener has no address.
    pub fn open(
        config: GatewayConfig,
        balancer: LoadBalancer,
        api_key: Option<Arc<str>>,
        listener: TcpListener,
        scope: &Scope,
    ) -> Result<Self, GatewayError> {
        if let Some(fault) = config.sampling.fault().or_else(|| config.limits.fault()) {
            return Err(GatewayError::Config(fault));
        }
        let calls = EngineCalls::new(CONNECT, api_key, config.vocab_size)
            .map_err(|error| GatewayError::Client(error.to_string()))?;
        let root = match &config.advertise {
            Some(advertised) => advertised.trim_end_matches('/').to_owned(),
            None => {
                let no_address =
                    |error| GatewayError::Config(format!("the listener has no address: {error}"));
                let bound = listener.local_addr().map_err(no_address)?;
                let host = if bound.ip().is_unspecified() { "127.0.0.1".to_owned() } else { host(bound) };
                format!("http://{host}:{}", bound.port())
            }
        };
        let maker = Arc::new(Maker::new(calls.clone(), balancer, config.clone()));
        let core = Core::in_memory(config, scope.clone());
        let end = scope.token().clone();
        scope.spawn_detached("trajectory limits", keeping::watch(Arc::clone(&core), end.clone()));
        let served = Served { core: Arc::clone(&core), maker, metrics: None, has_control: false };
        scope.spawn_detached("gateway", serve::serve(served, listener, end));
        Ok(Self { core, calls, root: root.into() })
    }

    /// The URL at which agents reach the gateway.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The number of trajectories that were neither taken out nor aborted.
    pub fn trajectories(&self) -> usize {
        self.core.book.counts().0
    }

    /// Checks that the server at `url` can render chat requests to token ids. Cancel-safe.
    ///
    /// # Errors
    /// [`GatewayError::Engine`]: the server lists no model, lacks the endpoint, or does not answer.
    pub async fn check(&self, url: &str) -> Result<(), GatewayError> {
        let lacks = |error: CallError| {
            GatewayError::Engine(match error {
                CallError::Missing { .. } => format!(
                    "server={url} lacks the endpoints for agents (expected vLLM with --enable-scale-out): {error}"
                ),
                error => error.to_string(),
            })
        };
        let unnamed = |error: CallError| {
            GatewayError::Engine(format!("expected server={url} to list its model at /v1/models: {error}"))
        };
        let model = match &self.core.config.model {
            Some(model) => model.clone(),
            None => self.calls.model(url).await.map_err(unnamed)?.name,
        };
        let messages = json!([{ "role": "user", "content": "1 + 1" }]);
        let request = json!({ "model": model, "messages": messages, "max_tokens": 1 });
        self.calls.render(url, Form::Chat, &request).await.map(drop).map_err(lacks)
    }

    /// Opens a trajectory.
    ///
    /// # Errors
    /// [`GatewayError::Opening`]: the gateway has its maximum number of trajectories, or `uid` is in use.
    /// [`GatewayError::Config`]: the limits or the sampling parameters of the trajectory are wrong.
    pub fn begin(&self, opening: Opening) -> Result<Session, GatewayError> {
        let Opening { uid, seed, sampling, limits, meter } = opening;
        if let Some(fault) = sampling.fault().or_else(|| limits.fault()) {
            return Err(GatewayError::Config(fault));
        }
        let config = &self.core.config;
        let spec = Spec {
            capability: config.entropy.hex(),
            opened_s: (config.unix_seconds)(),
            group: uid.clone(),
            group_size: 1,
            limits,
            sampling,
            seed,
            cache_salt: None,
            prompt: Value::Null,
            metadata: Map::new(),
            uid,
        };
        let live = Live::new(&spec, config.history, Duration::ZERO);
        let one = self.core.book.add(None, spec, live);
        let one = one.map_err(|refusal: Refusal| GatewayError::Opening(refusal.to_string()))?;
        if let Some(meter) = meter {
            one.report_to(meter);
        }
        metrics::counter!("rolldock_gateway_trajectories_opened_total").increment(1);
        let (core, root) = (Arc::clone(&self.core), Arc::clone(&self.root));
        self.show_counts();
        Ok(Session { core, one, root, is_taken: false })
    }

    fn show_counts(&self) {
        metrics::gauge!("rolldock_gateway_trajectories").set(self.trajectories() as f64);
    }
}

/// The address of a socket as the host of a URL.
fn host(bound: std::net::SocketAddr) -> String {
    match bound {
        std::net::SocketAddr::V4(bound) => bound.ip().to_string(),
        std::net::SocketAddr::V6(bound) => format!("[{}]", bound.ip()),
    }
}

impl Session {
    /// The secret that gives access to this trajectory alone. Clients can send it as an API key.
    pub fn capability(&self) -> &str {
        &self.one.spec.capability
    }

    /// The base URL for OpenAI's clients.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.anthropic_base_url())
    }

    /// The base URL for Anthropic's clients.
    pub fn anthropic_base_url(&self) -> String {
        format!("{}/t/{}", self.root, self.capability())
    }

    /// The URL to which the agent posts its own reward.
    pub fn reward_url(&self) -> String {
        format!("{}/reward", self.anthropic_base_url())
    }

    /// The number of tokens that engines drew so far, including tokens that became no turn.
    pub fn drawn_tokens(&self) -> u64 {
        self.one.drawn()
    }

    /// The limit that has ended the trajectory, if one has.
    pub fn ended_by(&self) -> Option<End> {
        self.one.live.lock().end
    }

    /// Ends the trajectory, waits a few seconds at most until its calls have ended, and takes it out.
    ///
    /// Cancel-safe: a dropped call aborts the trajectory.
    pub async fn take(mut self) -> Taken {
        self.leave(End::Completed);
        // Calls end at once, except a call whose client does not read the answer.
        let _ = tokio::time::timeout(CALLS_END_MAX, self.one.until_idle()).await;
        self.is_taken = true;
        let mut live = self.one.live.lock();
        let empty = Trajectory::new(self.one.spec.uid.as_str(), self.core.config.history);
        Taken {
            server: live.drawn_by().last().to_owned(),
            reencoded: live.drawn_by().reencoded(),
            end: live.end.unwrap_or(End::Completed),
            reward: live.reward.as_ref().map(|reward| reward.reward),
            drawn_tokens: self.one.drawn(),
            trajectory: std::mem::replace(&mut live.forest, empty),
        }
    }

    /// Refuses calls from now on, and ends the calls in flight.
    fn leave(&self, end: End) {
        let tombstone = {
            let live = self.one.live.lock();
            Tombstone {
                uid: self.one.spec.uid.clone(),
                capability: self.one.spec.capability.clone(),
                group: self.one.spec.group.clone(),
                end: live.end.unwrap_or(end),
                reward: None,
                rows: 0,
                refused: None,
                turns: live.turns(),
            }
        };
        self.core.book.leave(&self.one, tombstone);
        // The trajectory already has an end if a limit has ended it.
        let _ = self.core.end(&self.one, end);
        metrics::gauge!("rolldock_gateway_trajectories").set(self.core.book.counts().0 as f64);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_taken {
            self.leave(End::Cancelled);
        }
    }
}
