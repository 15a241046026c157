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
    /// The file; replaced when the snapshot is whole
    pub file: PathBuf,
    /// Only this partition
    #[arg(long)]
    pub partition: Option<String>,
}

/// `rolldock queue salvage`
#[derive(Debug, Args)]
pub struct SalvageArgs {
    /// A run's directory, or its queue's, which no process has open; it is not changed
    pub source: PathBuf,
    /// The file for the snapshot, from which `rolldock queue restore` makes a queue
    pub file: PathBuf,
}

/// `rolldock queue restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The snapshot
    pub file: PathBuf,
    /// A run's directory, made if absent, its queue's, or the URL of a server
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
    /// The file; JSONL goes to standard output if absent
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which partition
    #[arg(long, default_value = "train")]
    pub partition: String,
    /// Leave out rows whose payload is damaged, with a warning for each damage
    #[arg(long)]
    pub skip_damaged: bool,
}

/// Format of exported rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Columns; needs --output.
    Parquet,
    /// One JSON object per line.
    Jsonl,
    /// An Arrow IPC file; needs --output.
    Arrow,
}
