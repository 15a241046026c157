//! The arguments of `rolldock simulate`.

use std::path::PathBuf;

use clap::Args;

use super::numbers::{real, whole};

/// `rolldock simulate`
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The recipe (TOML). Simulated servers of the same number replace its servers. Not needed with --replay,
    /// because the run has its own recipe
    #[arg(required_unless_present = "replay")]
    pub recipe: Option<PathBuf>,
    /// Simulates the prompts of the newest steps of the run in this directory, with the lengths and the
    /// results of their samples
    #[arg(long, value_name = "DIR", conflicts_with = "prompt_tokens")]
    pub replay: Option<PathBuf>,
    /// Number of servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub servers: Option<u32>,
    /// Relative speeds of the servers, for example 1,1,0.6,0.4; a short list is repeated
    #[arg(long, value_name = "SPEED,...", value_delimiter = ',', value_parser = real(1e-3..=1e3))]
    pub speeds: Vec<f64>,
    /// A file with the constants of the servers' engine, which `rolldock calibrate` has written
    #[arg(long, value_name = "FILE")]
    pub engine: Option<PathBuf>,
    /// Overrides one key, for example rollout.early_stop=first (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Simulates each of these values; several sweeps make all combinations. fleet.servers stands for
    /// fleet.simulated.servers (repeatable)
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub sweep: Vec<String>,
    /// Number of steps [default: 20, or the recorded steps of --replay]
    #[arg(long, value_name = "N", value_parser = whole(1..=10_000_u64))]
    pub steps: Option<u64>,
    /// The time that the trainer needs for a step, unless policy.mode is off [default: none]
    #[arg(long, value_name = "SECONDS")]
    pub training_seconds: Option<f64>,
    /// Simulates prompts of this many tokens, without the data and the tokenizer of the recipe
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..1_000_000))]
    pub prompt_tokens: Option<u32>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Writes pictures into this folder: pareto.svg, and requests-N.svg with the last step of setting N by
    /// server
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}
