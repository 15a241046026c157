//! The names of rows.

pub(crate) mod runs;

use serde::{Deserialize, Serialize};

pub(crate) use runs::{RECORD_ROWS_MAX, Runs};

/// Names one row permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowHandle {
    /// The slot, which is reused when the row is freed.
    pub slot: u32,
    /// The generation, which differs for any two rows of a slot.
    pub generation: u32,
}
