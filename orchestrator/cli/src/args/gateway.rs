//! The arguments of `rolldock gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use rolldock_gateway::{GatewayConfig, Limits, Sampling, Unrewarded};
use rolldock_loadbalancer::Probe;
use rolldock_queue::Durability;
use rolldock_recipe::AdvantageEstimator;

use super::connections::ConnectionArgs;
use super::numbers::{real, top_p, whole};
use super::urls::{base_url, public_url};
use super::words::{ADVANTAGES, DURABILITIES, PROBES, UNREWARDED, one_of};

/// `rolldock gateway`
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// A server's base URL (repeatable)
    #[arg(long = "endpoint", value_name = "URL", required = true, value_parser = base_url)]
    pub endpoints: Vec<String>,
    /// Address for agents, for control calls, and for /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8100")]
    pub listen: SocketAddr,
    /// The directory of the recorded trajectories, and of the queue unless there is --queue; a gateway that is
    /// in it continues
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The model's tokenizer: a directory, a tokenizer.json, a hub id in the local cache, or "builtin"
    #[arg(long)]
    pub tokenizer: String,
    /// The chat template: "auto" for the tokenizer's own, or a Jinja file
    #[arg(long, value_name = "auto|FILE", default_value = "auto")]
    pub chat_template: String,
    /// What becomes of sampled text that the template would show differently in a later prompt
    #[arg(long, value_enum, default_value_t)]
    pub history: History,
    /// The model's name at the servers [default: the first that a server lists]
    #[arg(long)]
    pub model: Option<String>,
    /// What a recorded turn survives
    #[arg(long, value_parser = one_of::<Durability>(DURABILITIES), default_value = "fsync")]
    pub durability: Durability,
    /// The queue for rows: http://HOST:PORT or unix:PATH [default: a queue in the directory of --out]
    #[arg(long, value_name = "URL")]
    pub queue: Option<String>,
    /// The bearer token of the queue
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub queue_token: Option<String>,
    /// Serve the queue in the directory of --out at this address, for a trainer
    #[arg(long, value_name = "ADDRESS", conflicts_with = "queue")]
    pub queue_listen: Option<SocketAddr>,
    /// The partition for rows
    #[arg(long, default_value = "train", value_parser = NonEmptyStringValueParser::new())]
    pub partition: String,
    /// A task that has to ack a row before it is freed (repeatable)
    #[arg(
        long = "task",
        value_name = "NAME",
        default_value = "train",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub tasks: Vec<String>,
    /// Maximum number of rows in the partition
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = whole(1..=usize::MAX))]
    pub capacity_rows: usize,
    /// The bearer token of control calls
    #[arg(long, value_name = "TOKEN", env = "ROLLDOCK_GATEWAY_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The URL at which agents reach the gateway [default: the host of the control call]
    #[arg(long, value_name = "URL", value_parser = public_url)]
    pub advertise: Option<String>,
    /// How tokens are drawn
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// The limits of trajectories that set none
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Maximum number of trajectories whose rows are not put yet; further ones are answered with 503
    #[arg(
        long,
        value_name = "N",
        default_value_t = GatewayConfig::TRAJECTORIES_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub trajectories_max: u32,
    /// What becomes of a trajectory that has no reward when its group has ended
    #[arg(long, value_parser = one_of::<Unrewarded>(UNREWARDED), default_value = "drop")]
    pub unrewarded: Unrewarded,
    /// How the rewards of a group become advantages
    #[arg(long, value_parser = one_of::<AdvantageEstimator>(ADVANTAGES), default_value = "grpo")]
    pub advantage: AdvantageEstimator,
    /// Calls that a server works on at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_loads: u32,
    /// Maximum time that a call waits for a server with room
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub permit_wait: f64,
    /// Maximum time of a call
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
    pub call_timeout: f64,
    /// Maximum number of times that a turn is sent to a server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub attempts_max: u32,
    /// Time without a byte after which a stream gets a heartbeat
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub heartbeat: f64,
    /// How the health of a server is probed
    #[arg(long, value_parser = one_of::<Probe>(PROBES), default_value = "health")]
    pub probe: Probe,
    /// A server with open requests counts as dead when it generates no token for this time
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub stall: f64,
    /// The bearer token of the servers
    #[arg(long, value_name = "KEY", env = "ROLLDOCK_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Clients' connections
    #[command(flatten)]
    pub connections: ConnectionArgs,
}

/// How tokens are drawn.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Softmax temperature
    #[arg(long, default_value_t = Sampling::default().temperature, value_parser = real(0.0..=100.0_f32))]
    pub temperature: f32,
    /// Nucleus mass
    #[arg(long, default_value_t = Sampling::default().top_p, value_parser = top_p)]
    pub top_p: f32,
    /// Number of most probable tokens that are kept; -1 keeps all
    #[arg(
        long,
        default_value_t = Sampling::default().top_k,
        allow_hyphen_values = true,
        value_parser = clap::value_parser!(i32).range(-1..)
    )]
    pub top_k: i32,
    /// Seed of all trajectories that set none
    #[arg(long, default_value_t = 0, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
}

/// The limits of a trajectory.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Maximum number of turns
    #[arg(
        long,
        value_name = "N",
        default_value_t = Limits::default().turns,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub turns_max: u32,
    /// Maximum number of sampled tokens of all turns
    #[arg(
        long,
        value_name = "N",
        default_value_t = Limits::default().tokens,
        value_parser = whole(1..=u64::MAX)
    )]
    pub tokens_max: u64,
    /// Maximum number of sampled tokens of one turn
    #[arg(
        long,
        value_name = "N",
        default_value_t = Limits::default().turn_tokens,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub turn_tokens_max: u32,
    /// Maximum time of a trajectory
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().wall)]
    pub wall: f64,
    /// Maximum time without a call
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().idle)]
    pub idle: f64,
    /// Maximum time from the last call until the reward
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().reward)]
    pub reward_wait: f64,
}

/// What becomes of sampled text that the template would show differently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum History {
    /// What was sampled stays in all later prompts
    #[default]
    Append,
    /// Prompts are what the template makes of the conversation; where it drops sampled text, the path forks
    Template,
}
