//! The keys of a recipe. Each struct is a table of the TOML file, and the comment of a field documents the
//! key.
//!
//! Keys without a sensible default (model, data, number of samples) are required, so a forgotten line is an
//! error.

mod input;
mod outcome;
mod policy;
mod report;
mod reward;
mod rollout;
mod tasks;

use std::path::PathBuf;

use rolldock_agent::AgentConfig;
use rolldock_dispatch::modes::OnSilence;
use rolldock_environment::EnvironmentConfig;
use rolldock_gateway::GatewaySettings;
use rolldock_listener::ConnectionLimits;
use serde::{Deserialize, Serialize};

use super::{LookedFor, OnShort};

pub use input::{Data, Files, Fleet, MaxLoads, Model, Simulated};
pub use outcome::{Consumer, Filter, OutsideGate, Queue};
pub use policy::Policy;
pub use report::Report;
pub(crate) use reward::key_of;
pub use reward::{OverlongShaping, Reward, RewardGuard};
pub use rollout::{Carry, Rollout, Timeouts, Validation, ValidationPriority};
pub(crate) use tasks::added_columns;
pub use tasks::{ColumnType, Task, Tasks};

/// The name of the partition with the rows of validations.
pub const VALIDATION: &str = "validation";

/// A complete, resolved recipe.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The model that the servers run, and its tokenizer.
    pub model: Model,
    /// Prompts and their answers.
    pub data: Data,
    /// The servers that generate.
    pub fleet: Fleet,
    /// How a step is collected.
    pub rollout: Rollout,
    /// Deadlines, in seconds.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Measurements of the policy on other prompts every few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// The environment that answers the model between the turns of a trajectory. If absent, a sample is one
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentConfig>,
    /// The agent that makes each sample in several calls of the model. Without it, a sample is one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentConfig>,
    /// The gateway that agents call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewaySettings>,
    /// How responses are scored.
    #[serde(default)]
    pub reward: Reward,
    /// Which groups are dropped because they teach nothing.
    #[serde(default)]
    pub filter: Filter,
    /// How far generation may run ahead of training.
    #[serde(default)]
    pub policy: Policy,
    /// The queue for accepted groups.
    #[serde(default)]
    pub queue: Queue,
    /// Length and seed of the run.
    #[serde(default)]
    pub run: Run,
    /// The metrics, the status and the figures of the run.
    #[serde(default)]
    pub report: Report,
    /// Named bounds on memory.
    #[serde(default)]
    pub limits: Limits,
    /// Settings for the trainer, which are passed on unchanged.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub trainer: toml::Table,
    /// The paths that were tried for files that do not exist.
    #[serde(skip)]
    pub looked_for: LookedFor,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Number of steps. If absent, the run continues until the data ends or the user stops it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Seed of the samples' draws and of choices between equal servers.
    pub seed: u64,
    /// What happens when a step ends short of its target.
    pub on_short: OnShort,
    /// What happens after `timeouts.silence` without progress.
    pub on_silence: OnSilence,
    /// The directory of the run's ledger, queue and recipe. If absent, it is `runs/<recipe>` in the current
    /// directory, with a number if that directory already has a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
}

impl Default for Run {
    fn default() -> Self {
        Self { steps: None, seed: 42, on_short: OnShort::Short, on_silence: OnSilence::Report, out: None }
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum bytes of one response body.
    pub body_bytes_max: u64,
    /// Maximum number of ended dispatches that are kept in memory.
    pub ledger_entries_max: usize,
    /// Maximum number of requests that wait for a permit.
    pub waiting_max: usize,
    /// Limits of the connections to each address of the run: `queue.listen`, `policy.listen`, `fleet.admin`,
    /// `gateway.listen` and `report.listen`.
    pub connections: ConnectionLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 256 << 20,
            ledger_entries_max: 65_536,
            waiting_max: 1 << 20,
            connections: ConnectionLimits::default(),
        }
    }
}
