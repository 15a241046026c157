//! How far generation may run ahead of training, and how servers get new weights.

use std::net::SocketAddr;
use std::path::PathBuf;

use rolldock_dispatch::modes::{Launch, OnStale};
use rolldock_policy::{PolicyMode, PolicyUpdate};
use serde::{Deserialize, Serialize};

use crate::{Consumer, Recipe};

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// `off`, `sync`, `one_step_off` or `fully_async`.
    pub mode: PolicyMode,
    /// Maximum staleness: the number of versions that a group may be behind when it is claimed. The default
    /// is 0 in `sync`, and 1 in the other modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u64>,
    /// Whether dispatches are limited to the number that the trainer can take before they become too old.
    pub pacing: bool,
    /// What happens to groups that become too old in spite of pacing.
    pub on_stale: OnStale,
    /// The version at which the trainer takes the groups of the first step.
    pub first_version: u64,
    /// Number of steps that the trainer trains on before it announces the next version.
    pub steps_per_version: u64,
    /// The address to listen on for announcements of versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The bearer token that the trainer must send. It is a secret: the resolved recipe does not contain it.
    #[serde(skip_serializing)]
    pub token: Option<String>,
    /// A directory in which the trainer announces versions by marker files, relative to the current
    /// directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<PathBuf>,
    /// How servers get new weights.
    pub update: PolicyUpdate,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: PolicyMode::Sync,
            max_staleness: None,
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
    /// The address for announcements of versions. It is `None` if the recipe has none or, in an unchecked
    /// recipe, an invalid one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.as_deref().and_then(|listen| listen.parse().ok())
    }

    /// The bound on staleness: `max_staleness` if it is set, and otherwise the default of the mode.
    pub fn staleness_max(&self) -> u64 {
        self.max_staleness.unwrap_or(u64::from(self.mode != PolicyMode::Sync))
    }
}

impl Recipe {
    /// Whether policy versions can be announced. If not, the version does not change and nothing becomes
    /// stale.
    pub fn is_announced_to(&self) -> bool {
        self.policy.mode != PolicyMode::Off && self.names_announcer()
    }

    /// The embedded consumer, if it announces versions.
    pub fn own_trainer(&self) -> Option<&Consumer> {
        self.queue.consumer.as_ref().filter(|consumer| consumer.announces)
    }

    /// Whether the recipe has a source of version announcements.
    pub(crate) fn names_announcer(&self) -> bool {
        self.policy.listen.is_some() || self.policy.watch.is_some() || self.own_trainer().is_some()
    }

    /// When prompts are sent out: `rollout.launch` if it is set, and otherwise the default of the mode. In
    /// `sync` and `one_step_off`, the servers get new weights between two steps, so surplus groups of a step
    /// are too old in the next step. The default of these two modes is therefore `on_demand`.
    pub fn launch(&self) -> Launch {
        let of_mode = match self.policy.mode {
            PolicyMode::Sync | PolicyMode::OneStepOff => Launch::OnDemand,
            PolicyMode::Off | PolicyMode::FullyAsync => Launch::Batch,
        };
        self.rollout.launch.unwrap_or(of_mode)
    }

    /// Writes the defaults that depend on the mode into the recipe.
    pub(crate) fn resolve_defaults_of_mode(&mut self) {
        self.rollout.launch = Some(self.launch());
        self.policy.max_staleness = Some(self.policy.staleness_max());
    }
}
