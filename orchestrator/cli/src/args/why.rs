//! The arguments of `rolldock why`.

use clap::Args;

/// `rolldock why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A run's directory, or the address that the run has printed: http://HOST:PORT
    pub source: String,
    /// Print the status as JSON
    #[arg(long)]
    pub json: bool,
}
