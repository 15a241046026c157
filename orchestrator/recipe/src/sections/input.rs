//! The inputs of a run: the model, the data, and the fleet that generates.

use std::path::PathBuf;

use rolldock_data::{Columns, Duplicates, OverlongPrompts};
use rolldock_dispatch::history::HistoryConfig;
use rolldock_loadbalancer::{AdaptiveConfig, Policy, Probe};
use rolldock_simengine::EngineModel;
use serde::{Deserialize, Serialize};

use crate::Transport;

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
    /// One .parquet or .jsonl file, or a list of files.
    pub train: Files,
    /// One file for `[validation]`, or a list of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Files>,
    /// The columns that are read. If absent, the schemas of DAPO, GSM8K and MATH are recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Maximum number of tokens of a prompt, including the chat template.
    #[serde(default = "default_prompt_length")]
    pub max_prompt_length: usize,
    /// What happens to longer prompts.
    #[serde(default)]
    pub overlong_prompts: OverlongPrompts,
    /// What happens to rows with the prompt and the answer of an earlier row.
    #[serde(default)]
    pub duplicates: Duplicates,
    /// Whether each epoch has a new order, which `seed` determines.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Seed of the order. It is separate from `run.seed`: samples can be drawn differently in the same order
    /// of the data.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Number of passes over the data; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// How later epochs use the results of the run's prompts. If absent, the run keeps no results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryConfig>,
}

/// One file or several.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a file name or a list of file names")]
pub enum Files {
    /// One file.
    One(PathBuf),
    /// Several files, which are read in order.
    Several(Vec<PathBuf>),
}

impl Files {
    /// All files, in order.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }

    pub(crate) fn paths_mut(&mut self) -> &mut [PathBuf] {
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
    /// Number of servers that have to answer before the run starts. The other servers join when they answer.
    #[serde(default = "default_servers_min")]
    pub servers_min: usize,
    /// Maximum number of samples that run on one server at a time: its permits.
    #[serde(default)]
    pub max_loads_per_server: MaxLoads,
    /// How the server of the next permit is chosen.
    #[serde(default)]
    pub policy: Policy,
    /// The bearer token for the servers. It is a secret: the resolved recipe does not contain it.
    #[serde(default, skip_serializing)]
    pub api_key: Option<String>,
    /// How the number of permits of a server is measured if `max_loads_per_server` is "auto".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveConfig>,
    /// Maximum number of samples that run on all servers together. If absent, only the servers' own limits
    /// apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loads_total: Option<u32>,
    /// Maximum sum of the tokens that the samples on one server are expected to need; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_server: Option<u32>,
    /// How the health of a server is probed.
    #[serde(default)]
    pub probe: Probe,
    /// A file that lists the servers of the fleet. Its path is relative to the recipe. It is read again
    /// during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The address to listen on for `rolldock fleet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// The bearer token that `rolldock fleet` must send. It is a secret: the resolved recipe does not contain
    /// it.
    #[serde(default, skip_serializing)]
    pub admin_token: Option<String>,
    /// Seconds between health probes.
    #[serde(default = "default_probe_interval")]
    pub probe_interval: f64,
    /// The simulated fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// `fleet.max_loads_per_server`: a number, or "auto".
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a number of samples, or \"auto\"")]
pub enum MaxLoads {
    /// A fixed number of samples.
    Fixed(u32),
    /// A name; only "auto" is valid.
    Named(String),
}

impl Default for MaxLoads {
    fn default() -> Self {
        Self::Named("auto".to_owned())
    }
}

/// `[fleet.simulated]`: simulated servers in this process.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Simulated {
    /// Number of servers.
    pub servers: usize,
    /// Seed of lengths and answers.
    pub seed: u64,
    /// Real seconds that a simulated second takes.
    pub time_scale: f64,
    /// Maximum number of sequences that a server decodes at the same time.
    pub max_num_seqs: u32,
    /// Relative speed of each server, in order; servers beyond the list run at 1.0.
    pub speeds: Vec<f64>,
    /// Mean response length, in tokens.
    pub mean_response_length: f64,
    /// `in_process`, or `http` over loopback sockets.
    pub transport: Transport,
    /// The constants of the servers' engine, as `rolldock calibrate` measures them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineModel>,
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
            engine: None,
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

fn default_servers_min() -> usize {
    1
}

fn default_probe_interval() -> f64 {
    1.0
}
