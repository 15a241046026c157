//! `reward`: the cost of a score, and whether our scorers agree with others.
//!
//! Without a peer the sub-command measures three things: the speed of `math_dapo` (`speed`), the longest
//! time of a score over many hostile texts of a megabyte (`nasty`), and the accuracy of `math_equiv` on pairs
//! with a known right verdict (`agreement`). With `--peer` it also measures the library `math-verify` and verl's
//! scorers, both in Python. Our scorers must agree with verl's on any text (`fuzz`).
#![allow(clippy::print_stdout, reason = "part of a command-line program that prints its results")]

mod agreement;
mod data;
mod fuzz;
mod nasty;
mod peer;
mod speed;
mod texts;

use std::time::Duration;

use clap::Args;

use peer::Peer;
use rolldock_bench_figures::Figure;

/// The default number of seconds of fuzzing.
const FUZZ_S: u64 = 20;
const QUICK_FUZZ_S: u64 = 5;

/// The options of `rolldock-bench reward`.
#[derive(Args)]
pub struct RewardArgs {
    /// Also measures verl's scorers and the library math-verify, both in Python; installs them first into
    /// ~/.cache/rolldock-scorers or the folder that ROLLDOCK_SCORERS_ENV names
    #[arg(long)]
    peer: bool,
    /// Seconds for which our scores of hostile texts are compared with verl's; only with --peer
    #[arg(long, value_name = "SECONDS", requires = "peer")]
    fuzz: Option<u64>,
    /// Seed of the hostile texts
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

/// All figures; with `quick` from fewer texts and rows.
///
/// # Errors
/// A peer cannot be installed or started, or its answers cannot be read.
pub fn measure(quick: bool, args: &RewardArgs) -> anyhow::Result<Vec<Figure>> {
    let mut peer = args.peer.then(Peer::start).transpose()?;
    let mut figures = speed::figures(quick, peer.as_mut())?;
    figures.extend(nasty::figures(quick)?);
    figures.extend(agreement::figures(quick, peer.as_mut())?);
    if let Some(peer) = peer.as_mut() {
        let seconds = args.fuzz.unwrap_or(if quick { QUICK_FUZZ_S } else { FUZZ_S });
        figures.extend(fuzz::figures(args.seed, Duration::from_secs(seconds), peer)?);
    }
    Ok(figures)
}
