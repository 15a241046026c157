//! `rolldock reward`: the reward crate at the command line, for files of JSON lines.
//!
//! Rows are read, changed and written one at a time, or 1,024 at a time for a scorer outside of this process.
//! A file may therefore be larger than memory. Other keys of a row stay as they are. A wrong row ends the
//! command with an error that names its line, and no output file is written.

mod advantage;
mod row_scorer;
mod rows;
mod score;

use std::path::Path;

use rolldock_process::say;
use rolldock_scope::blocking;

use crate::args::{RewardArgs, RewardCommand};

/// `rolldock reward`: scores responses and computes advantages.
pub async fn run(args: RewardArgs) -> anyhow::Result<()> {
    // The command reads files and computes, and nothing else runs in this process.
    blocking("reward command", move || match args.command {
        RewardCommand::Score(args) => score::run(&args),
        RewardCommand::Advantage(args) => advantage::run(&args),
    })
    .await?
}

/// Prints the summary to standard output, or to standard error if the rows go to standard output.
fn summarise(output: Option<&Path>, summary: &str) {
    match output {
        Some(_) => say(summary),
        None => eprintln!("{summary}"),
    }
}
