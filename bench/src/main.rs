//! `rolldock-bench` measures the figures that the documentation reports.
//!
//! Each part of the project has a sub-command, which prints a Markdown table; `--json FILE` also writes the
//! figures as JSON. If the bar of a figure does not hold, the exit code is 1. Machines differ and are noisy,
//! so figures are counts (bytes, virtual seconds), CPU times or ratios within one run where possible.
#![allow(clippy::print_stdout, reason = "a command-line program prints its results")]

mod answering;
mod client;
mod fleet;
mod gateway;
mod process;
mod queue;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use rolldock_bench_figures::{Counting, Report};
use rolldock_bench_reward as reward;
use rolldock_bench_rollouts::{history, lifecycle, rollout, scale, truth, unlikely};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures Rolldock.
#[derive(Parser)]
#[command(name = "rolldock-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Step time against the best possible, bias, and the cost of a simulated fleet
    Rollout(RolloutOptions),
    /// Throughput, staleness and bias of the three modes with a simulated trainer, in virtual time
    Lifecycle(LifecycleOptions),
    /// CPU and memory of the engine client, and of a run that only waits
    Client(Options),
    /// CPU, memory and latencies with up to 50,000 running samples on 1,024 simulated servers
    Scale(Options),
    /// The cost of choosing a server, and how each routing policy copes with a fleet that has a fault
    Fleet(FleetOptions),
    /// What the gateway adds to a turn, and the memory and bytes of open trajectories
    Gateway(Options),
    /// Throughput of a served queue, latency of small takes, and memory of rows
    Queue(QueueOptions),
    /// Rates, latencies and start-up of the Python client
    Python(QueueOptions),
    /// The memory of a served queue during many snapshots and verifies, as a curve
    Memory(MemoryOptions),
    /// The cost of a score, and whether our scorers agree with verl's and math-verify
    Reward(RewardOptions),
    /// A run's own figures compared with the simulation: its bias, and every token in one bucket
    Truth(Options),
    /// One run of `scale` whose instructions another process counts
    #[command(hide = true)]
    Counted {
        point: usize,
        groups: usize,
        #[arg(long)]
        with_rollout: bool,
    },
    /// Answers requests immediately, for another sub-command
    #[command(hide = true)]
    Echo,
    /// Replays an answer in a separate process, for another sub-command
    #[command(hide = true)]
    Replay(client::ReplayArgs),
    /// Serves simulated servers in a separate process, for another sub-command
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
struct RolloutOptions {
    #[command(flatten)]
    options: Options,
    /// Measures only the cells of the grid whose names contain this text, for example "8 mixed"
    #[arg(long, value_name = "TEXT")]
    cells: Option<String>,
    /// Measures what one epoch of history saves, and the bias of its choice, in each mode
    #[arg(long, conflicts_with = "cells")]
    history: bool,
    /// Measures what stopping unlikely groups saves and costs, and its bias
    #[arg(long, conflicts_with_all = ["cells", "history"])]
    unlikely: bool,
}

#[derive(Args)]
struct LifecycleOptions {
    #[command(flatten)]
    options: Options,
    /// Measures only the plans whose names contain this text, for example "one_step_off"
    #[arg(long, value_name = "TEXT")]
    plans: Option<String>,
}

#[derive(Args)]
struct FleetOptions {
    #[command(flatten)]
    options: Options,
    /// Also measures the routers vllm-router, sglang-router and smg, round by round; installs them first into
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
struct MemoryOptions {
    #[command(flatten)]
    options: Options,
    /// Length of the curve; 60 s with --quick
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
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
    let (figures, options) = match Cli::parse().command {
        Command::Rollout(RolloutOptions { options, history: true, .. }) => {
            (history::measure(options.quick)?, options)
        }
        Command::Rollout(RolloutOptions { options, unlikely: true, .. }) => {
            (unlikely::measure(options.quick)?, options)
        }
        Command::Rollout(RolloutOptions { options, cells, .. }) => match cells {
            Some(cells) => (rollout::measure_cells(options.quick, &cells)?, options),
            None => (rollout::measure(options.quick)?, options),
        },
        Command::Lifecycle(LifecycleOptions { options, plans }) => {
            (lifecycle::measure(plans.as_deref())?, options)
        }
        Command::Client(options) => (client::measure(options.quick)?, options),
        Command::Scale(options) => (scale::measure(options.quick)?, options),
        Command::Fleet(FleetOptions { options, peer }) => (fleet::measure(options.quick, peer)?, options),
        Command::Gateway(options) => (gateway::measure(options.quick)?, options),
        Command::Queue(QueueOptions { options, peer }) => (queue::measure(options.quick, peer)?, options),
        Command::Python(QueueOptions { options, peer }) => {
            (queue::measure_from_python(options.quick, peer)?, options)
        }
        Command::Memory(MemoryOptions { options, seconds }) => {
            (queue::measure_growth(if options.quick { 60 } else { seconds })?, options)
        }
        Command::Reward(RewardOptions { options, reward }) => {
            (reward::measure(options.quick, &reward)?, options)
        }
        Command::Truth(options) => (truth::measure(options.quick)?, options),
        Command::Counted { point, groups, with_rollout } => {
            scale::CountedRun { point, groups, with_rollout }.run()?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Echo => {
            fleet::echo()?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Replay(args) => {
            client::replay(&args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Serve(args) => {
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
