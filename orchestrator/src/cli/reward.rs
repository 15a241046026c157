//! `rolldock reward`: the reward room at the command line, over files of JSON lines.
//!
//! Rows are read, changed and written one at a time (a thousand, where a process or server outside is asked),
//! so a file may be longer than memory. What a row has besides the keys that are read stays as it was. A row
//! that is wrong ends the command with its line, and the output is then not there.

mod advantage;
mod opinion;
mod rows;
mod score;

use std::path::Path;

use super::args::{RewardArgs, RewardCommand};
use crate::report::say;
use crate::scope::blocking;

pub(super) async fn run(args: RewardArgs) -> anyhow::Result<()> {
    // Files and processor work, and nothing else runs here.
    blocking("reward command", move || match args.command {
        RewardCommand::Score(args) => score::run(&args),
        RewardCommand::Advantage(args) => advantage::run(&args),
    })
    .await?
}

/// Rows that go to standard output stay alone there.
fn summarise(output: Option<&Path>, summary: &str) {
    match output {
        Some(_) => say(summary),
        None => eprintln!("{summary}"),
    }
}
