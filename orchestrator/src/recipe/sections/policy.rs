//! How far generation may run ahead of training, and how new weights come into the run.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::recipe::{OnStale, PolicyMode, Recipe, UpdateMethod, UpdatePause};

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// `sync`, `one_step_off` or `fully_async`.
    pub mode: PolicyMode,
    /// Versions that a group may be behind when it counts.
    pub max_staleness: u64,
    /// Dispatches no more than the trainer can take within the bound, so that nothing becomes too old.
    pub pacing: bool,
    /// What becomes of work that is too old all the same.
    pub on_stale: OnStale,
    /// Address at which the trainer announces versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// What it has to send as a bearer token. A secret: read, but never written with the resolved recipe.
    #[serde(skip_serializing)]
    pub token: Option<String>,
    /// A directory in which the trainer announces versions by marker files; relative to the current directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<PathBuf>,
    /// How servers get the weights.
    pub update: PolicyUpdate,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: PolicyMode::Sync,
            max_staleness: 1,
            pacing: true,
            on_stale: OnStale::Requeue,
            listen: None,
            token: None,
            watch: None,
            update: PolicyUpdate::default(),
        }
    }
}

impl Policy {
    /// Where versions are announced, once the recipe has been checked.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.as_deref().and_then(|listen| listen.parse().ok())
    }
}

impl Recipe {
    /// Whether anybody can announce a policy version. Where nobody can, the version stays 0 and nothing becomes stale.
    pub fn is_announced_to(&self) -> bool {
        let consumer_announces = self.queue.consumer.as_ref().is_some_and(|consumer| consumer.announces);
        self.policy.listen.is_some() || self.policy.watch.is_some() || consumer_announces
    }
}

/// `[policy.update]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyUpdate {
    /// `none`, `reload`, `transfer`, `command` or `http`.
    pub method: UpdateMethod,
    /// `reload`: the method that `/collective_rpc` is asked for.
    pub rpc: String,
    /// `command`: the program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// `http`: whom to post the announcement to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What becomes of running requests meanwhile: `keep`, `abort`, `wait` or `none`.
    pub pause: UpdatePause,
    /// Servers forget cached prefixes, which belong to the weights that they were computed with.
    pub reset_prefix_cache: bool,
    /// Instead of that, requests of each version have a prompt cache of their own.
    pub cache_salt: bool,
    /// Deadlines of one server's phases.
    pub timeouts: UpdateTimeouts,
}

impl Default for PolicyUpdate {
    fn default() -> Self {
        Self {
            method: UpdateMethod::None,
            rpc: "reload_weights".to_owned(),
            command: Vec::new(),
            url: None,
            pause: UpdatePause::Keep,
            reset_prefix_cache: true,
            cache_salt: false,
            timeouts: UpdateTimeouts::default(),
        }
    }
}

impl PolicyUpdate {
    /// Whether caches are reset: not where each version has its own.
    pub fn resets_cache(&self) -> bool {
        self.reset_prefix_cache && !self.cache_salt
    }
}

/// `[policy.update.timeouts]`, all in seconds.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateTimeouts {
    /// Pausing; with `pause = "wait"` it lasts as long as what runs.
    pub pause: f64,
    /// Getting the weights.
    pub update: f64,
    /// Forgetting cached prefixes.
    pub reset: f64,
    /// Telling the server what its weights are called.
    pub label: f64,
    /// Letting it go on.
    pub resume: f64,
}

impl Default for UpdateTimeouts {
    fn default() -> Self {
        Self { pause: 60.0, update: 600.0, reset: 30.0, label: 10.0, resume: 30.0 }
    }
}
