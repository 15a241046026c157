//! The recipe's keys. Each struct is a table of the TOML file; each field's comment is its documentation.
//!
//! Defaults are the published run's values where it has one. Keys without a sensible default (which model,
//! which data, how many samples) are required, so that a forgotten line is an error and not a silent choice.

mod input;
mod outcome;
mod policy;
mod reward;
mod rollout;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::OnShort;
use crate::rollout::OnSilence;

pub use input::{Data, Files, Fleet, MaxLoads, Model, Simulated};
pub use outcome::{Consumer, Filter, OutsideGate, Queue};
pub use policy::Policy;
pub(in crate::recipe) use reward::key_of;
pub use reward::{OverlongShaping, Reward, RewardGuard};
pub use rollout::{Carry, Rollout, Timeouts, Validation, ValidationPriority};

/// A whole recipe, resolved.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Which model the servers run, and how text becomes tokens.
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
    /// Measures the policy on other prompts every few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// What a response is worth.
    #[serde(default)]
    pub reward: Reward,
    /// Which groups teach nothing.
    #[serde(default)]
    pub filter: Filter,
    /// How far generation may run ahead of training.
    #[serde(default)]
    pub policy: Policy,
    /// Where accepted groups go.
    #[serde(default)]
    pub queue: Queue,
    /// Length and seed of the run.
    #[serde(default)]
    pub run: Run,
    /// Named bounds on memory.
    #[serde(default)]
    pub limits: Limits,
    /// Passed through to the trainer untouched.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub trainer: toml::Table,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Steps; until the data or the user ends it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Seed of every sample's draw and of every tie between servers.
    pub seed: u64,
    /// What a step short of its target does to the run.
    pub on_short: OnShort,
    /// What happens when nothing has happened for `timeouts.silence`.
    pub on_silence: OnSilence,
    /// Where the run keeps its queue and report; `runs/<recipe>` beside the current directory if absent.
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
    /// Bytes of one response body.
    pub body_bytes_max: u64,
    /// Ended dispatches that the ledger keeps in memory.
    pub ledger_entries_max: usize,
    /// Requests that wait for a permit.
    pub waiting_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: 256 << 20, ledger_entries_max: 65_536, waiting_max: 1 << 20 }
    }
}
