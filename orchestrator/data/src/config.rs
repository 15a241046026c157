//! What a data set is made of and how it is drawn from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A data set: its files, and what becomes of their rows.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetConfig {
    /// `.jsonl` and `.parquet`, read one after the other.
    pub files: Vec<PathBuf>,
    /// Where rows keep what; `None` recognises the known schemas.
    pub columns: Option<Columns>,
    /// Maximum number of tokens of a prompt, chat template included.
    pub max_prompt_length: usize,
    /// What happens to longer ones.
    pub overlong_prompts: OverlongPrompts,
    /// What happens to rows with the prompt and the answer of an earlier one.
    pub duplicates: Duplicates,
    /// Whether every epoch has an order of its own.
    pub shuffle: bool,
    /// Seed of the order.
    pub seed: u64,
    /// Passes over the data; `None` goes on for ever.
    pub epochs: Option<u32>,
}

/// Which columns of a row are read, as dotted paths into the row.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// Text, or a list of chat messages.
    pub prompt: String,
    /// The ground truth.
    pub answer: String,
    /// Which scorer a routed reward uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What becomes of prompts above the length limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlongPrompts {
    /// They are left out and counted.
    #[default]
    Drop,
    /// Their first tokens are cut.
    TruncateLeft,
    /// Drawing one is an error.
    Error,
}

/// What becomes of exact duplicates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// They are rows of their own.
    #[default]
    Keep,
    /// Only the first one stays.
    Drop,
}
