//! The arguments of `rolldock proxy` and `rolldock fleet`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rolldock_loadbalancer::{Policy, Probe};

use super::connections::ConnectionArgs;
use super::examples;
use super::numbers::{real, whole};
use super::words::{POLICIES, PROBES, one_of};
use crate::usage::SECONDS_MAX;

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
    /// Bearer token that operators have to send
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
    /// Which server gets the next request
    #[arg(long, value_parser = one_of::<Policy>(POLICIES), default_value = "group_affinity")]
    pub policy: Policy,
    /// Samples running on a server at a time: a number, or "auto"
    #[arg(long, value_name = "N|auto", default_value = "256")]
    pub max_loads: String,
    /// The kind of the servers' engine
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineDialect,
    /// How the health of a server is probed
    #[arg(long, value_parser = one_of::<Probe>(PROBES), default_value = "health")]
    pub probe: Probe,
    /// Bearer token of health probes and control calls; clients' requests keep their own tokens
    #[arg(long, value_name = "KEY", env = "ROLLDOCK_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// A server with open requests counts as dead when it generates no token for this time, if its tokens are
    /// counted
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub stall: f64,
    /// Maximum time of a request; after it the client gets 504 or its answer is cut off, and the server stops
    /// generating
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
    pub request_timeout: f64,
    /// Maximum pause within an answer; after it the answer is cut off, and the server stops generating
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub idle_timeout: f64,
    /// Maximum number of requests that wait for a server with room; further requests get 503
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = whole(0..=usize::MAX))]
    pub waiting_max: usize,
    /// Maximum number of bytes of requests that servers do not have yet; further requests get 503
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = whole(0..=usize::MAX))]
    pub buffered_bytes_max: usize,
    /// Clients' connections
    #[command(flatten)]
    pub connections: ConnectionArgs,
    /// Threads that forward requests [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole(1..=usize::MAX))]
    pub threads: Option<usize>,
    /// Seeds the choice between servers that are equal
    #[arg(long, default_value_t = 0, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
}

/// The protocol of servers besides the OpenAI protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineDialect {
    /// vLLM: health, load, aborts by id
    #[default]
    Vllm,
    /// Only the OpenAI protocol
    Openai,
}

/// `rolldock fleet`
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// The admin address of a run or a proxy
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7500", global = true)]
    pub admin: String,
    /// The bearer token of that address
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_ADMIN_TOKEN", hide_env_values = true, global = true)]
    pub token: Option<String>,
    /// The command.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// The commands of `rolldock fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Add a server
    #[command(after_help = examples::FLEET_ADD)]
    Add {
        /// Its base URL
        url: String,
        /// Its name [default: host and port]
        #[arg(long)]
        name: Option<String>,
        /// Samples that may run on it at a time [default: as on the other servers]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        capacity: Option<u32>,
    },
    /// Send no more requests to a server, and wait until it has none
    #[command(after_help = examples::FLEET_DRAIN)]
    Drain {
        /// Its name
        name: String,
        /// Longest time to wait
        #[arg(long, value_name = "SECONDS", default_value_t = 3600.0, value_parser = real(0.0..=SECONDS_MAX))]
        wait: f64,
    },
    /// Remove a server immediately; its requests start again on other servers
    #[command(after_help = examples::FLEET_REMOVE)]
    Remove {
        /// Its name
        name: String,
    },
    /// Send no requests to a server until it is resumed
    #[command(after_help = examples::FLEET_PAUSE)]
    Pause {
        /// Its name
        name: String,
    },
    /// Send requests to a paused or drained server again
    #[command(after_help = examples::FLEET_RESUME)]
    Resume {
        /// Its name
        name: String,
    },
    /// Show the servers
    #[command(after_help = examples::FLEET_LIST)]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the servers, and show them again whenever something changes
    #[command(after_help = examples::FLEET_WATCH)]
    Watch,
}
