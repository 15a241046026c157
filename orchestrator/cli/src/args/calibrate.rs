//! The arguments of `rolldock calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::urls::base_url;

/// `rolldock calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// The base URL of a vLLM server that has no other requests: http://HOST:PORT
    #[arg(value_parser = base_url)]
    pub endpoint: String,
    /// The time of the measurement. More time gives more rounds and longer batches
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub seconds: f64,
    /// The largest number of requests that are sent together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(2..=4096)
    )]
    pub max_batch: u32,
    /// The file of the result
    #[arg(long, value_name = "FILE", default_value = "engine.toml")]
    pub output: PathBuf,
    /// The server's bearer token
    #[arg(long, value_name = "KEY", env = "ROLLDOCK_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}
