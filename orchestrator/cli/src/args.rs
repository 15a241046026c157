//! Commands and options.

mod calibrate;
mod connections;
mod copies;
mod data;
mod examples;
mod fleet;
mod gateway;
mod history;
mod numbers;
mod report;
mod reward;
mod simulate;
mod urls;
mod why;
mod words;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use rolldock_queue::Durability;

pub use calibrate::CalibrateArgs;
pub use connections::ServiceConnectionArgs;
pub use copies::{ExportArgs, ExportFormat, RestoreArgs, SalvageArgs, SnapshotArgs};
pub use data::{DataArgs, DataCommand, PrepareArgs};
pub use fleet::{EngineDialect, FleetArgs, FleetCommand, ProxyArgs};
pub use gateway::{GatewayArgs, History};
pub use history::LedgerArgs;
use numbers::{real, whole};
pub use report::ReportArgs;
pub use reward::{AdvantageArgs, RewardArgs, RewardCommand, ScoreArgs};
pub use simulate::SimulateArgs;
use urls::base_url;
pub use why::WhyArgs;
use words::{DURABILITIES, one_of};

use crate::usage::SECONDS_MAX;

/// Keeps a fleet of vLLM servers busy with RL rollouts and hands finished groups to a trainer through a
/// queue.
#[derive(Debug, Parser)]
#[command(name = "rolldock", version = env!("ROLLDOCK_VERSION"), after_help = examples::ROLLDOCK)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// How logs are written (to standard error; ROLLDOCK_LOG sets the filter).
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Draw no progress line.
    #[arg(long, global = true)]
    pub no_progress: bool,
}

impl Cli {
    /// Reads the command line of this process. Exits after an error, `--help` and `--version`.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of_line(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Reads a command line.
    ///
    /// # Errors
    /// An error for people: the command line is wrong, or asks for help or for the version.
    pub fn of_line(line: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let matches = with_negative_numbers(Self::command()).try_get_matches_from(line)?;
        Self::from_arg_matches(&matches)
    }
}

/// The command, with options that take `-5` as their value, so that the error names the option and its range. Otherwise
/// the error would be that there is no option `-5`.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let is_option = |arg: &Arg| arg.get_action().takes_values() && !arg.is_positional();
    command
        .mut_args(|arg| if is_option(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The commands of `rolldock`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Collect rollouts as a recipe says
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    /// Simulate a recipe on simulated servers in virtual time, and compare settings: hours take seconds
    #[command(after_help = examples::SIMULATE)]
    Simulate(SimulateArgs),
    /// Measure the speed and the KV cache of a server, for simulations
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(CalibrateArgs),
    /// Serve simulated vLLM servers on loopback ports
    #[command(after_help = examples::SIMENGINE)]
    Simengine(SimengineArgs),
    /// Balance requests over a fleet: clients talk to it as to one server
    #[command(after_help = examples::PROXY)]
    Proxy(ProxyArgs),
    /// Serve agents, and record their calls as trajectories for a trainer
    #[command(after_help = examples::GATEWAY)]
    Gateway(Box<GatewayArgs>),
    /// Show or change the fleet of a run or a proxy
    #[command(after_help = examples::FLEET)]
    Fleet(FleetArgs),
    /// Make the data files of a recipe
    #[command(after_help = examples::DATA)]
    Data(DataArgs),
    /// Inspect, copy or serve a queue
    #[command(after_help = examples::QUEUE)]
    Queue(QueueArgs),
    /// Show the fates of a run's prompts, its steps, and whether the counts add up
    #[command(after_help = examples::LEDGER)]
    Ledger(LedgerArgs),
    /// Explain why the current step of a run has not ended, and what would end it
    #[command(after_help = examples::WHY)]
    Why(WhyArgs),
    /// Write a page with plots of a run: times, rewards, lengths, tokens, staleness, requests by server
    #[command(after_help = examples::REPORT)]
    Report(ReportArgs),
    /// Score responses and compute advantages, over files of JSON lines
    #[command(after_help = examples::REWARD)]
    Reward(RewardArgs),
    /// Take batches from a queue, print a summary of each, and ack them
    #[command(after_help = examples::CONSUME)]
    Consume(ConsumeArgs),
    /// Write completions for a shell to standard output
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Write a man page for each command
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

impl Command {
    /// Whether the command starts the threads on which it works. One thread is enough for the rest of it.
    #[must_use]
    pub fn has_own_threads(&self) -> bool {
        match self {
            Self::Proxy(_) => true,
            Self::Queue(args) => matches!(args.command, QueueCommand::Serve(_)),
            _ => false,
        }
    }
}

/// `rolldock run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The recipe (TOML): a path, or a recipe that was installed with rolldock; not needed with --resume,
    /// because the run has its own recipe
    #[arg(required_unless_present = "resume")]
    pub recipe: Option<PathBuf>,
    /// Continues the run in this directory, with its own recipe or a changed one
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// A server's base URL; replaces the recipe's fleet (repeatable)
    #[arg(long = "endpoint", value_name = "URL")]
    pub endpoints: Vec<String>,
    /// How long to wait until fleet.servers_min servers answer; the other servers join the run later
    /// [default: timeouts.connect without a connection, else timeouts.stall]
    #[arg(long, value_name = "SECONDS")]
    pub wait_for_servers: Option<f64>,
    /// Overrides one key, for example rollout.train_batch_size=64 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Ends after this many steps
    #[arg(long, value_name = "N", value_parser = whole(1..=u64::MAX))]
    pub steps: Option<u64>,
    /// The directory of the run's ledger, queue and recipe; a run that is in it continues
    /// [default: runs/<recipe's name>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Checks recipe, data, tokenizer and servers, and says what the run would do
    #[arg(long)]
    pub dry_run: bool,
}

/// `rolldock simengine`
#[derive(Debug, Args)]
pub struct SimengineArgs {
    /// Ports, one server each
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_value = "8000")]
    pub ports: Vec<u16>,
    /// Address to listen at
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The model's name
    #[arg(long, default_value = "simulated")]
    pub model: String,
    /// "builtin", a tokenizer.json, or a folder with a tokenizer.json
    #[arg(long, default_value = "builtin")]
    pub tokenizer: String,
    /// Data whose prompts are answered, right or wrong; other prompts get filler (.jsonl or .parquet,
    /// repeatable)
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// A script (.json) with the tokens of each turn, which the model says instead of drawing responses
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub script: Option<PathBuf>,
    /// Seed of lengths and answers
    #[arg(long, default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Real seconds that a simulated second takes
    #[arg(long, default_value_t = 1.0, value_parser = real(1e-6..=1e6))]
    pub time_scale: f64,
    /// Sequences that a server decodes at the same time
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,
    /// Mean response length, tokens
    #[arg(long, default_value_t = 400.0, value_parser = real(1.0..=1e6))]
    pub mean_response_length: f64,
    /// Refuse further requests when this many samples wait or run
    #[arg(long, value_name = "N")]
    pub max_num_queued_reqs: Option<u32>,
    /// Leave /inference, render and derender off, as a vLLM without --enable-scale-out does
    #[arg(long)]
    pub no_scale_out: bool,
    /// Bearer token that clients have to send
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}

/// `rolldock queue`
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// The command.
    #[command(subcommand)]
    pub command: QueueCommand,
}

/// The commands of `rolldock queue`.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Show partitions, columns, and rows by state
    #[command(after_help = examples::QUEUE_INSPECT)]
    Inspect {
        /// A run's directory, its queue's, or a server: http://HOST:PORT or unix:PATH
        source: String,
        /// The server's bearer token
        #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
        token: Option<String>,
    },
    /// Serve a queue to other processes: over HTTP, and to processes of this host through shared memory
    #[command(after_help = examples::QUEUE_SERVE)]
    Serve(ServeArgs),
    /// Write rows to a file or to standard output
    #[command(after_help = examples::QUEUE_EXPORT)]
    Export(ExportArgs),
    /// Write the state of a queue to one file, while the queue is in use
    #[command(after_help = examples::QUEUE_SNAPSHOT)]
    Snapshot(SnapshotArgs),
    /// Create all partitions of a snapshot, or none of them
    #[command(after_help = examples::QUEUE_RESTORE)]
    Restore(RestoreArgs),
    /// Keep rows for a controller on another machine: a storage unit
    #[command(after_help = examples::QUEUE_UNIT)]
    Unit(UnitArgs),
    /// Show the counts of a server's partitions, and again whenever they change
    #[command(after_help = examples::QUEUE_WATCH)]
    Watch(WatchArgs),
    /// Read and check all live data
    #[command(after_help = examples::QUEUE_VERIFY)]
    Verify(SourceArgs),
    /// Write what is left of a damaged queue to a snapshot, and list the losses
    #[command(after_help = examples::QUEUE_SALVAGE)]
    Salvage(SalvageArgs),
    /// Free all rows of a partition, including leased rows
    #[command(after_help = examples::QUEUE_CLEAR)]
    Clear(ClearArgs),
}

/// The queue, and its token.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// A run's directory, its queue's, or the URL of a server
    pub source: String,
    /// The server's bearer token
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// `rolldock queue unit`
#[derive(Debug, Args)]
pub struct UnitArgs {
    /// The URL of the queue's server: `rolldock queue serve`, or a run with queue.listen
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub controller: String,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7071")]
    pub listen: SocketAddr,
    /// The URL at which the controller and its clients reach this unit, if it is not the address of --listen
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub advertise: Option<String>,
    /// The directory of the rows; without it they are in memory, and lost with the process
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The controller's bearer token; clients of this unit have to send it too
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Largest body of a request; bytes [default: 256 MiB]
    #[arg(long, value_name = "BYTES", value_parser = whole(1..=usize::MAX))]
    pub body_bytes_max: Option<usize>,
    /// Clients' connections
    #[command(flatten)]
    pub connections: ServiceConnectionArgs,
}

/// `rolldock queue watch`
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// A run's directory, its queue's, or a server: its URL or unix:PATH
    pub source: String,
    /// The server's bearer token
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Which partition
    #[arg(long, default_value = "train")]
    pub partition: String,
    /// Shortest time between two lines
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = real(0.0..=SECONDS_MAX))]
    pub every: f64,
    /// Ends after this many lines; it also ends when the puts have ended and no rows are left
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub lines: Option<u64>,
}

/// `rolldock queue clear`
#[derive(Debug, Args)]
pub struct ClearArgs {
    /// Which queue
    #[command(flatten)]
    pub queue: SourceArgs,
    /// Which partition
    #[arg(long)]
    pub partition: String,
    /// Remove the partition too, with its tokens, records and counts
    #[arg(long)]
    pub remove: bool,
    /// Only print what would be freed
    #[arg(long)]
    pub dry_run: bool,
}

/// `rolldock queue serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The directory of the queue; without it the queue is in memory
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Address to listen at [default: 127.0.0.1:7070, or none beside --uds]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Unix socket for clients of this host, which get rows through shared memory; its file mode determines
    /// which users may connect
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// Bearer token that clients have to send
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// What an acknowledged put survives
    #[arg(long, value_parser = one_of::<Durability>(DURABILITIES), default_value = "fsync")]
    pub durability: Durability,
    /// Largest body of a request; bytes [default: 256 MiB, through shared memory 1 GiB]
    #[arg(long, value_name = "BYTES", value_parser = whole(1..=usize::MAX))]
    pub body_bytes_max: Option<usize>,
    /// Clients' connections
    #[command(flatten)]
    pub connections: ServiceConnectionArgs,
}

/// `rolldock consume`
#[derive(Debug, Args)]
pub struct ConsumeArgs {
    /// A run's directory, its queue's, or a server: http://HOST:PORT or unix:PATH
    pub source: String,
    /// The server's bearer token
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The task for which rows are taken
    #[arg(long, default_value = "train")]
    pub task: String,
    /// The partition
    #[arg(long, default_value = "train")]
    pub partition: String,
    /// Groups in a batch
    #[arg(long, default_value_t = 8, value_parser = whole(1..=usize::MAX))]
    pub groups: usize,
    /// Ends after this many batches [default: when no group is ready]
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub max_batches: Option<u64>,
    /// Ends after waiting this long for rows; it also ends when the puts have ended
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = whole(0..=SECONDS_MAX as u64))]
    pub wait: u64,
    /// Returns the rows to the queue instead of consuming them
    #[arg(long)]
    pub leave: bool,
}

/// `rolldock completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `rolldock man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The directory for the pages, created if it does not exist
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests;
