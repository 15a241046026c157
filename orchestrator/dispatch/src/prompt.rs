//! The identity of a prompt, and positions in the data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A permanent id of a data-set row: a hash of its contents, which the data set computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromptUid(pub u64);

impl fmt::Display for PromptUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A position in an endless stream of epochs. A checkpoint stores it to continue a data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Number of epochs that are over.
    pub epoch: u32,
    /// Number of rows of this epoch that were drawn, including skipped ones.
    pub offset: u64,
}
