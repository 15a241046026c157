//! Shell completions and man pages, generated from the definition of the command line.

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;
use rolldock_process::say;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::file::Pipe;

const NAME: &str = "rolldock";

/// `rolldock completions`: writes completions to standard output.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    let mut output = Pipe(std::io::stdout());
    let written = output.write_all(&script).and_then(|()| output.flush());
    written.context("cannot write the completions to standard output")
}

/// `rolldock man`: writes a page for each command.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let cannot = || format!("cannot write man pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(cannot)?;
    say(&format!("man pages are in {}: man -l {}/{NAME}.1", args.dir.display(), args.dir.display()));
    Ok(())
}

#[cfg(test)]
mod tests;
