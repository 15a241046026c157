//! The command line: arguments, and one module for each command.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage (options or recipe), 130 if Ctrl-C cut a run
//! off at once, 143 after SIGTERM or SIGHUP.

mod args;
mod consume;
mod data;
mod file;
mod fleet;
mod generate;
mod history;
mod logs;
mod proxy;
mod queue;
mod report;
mod reward;
mod run;
mod shipped;
mod simengine;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

pub use args::{Cli, Command, LogFormat};

use crate::recipe::RecipeError;
use crate::report::{Progress, RUN_LOG_ONLY, say_error};
use crate::run::{EndedEarly, Unfinished};

/// How long the process waits for work that cannot be cancelled, such as a read of data that is not needed
/// any more.
const BLOCKING_LIMIT: Duration = Duration::from_secs(1);

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match cli.command {
        // The proxy passes requests on in threads of its own, so one thread is enough for the rest.
        Command::Proxy(_) => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().enable_all().build(),
    };
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(run_command(cli));
            runtime.shutdown_timeout(BLOCKING_LIMIT);
            code
        }
        Err(error) => {
            say_error(&format!("error: cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn run_command(cli: Cli) -> ExitCode {
    raise_open_files_limit();
    let is_run = matches!(cli.command, Command::Run(_));
    let progress = Progress::new(is_run && !cli.no_progress && cli.log_format == LogFormat::Text);
    if let Err(error) = logs::install(cli.log_format, &progress, is_run) {
        return fail(&error.into());
    }
    let done = |()| ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Run(args) => run::run(args, &progress).await,
        Command::Simengine(args) => simengine::serve(args).await.map(done),
        Command::Proxy(args) => proxy::run(args).await.map(done),
        Command::Fleet(args) => fleet::run(args).await.map(done),
        Command::Data(args) => data::run(args).await.map(done),
        Command::Queue(args) => queue::run(args).await.map(done),
        Command::Ledger(args) => history::run(args).await.map(done),
        Command::Why(args) => why::run(args).await.map(done),
        Command::Report(args) => report::run(args).await.map(done),
        Command::Reward(args) => reward::run(args).await.map(done),
        Command::Consume(args) => consume::run(args).await.map(done),
        Command::Completions(args) => {
            generate::completions(&args);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => generate::man(&args).map(done),
    };
    outcome.unwrap_or_else(|error| fail(&error))
}

/// Prints the error and, if a run can go on, the command for it. Returns the exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    say_error(&format!("error: {error:#}"));
    tracing::error!(target: RUN_LOG_ONLY, "the run failed: {error:#}");
    let unfinished = error.downcast_ref::<Unfinished>();
    if let Some(Unfinished { command, .. }) = unfinished {
        say_error(&format!("go on with: {command}"));
    }
    let cause = unfinished.map_or(error, |unfinished| &unfinished.cause);
    if let Some(EndedEarly(ending)) = cause.downcast_ref() {
        return ExitCode::from(ending.exit_code());
    }
    let usage = cause.is::<RecipeError>() || cause.is::<UsageError>();
    ExitCode::from(if usage { 2 } else { 1 })
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
