//! The recipe's settings for policy versions: how far generation runs ahead of training, and how servers get
//! new weights.

use std::fmt;

use rolldock_loadbalancer::update::Deadlines;
use serde::{Deserialize, Serialize};

/// How far generation may run ahead of training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyMode {
    /// There is no trainer. The version never changes.
    Off,
    /// Generation never runs ahead: every group is generated with the newest version that the trainer has
    /// announced.
    #[default]
    Sync,
    /// Generation runs one step ahead.
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
    /// The trainer updates the servers itself.
    #[default]
    None,
    /// Servers load the weights from a path.
    Reload,
    /// Servers receive the weights from the trainer.
    Transfer,
    /// An external program updates the servers.
    Command,
    /// An HTTP service updates the servers.
    Http,
}

impl fmt::Display for UpdateMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// What happens to running requests while the weights change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdatePause {
    /// Requests are suspended, and continue with the new weights.
    #[default]
    Keep,
    /// Requests end with the tokens generated so far.
    Abort,
    /// The update waits until requests have ended.
    Wait,
    /// The servers are not paused.
    None,
}

impl fmt::Display for UpdatePause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// How servers get the weights of a new version.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyUpdate {
    /// `none`, `reload`, `transfer`, `command` or `http`.
    pub method: UpdateMethod,
    /// `reload`: the method that is called through `/collective_rpc`.
    pub rpc: String,
    /// `command`: the program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// `http`: the URL that the announcement is posted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What happens to running requests during an update: `keep`, `abort`, `wait` or `none`.
    pub pause: UpdatePause,
    /// Whether servers drop their cached prefixes, which were computed with the old weights.
    pub reset_prefix_cache: bool,
    /// Whether a server with new weights has to generate a few tokens before permits are granted on it.
    pub check_generation: bool,
    /// Whether each version has a separate prefix cache, by a salt in its requests. If so, no cache is reset.
    pub cache_salt: bool,
    /// Maximum time of each phase over all servers, in seconds.
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
            check_generation: true,
            cache_salt: false,
            timeouts: Deadlines::default(),
        }
    }
}

impl PolicyUpdate {
    /// Whether prefix caches are reset. They are not reset if each version has its own cache.
    pub fn resets_cache(&self) -> bool {
        self.reset_prefix_cache && !self.cache_salt
    }
}
