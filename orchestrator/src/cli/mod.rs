//! The command line: arguments, and one module for each command.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage (options or recipe), 130 after a second
//! interrupt.

mod args;
mod consume;
mod file;
mod fleet;
mod generate;
mod history;
mod proxy;
mod queue;
mod reward;
mod run;
mod simengine;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

pub use args::{Cli, Command, LogFormat};

use crate::recipe::RecipeError;
use crate::report::Progress;

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match cli.command {
        // The proxy passes requests on in threads of its own, so one thread is enough for the rest.
        Command::Proxy(_) => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().enable_all().build(),
    };
    match runtime {
        Ok(runtime) => runtime.block_on(run_command(cli)),
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_command(cli: Cli) -> ExitCode {
    raise_open_files_limit();
    let is_run = matches!(cli.command, Command::Run(_));
    let progress = Progress::new(is_run && !cli.no_progress && cli.log_format == LogFormat::Text);
    install_logs(&cli, &progress);
    let outcome = match cli.command {
        Command::Run(args) => run::run(args, &progress).await,
        Command::Simengine(args) => simengine::serve(args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Fleet(args) => fleet::run(args).await,
        Command::Queue(args) => queue::run(args).await,
        Command::Ledger(args) => history::run(args).await,
        Command::Reward(args) => reward::run(args).await,
        Command::Consume(args) => consume::run(args).await,
        Command::Completions(args) => {
            generate::completions(&args);
            Ok(())
        }
        Command::Man(args) => generate::man(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let usage =
                error.downcast_ref::<RecipeError>().is_some() || error.downcast_ref::<UsageError>().is_some();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// Raises the limit of open files to the maximum that the system allows. Every running request has its own
/// connection, and the usual limit of a process is about a thousand.
pub fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the first refused connection reports the problem.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A mistake on the command line that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The largest time that an option accepts, about four months.
const SECONDS_MAX: Duration = Duration::from_secs(10_000_000);

/// Parses the seconds of `option`, which must be above 0.
fn seconds(option: &str, seconds: f64) -> Result<Duration, UsageError> {
    let duration = Duration::try_from_secs_f64(seconds).ok();
    let is_sound = |duration: &Duration| !duration.is_zero() && *duration <= SECONDS_MAX;
    duration.filter(is_sound).ok_or_else(|| {
        let max = SECONDS_MAX.as_secs();
        UsageError(format!("{option}: expected seconds, more than 0 and at most {max}, found {seconds}"))
    })
}

fn install_logs(cli: &Cli, progress: &Progress) {
    let filter = EnvFilter::try_from_env("ROLLDOCK_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let writer = progress.log_writer();
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(colours);
    // This fails only in a test that runs two commands in one process. The first subscriber stays.
    let _ = match cli.log_format {
        LogFormat::Text => logs.with_writer(move || writer.clone()).try_init(),
        LogFormat::Json => logs.json().with_writer(move || writer.clone()).try_init(),
    };
}
