//! What a recipe says of policy versions: when a new one may reach the servers, and how it gets there.

use std::fmt;

use rolldock_loadbalancer::update::Deadlines;
use serde::{Deserialize, Serialize};

/// How far generation runs ahead of training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyMode {
    /// Not at all.
    #[default]
    Sync,
    /// One step.
    OneStepOff,
    /// Generation runs ahead as far as the staleness bound allows.
    FullyAsync,
}

impl fmt::Display for PolicyMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// How servers get the weights of a new version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMethod {
    /// The trainer does it itself.
    #[default]
    None,
    /// They load them from a path.
    Reload,
    /// They receive them from the trainer.
    Transfer,
    /// A program does it.
    Command,
    /// A service does it.
    Http,
}

impl fmt::Display for UpdateMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// What becomes of running requests while the weights change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdatePause {
    /// They are suspended, and continue with the new weights.
    #[default]
    Keep,
    /// They end with what they have.
    Abort,
    /// They are finished first.
    Wait,
    /// The servers are not paused.
    None,
}

impl fmt::Display for UpdatePause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// How a new version is brought to the servers.
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
    /// `http`: the URL that the announcement is posted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What becomes of running requests meanwhile: `keep`, `abort`, `wait` or `none`.
    pub pause: UpdatePause,
    /// Servers forget cached prefixes, which belong to the weights that they were computed with.
    pub reset_prefix_cache: bool,
    /// Instead of that, requests of each version have a prompt cache of their own.
    pub cache_salt: bool,
    /// The longest that each phase may take over all servers, in seconds.
    pub timeouts: Deadlines,
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
            timeouts: Deadlines::default(),
        }
    }
}

impl PolicyUpdate {
    /// Whether caches are reset: not where each version has its own.
    pub fn resets_cache(&self) -> bool {
        self.reset_prefix_cache && !self.cache_salt
    }
}
