//! Rows by their names.

pub(crate) mod runs;

use serde::{Deserialize, Serialize};

pub(crate) use runs::{RECORD_ROWS_MAX, Runs};

/// Names one row for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowHandle {
    /// Used again when the row is freed.
    pub slot: u32,
    /// Never the same for two rows of a slot.
    pub generation: u32,
}
