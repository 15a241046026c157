//! Which prompt a dispatch is about.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a data-set row for ever: a hash of what the row says, which the data set computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromptUid(pub u64);

impl fmt::Display for PromptUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A place in an endless stream of epochs; what a checkpoint keeps of a data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Epochs that are over.
    pub epoch: u32,
    /// Rows of this epoch that were drawn, skipped ones included.
    pub offset: u64,
}
