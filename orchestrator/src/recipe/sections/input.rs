//! What goes in: the model, the data, and the fleet that generates.

use std::path::PathBuf;

use rolldock_loadbalancer::{AdaptiveConfig, Policy, Probe};
use serde::{Deserialize, Serialize};

use crate::data::{Columns, Duplicates, OverlongPrompts};
use crate::recipe::Transport;

/// `[model]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The model's name on the servers.
    pub name: String,
    /// A directory, a tokenizer.json, a hub id in the local cache, or "builtin".
    pub tokenizer: String,
    /// "auto", "none", or a file.
    #[serde(default = "auto")]
    pub chat_template: String,
}

/// `[data]`
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// .parquet or .jsonl, one or a list.
    pub train: Files,
    /// The files of `[validation]`, one or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Files>,
    /// Where a row keeps what; guessed for the DAPO, GSM8K and MATH schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Tokens of a prompt, chat template included.
    #[serde(default = "default_prompt_length")]
    pub max_prompt_length: usize,
    /// What happens to longer ones.
    #[serde(default)]
    pub overlong_prompts: OverlongPrompts,
    /// What happens to rows with the same prompt and answer.
    #[serde(default)]
    pub duplicates: Duplicates,
    /// A new order every epoch, from `seed`.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Seed of the order, apart from `run.seed`: the same data order under other draws.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Passes over the data; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
}

/// One file or several.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a file name or a list of file names")]
pub enum Files {
    /// One.
    One(PathBuf),
    /// Read one after the other.
    Several(Vec<PathBuf>),
}

impl Files {
    /// All of them, in order.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }

    pub(in crate::recipe) fn paths_mut(&mut self) -> &mut [PathBuf] {
        match self {
            Self::One(path) => std::slice::from_mut(path),
            Self::Several(paths) => paths,
        }
    }
}

/// `[fleet]`: `endpoints` or `simulated`, not both.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Base URLs of OpenAI-compatible servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Samples running on one server at a time: its permits.
    #[serde(default)]
    pub max_loads_per_server: MaxLoads,
    /// Which server the next permit is on.
    #[serde(default)]
    pub policy: Policy,
    /// Sent as a bearer token. A secret: read, but never written with the resolved recipe.
    #[serde(default, skip_serializing)]
    pub api_key: Option<String>,
    /// How the number is found where `max_loads_per_server` is "auto".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveConfig>,
    /// Samples running on all servers together; no bound but theirs if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loads_total: Option<u32>,
    /// Tokens that the samples on one server are expected to take together; no bound if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_server: Option<u32>,
    /// How a server has to show that it lives.
    #[serde(default)]
    pub probe: Probe,
    /// A file that lists the servers of the fleet, read again while the run runs; relative to the recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Address for `rolldock fleet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// What `rolldock fleet` has to send. A secret: read, but never written with the resolved recipe.
    #[serde(default, skip_serializing)]
    pub admin_token: Option<String>,
    /// Seconds between health probes.
    #[serde(default = "default_probe_interval")]
    pub probe_interval: f64,
    /// The embedded fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// `fleet.max_loads_per_server`: a number, or "auto".
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a number of samples, or \"auto\"")]
pub enum MaxLoads {
    /// So many.
    Fixed(u32),
    /// "auto".
    Named(String),
}

impl Default for MaxLoads {
    fn default() -> Self {
        Self::Fixed(256)
    }
}

/// `[fleet.simulated]`: servers of our own that pretend, in this process.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Simulated {
    /// How many.
    pub servers: usize,
    /// Seed of lengths and answers.
    pub seed: u64,
    /// Real seconds that a simulated second takes.
    pub time_scale: f64,
    /// Sequences that a server decodes at once.
    pub max_num_seqs: u32,
    /// Relative speed of each server, in order; servers beyond the list run at 1.0.
    pub speeds: Vec<f64>,
    /// Mean response length, tokens.
    pub mean_response_length: f64,
    /// `in_process`, or `http` over loopback sockets.
    pub transport: Transport,
}

impl Default for Simulated {
    fn default() -> Self {
        Self {
            servers: 4,
            seed: 1,
            time_scale: 1.0,
            max_num_seqs: 256,
            speeds: Vec::new(),
            mean_response_length: 400.0,
            transport: Transport::InProcess,
        }
    }
}

fn auto() -> String {
    "auto".to_owned()
}

fn yes() -> bool {
    true
}

fn default_prompt_length() -> usize {
    1024
}

fn default_seed() -> u64 {
    42
}

fn default_probe_interval() -> f64 {
    1.0
}
