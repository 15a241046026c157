//! The arguments of `rolldock report`.

use std::path::PathBuf;

use clap::Args;

use super::numbers::whole;

/// `rolldock report`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A run's directory; the run may be in progress
    pub dir: PathBuf,
    /// The file for the page [default: report.html in the run's directory]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The step whose requests are shown by server; they are kept only for the newest steps [default: the
    /// newest]
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub step: Option<u64>,
}
