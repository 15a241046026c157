//! The arguments of `rolldock data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::examples;
use super::numbers::whole;

/// `rolldock data`
#[derive(Debug, Args)]
pub struct DataArgs {
    /// The command.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// The commands of `rolldock data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make the data files of a recipe from downloaded files: no duplicates, no prompt in both splits
    #[command(after_help = examples::DATA_PREPARE)]
    Prepare(PrepareArgs),
}

/// `rolldock data prepare`
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// The recipe; the files of its data.train and data.validation are made
    pub recipe: PathBuf,
    /// A downloaded file for training, .parquet or .jsonl (repeatable)
    #[arg(long, value_name = "FILE", required = true)]
    pub train: Vec<PathBuf>,
    /// A downloaded file for validation, whose prompts are left out of training (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "validation_prompts")]
    pub validation: Vec<PathBuf>,
    /// Sets this many prompts of the training files apart for validation
    #[arg(long, value_name = "N", value_parser = whole(0..=usize::MAX))]
    pub validation_prompts: Option<usize>,
    /// Overrides one key of the recipe, for example data.train=mine.jsonl (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Replaces files that exist
    #[arg(long)]
    pub force: bool,
}
