//! The arguments of `rolldock ledger`.

use std::path::PathBuf;

use clap::Args;

use super::numbers::whole;

/// `rolldock ledger`
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// A run's directory; the run may be in progress
    pub dir: PathBuf,
    /// Show every dispatch of the prompt with this prompt_uid (16 hexadecimal digits, as in logs and rows)
    #[arg(long, value_name = "UID", conflicts_with_all = ["row", "step"])]
    pub prompt: Option<String>,
    /// Show every dispatch of the prompt in this row of the data set
    #[arg(long, value_name = "N", conflicts_with = "step", value_parser = whole(0..=u64::MAX))]
    pub row: Option<u64>,
    /// Show why this step is short: its dispatches by fate, and the reasons of filtered and failed groups
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub step: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
