//! The identity of a prompt, and positions in the data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A permanent id of a row of a data set: a hash of the row's contents. The data set computes the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromptUid(pub u64);

impl fmt::Display for PromptUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A position in an endless stream of epochs. A checkpoint stores the position, so that a resumed run continues
/// at this position of the data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Number of epochs that are over.
    pub epoch: u32,
    /// Number of rows that were drawn in the present epoch, including rows that were skipped.
    pub offset: u64,
}
