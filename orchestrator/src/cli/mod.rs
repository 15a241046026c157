//! The program: parses the command line and runs the command. The commands that need a run or the simulated
//! model are modules here. The other commands are in [`rolldock_cli`].
//!
//! Exit codes: 0 for success, 1 for a failure (also of writing the output), 2 for wrong usage (options or recipe), 130 if
//! Ctrl-C ended a run immediately, 143 after SIGTERM or SIGHUP.

mod logs;
mod report;
mod run;
mod shipped;
mod simengine;
mod simulate;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use rolldock_cli::{
    Cli, Command, LogFormat, UsageError, calibrate, consume, data, fleet, gateway, generate, history, proxy,
    queue, reward,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

use crate::process::{is_incomplete, say_error};
use crate::recipe::RecipeError;
use crate::report::{Progress, RUN_LOG_ONLY};
use crate::run::{EndedEarly, Unfinished};

/// The time for which the process waits at its end for work that cannot be cancelled, such as a read of data.
const BLOCKING_LIMIT: Duration = Duration::from_secs(1);

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::of_process();
    let mut builder = if cli.command.has_own_threads() {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    match builder.enable_all().build() {
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
        Command::Simulate(args) => simulate::run(args).await.map(done),
        Command::Calibrate(args) => calibrate::run(args).await.map(done),
        Command::Simengine(args) => simengine::serve(args).await.map(done),
        Command::Proxy(args) => proxy::run(args).await.map(done),
        Command::Gateway(args) => gateway::run(*args).await.map(done),
        Command::Fleet(args) => fleet::run(args).await.map(done),
        Command::Data(args) => data::run(args).await.map(done),
        Command::Queue(args) => queue::run(args).await.map(done),
        Command::Ledger(args) => history::run(args).await.map(done),
        Command::Why(args) => why::run(args).await.map(done),
        Command::Report(args) => report::run(args).await.map(done),
        Command::Reward(args) => reward::run(args).await.map(done),
        Command::Consume(args) => consume::run(args).await.map(done),
        Command::Completions(args) => generate::completions(&args).map(done),
        Command::Man(args) => generate::man(&args).map(done),
    };
    match outcome {
        // The result of a run is in its queue. The result of any other command is its output.
        Ok(_) if is_incomplete() && !is_run => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Prints the error and, if a run can be resumed, the command for that. Returns the exit code.
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
