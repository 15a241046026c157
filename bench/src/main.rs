//! `rolldock-bench`: what the documentation claims, measured again by whoever doubts it.
//!
//! One sub-command per room. Each prints a Markdown table; `--json FILE` writes the same figures for
//! machines. A figure with a bar that does not hold makes the exit code 1. Machines differ and are noisy, so
//! figures are counted (bytes, virtual seconds) or are CPU time and ratios within one run wherever that is
//! possible.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

mod client;
mod counting;
mod cpu;
mod figures;
mod fleet;
mod lifecycle;
mod python;
mod queue;
mod reward;
mod rollout;
mod serve;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use figures::Report;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Measures Rolldock.
#[derive(Parser)]
#[command(name = "rolldock-bench", version)]
struct Cli {
    #[command(subcommand)]
    room: Room,
}

#[derive(Subcommand)]
enum Room {
    /// Step time against the best possible, bias, and what a simulated fleet costs
    Rollout(Options),
    /// Throughput, staleness and bias of the three modes with a simulated trainer, in virtual time
    Lifecycle(Options),
    /// CPU and memory of the engine client, and of a run that only waits
    Client(Options),
    /// What a pick costs, and what each routing policy makes of a fleet in which something is wrong
    Fleet(FleetOptions),
    /// What a served queue moves, how long a small take takes, what rows cost in memory
    Queue(QueueOptions),
    /// What a score costs, and whether our scorers say what verl's and math-verify say
    Reward(RewardOptions),
    /// Answers requests at once, for another sub-command
    #[command(hide = true)]
    Echo,
    /// Serves simulated servers for another sub-command, in a process of their own
    #[command(hide = true)]
    Serve(serve::ServeArgs),
}

#[derive(Args)]
struct Options {
    /// Writes the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Ends within two minutes
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
struct FleetOptions {
    #[command(flatten)]
    options: Options,
    /// Also asks the routers vllm-router, sglang-router and smg, round by round; installs them first into
    /// ~/.cache/rolldock-routers or the folder that ROLLDOCK_ROUTERS_ENV names
    #[arg(long)]
    peer: bool,
}

#[derive(Args)]
struct QueueOptions {
    #[command(flatten)]
    options: Options,
    /// Also measures the Python package transferqueue, round by round; installs it first (minutes, gigabytes)
    /// into ~/.cache/rolldock-peer or the folder that ROLLDOCK_PEER_ENV names
    #[arg(long)]
    peer: bool,
}

#[derive(Args)]
struct RewardOptions {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    reward: reward::RewardArgs,
}

fn main() -> anyhow::Result<ExitCode> {
    rolldock::cli::raise_open_files_limit();
    let (figures, options) = match Cli::parse().room {
        Room::Rollout(options) => (rollout::measure(options.quick)?, options),
        Room::Lifecycle(options) => (lifecycle::measure(options.quick)?, options),
        Room::Client(options) => (client::measure(options.quick)?, options),
        Room::Fleet(FleetOptions { options, peer }) => (fleet::measure(options.quick, peer)?, options),
        Room::Queue(QueueOptions { options, peer }) => (queue::measure(options.quick, peer)?, options),
        Room::Reward(RewardOptions { options, reward }) => {
            (reward::measure(options.quick, &reward)?, options)
        }
        Room::Echo => {
            fleet::echo()?;
            return Ok(ExitCode::SUCCESS);
        }
        Room::Serve(args) => {
            serve::serve(&args)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let report = Report::new(figures);
    println!("{}", report.markdown());
    if let Some(file) = &options.json {
        report.write(file)?;
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
