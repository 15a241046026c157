//! What can be typed about a fleet.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rolldock_loadbalancer::{Policy, Probe};

use super::examples;
use super::words::{POLICIES, PROBES, one_of};

/// `rolldock proxy`
#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// A server's base URL (repeatable)
    #[arg(long = "endpoint", value_name = "URL", required_unless_present = "fleet_file")]
    pub endpoints: Vec<String>,
    /// A file that lists the servers, read again every second: endpoints = ["http://HOST:PORT", ...]
    #[arg(long, value_name = "FILE")]
    pub fleet_file: Option<PathBuf>,
    /// Address for clients
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address for operators: `rolldock fleet`, and /metrics
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// What operators have to send as a bearer token
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
    /// Which server gets the next request
    #[arg(long, value_parser = one_of::<Policy>(POLICIES), default_value = "group_affinity")]
    pub policy: Policy,
    /// Samples running on a server at a time: a number, or "auto"
    #[arg(long, value_name = "N|auto", default_value = "256")]
    pub max_loads: String,
    /// What the servers are
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineDialect,
    /// How a server has to show that it lives
    #[arg(long, value_parser = one_of::<Probe>(PROBES), default_value = "health")]
    pub probe: Probe,
    /// Sent to servers with health probes and control calls; clients' requests keep their own
    #[arg(long, value_name = "KEY", env = "ROLLDOCK_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// A server that owes answers and generates nothing for so many seconds is dead, where its tokens are
    /// counted
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub stall: f64,
    /// A request takes no longer in all; its client is told 504, or the answer is cut off, and the server
    /// stops
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
    pub request_timeout: f64,
    /// An answer that has begun and of which nothing comes for so long is cut off, and the server stops
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub idle_timeout: f64,
    /// Requests that may wait for a server with room; one more is told 503
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub waiting_max: usize,
    /// Bytes of requests that may be held until servers have them; one more request is told 503
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub buffered_bytes_max: usize,
    /// Threads that pass requests on [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Seeds the choice between servers that are equal
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// What servers speak besides the OpenAI protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineDialect {
    /// vLLM: health, load, aborts by id
    #[default]
    Vllm,
    /// Nothing
    Openai,
}

/// `rolldock fleet`
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// The admin address of a run or a proxy
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7500", global = true)]
    pub admin: String,
    /// Its token
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_ADMIN_TOKEN", hide_env_values = true, global = true)]
    pub token: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// What to do with a fleet.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// A server joins
    #[command(after_help = examples::FLEET_ADD)]
    Add {
        /// Its base URL
        url: String,
        /// Its name [default: host and port]
        #[arg(long)]
        name: Option<String>,
        /// Samples that may run on it at a time [default: as on the others]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        capacity: Option<u32>,
    },
    /// A server gets no more requests; waits until it has none
    #[command(after_help = examples::FLEET_DRAIN)]
    Drain {
        /// Its name
        name: String,
        /// Waits no longer
        #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
        wait: f64,
    },
    /// A server leaves at once: what it has begins anew elsewhere
    #[command(after_help = examples::FLEET_REMOVE)]
    Remove {
        /// Its name
        name: String,
    },
    /// A server gets no requests until it is resumed
    #[command(after_help = examples::FLEET_PAUSE)]
    Pause {
        /// Its name
        name: String,
    },
    /// A server gets requests again
    #[command(after_help = examples::FLEET_RESUME)]
    Resume {
        /// Its name
        name: String,
    },
    /// Show the servers
    #[command(after_help = examples::FLEET_LIST)]
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Says so again whenever something changes
    #[command(after_help = examples::FLEET_WATCH)]
    Watch,
}
