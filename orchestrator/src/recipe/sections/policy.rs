//! How far generation may run ahead of training, and how new weights come into the run.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::{PolicyMode, PolicyUpdate};
use crate::recipe::Recipe;
use crate::rollout::OnStale;

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
    /// The version at which the trainer takes the first step.
    pub first_version: u64,
    /// Steps that the trainer trains on before it announces the next version.
    pub steps_per_version: u64,
    /// Address at which the trainer announces versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// What it has to send as a bearer token. A secret: read, but never written with the resolved recipe.
    #[serde(skip_serializing)]
    pub token: Option<String>,
    /// A directory in which the trainer announces versions by marker files; relative to the current
    /// directory.
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
            first_version: 0,
            steps_per_version: 1,
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
    /// Whether policy versions can be announced. Where they cannot, the version stays 0 and nothing becomes
    /// stale.
    pub fn is_announced_to(&self) -> bool {
        let consumer_announces = self.queue.consumer.as_ref().is_some_and(|consumer| consumer.announces);
        self.policy.listen.is_some() || self.policy.watch.is_some() || consumer_announces
    }
}
