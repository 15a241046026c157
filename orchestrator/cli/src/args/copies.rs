//! The arguments of the commands that copy a queue to a file, or a file to a queue.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::SourceArgs;

/// `rolldock queue snapshot`
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// Which queue
    #[command(flatten)]
    pub queue: SourceArgs,
    /// The file; it is replaced when the snapshot is complete
    pub file: PathBuf,
    /// Only this partition
    #[arg(long)]
    pub partition: Option<String>,
}

/// `rolldock queue salvage`
#[derive(Debug, Args)]
pub struct SalvageArgs {
    /// A run's directory, or its queue's; no process may have it open, and it is not changed
    pub source: PathBuf,
    /// The file for the snapshot, which `rolldock queue restore` can read
    pub file: PathBuf,
}

/// `rolldock queue restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The snapshot
    pub file: PathBuf,
    /// A run's directory (created if it does not exist), its queue's, or the URL of a server
    pub target: String,
    /// The server's bearer token
    #[arg(long, env = "ROLLDOCK_QUEUE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// `rolldock queue export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Which queue
    #[command(flatten)]
    pub queue: SourceArgs,
    /// File format
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// The file; without it, JSONL goes to standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which partition
    #[arg(long, default_value = "train")]
    pub partition: String,
    /// Leave out rows whose payload is damaged, with a warning for each damaged part
    #[arg(long)]
    pub skip_damaged: bool,
}

/// Format of exported rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A Parquet file; needs --output.
    Parquet,
    /// One JSON object per line.
    Jsonl,
    /// An Arrow IPC file; needs --output.
    Arrow,
}
