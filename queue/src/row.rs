//! The handles of rows.

pub(crate) mod runs;

use serde::{Deserialize, Serialize};

pub(crate) use runs::{RECORD_ROWS_MAX, Runs};

/// A handle that names one row permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowHandle {
    /// The slot, which is reused after the row is freed.
    pub slot: u32,
    /// The generation, which differs between any two rows of one slot.
    pub generation: u32,
}
