//! Configuration of a data set and of its draws.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Configuration of a data set: its files, and how their rows are used.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetConfig {
    /// JSONL files (`.jsonl`, `.ndjson`) and `.parquet` files, which are read in order.
    pub files: Vec<PathBuf>,
    /// The columns that are read. With `None` the known schemas are recognised.
    pub columns: Option<Columns>,
    /// Maximum number of tokens of a prompt, including the chat template.
    pub max_prompt_length: usize,
    /// What happens to longer prompts.
    pub overlong_prompts: OverlongPrompts,
    /// What happens to rows with the prompt and the answer of an earlier row.
    pub duplicates: Duplicates,
    /// Whether every epoch has its own random order.
    pub shuffle: bool,
    /// Seed of the order.
    pub seed: u64,
    /// Number of passes over the data; unbounded if `None`.
    pub epochs: Option<u32>,
}

/// The columns of a row that are read, as dotted paths.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// Text, or a list of chat messages.
    pub prompt: String,
    /// The ground truth.
    pub answer: String,
    /// The source of the row, by which a routed reward chooses its scorer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What happens to prompts above the length limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlongPrompts {
    /// Such prompts are dropped and counted.
    #[default]
    Drop,
    /// Tokens are cut off at the start of such prompts.
    TruncateLeft,
    /// Drawing such a prompt is an error.
    Error,
}

/// What happens to exact duplicates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// Every duplicate is kept as a row of its own.
    #[default]
    Keep,
    /// Only the first of equal rows is kept.
    Drop,
}
