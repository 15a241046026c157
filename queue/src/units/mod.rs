//! Payload on other machines.
//!
//! A **storage unit** is a separate queue server that holds payload for another queue, its controller. The
//! controller keeps the table (which task may take which rows) and, for each chunk, its [`Place`]: the unit
//! and the handles of the chunk's rows on the unit. A unit therefore has the durability, the checksums, the
//! compaction and the wire format of any queue. Clients read and write a unit with the calls of any queue.
//!
//! ```text
//!   client --- put payload ---> unit          (chosen by rendezvous hashing of the group)
//!   client --- put, placed ---> controller    (metadata only; later columns are put likewise)
//!   client --- take ----------> controller    (lease and places)
//!   client --- get -----------> units
//! ```
//!
//! Clients that do not support units use the controller like any queue: the controller puts their rows on
//! units, and gets the rows from the units.
//!
//! # Invariants
//! - Rows on a dead unit are never delivered. If the unit keeps its rows on disk, the rows are **away** until
//!   the unit returns. Otherwise, the whole groups of the rows are freed immediately with the disposition
//!   `lost`.
//! - A unit's name identifies its contents: a unit that lost its rows returns under another name.
//! - A unit removes blobs to which no table refers, so a put that failed half-way leaves nothing behind.
//! - The controller calls a silent unit first. The unit counts as dead only if it does not answer.
//!
//! # Deliberately absent
//! There is no replication: an existing distributed store behind [`Store`](crate::store::Store) can provide
//! it.

mod members;
mod store;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::put::Put;
use crate::row::RowHandle;
use crate::store::{Note, UNITS};

pub(crate) use members::Units;

/// A unit keeps all rows in this partition.
pub(crate) const BLOBS: &str = "_blobs";
/// The only task of [`BLOBS`]. The task never takes rows: rows are freed when the controller clears them.
const CONTROLLER: &str = "controller";
/// The controller calls a unit that has been silent for longer than this, to find out whether it answers.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// After a restart of the controller, its units count as dead until they register. A unit that keeps its rows
/// in memory must register within this time, counted from the restart or from its last announcement.
/// Otherwise its rows are lost.
const RETURN_MAX: Duration = Duration::from_secs(10);

/// A blob that the controller does not know at this age is removed: its put has failed.
pub(crate) const ORPHAN_AGE: Duration = Duration::from_secs(600);

/// The specification of a unit's partition.
pub(crate) fn blobs_spec() -> PartitionSpec {
    PartitionSpec::new(BLOBS, [CONTROLLER], u32::MAX as usize)
}

/// The place of a chunk on a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) unit: String,
    /// The chunk's group on the unit.
    pub(crate) blob: String,
    /// The handles of the chunk's rows on the unit.
    pub(crate) rows: Vec<RowHandle>,
    /// Whether the rows outlive the unit's process.
    #[serde(default = "yes")]
    pub(crate) is_durable: bool,
}

impl Place {
    /// The note of a chunk at this place.
    pub(crate) fn into_note(self) -> Note {
        Note::new(UNITS, self)
    }
}

/// A unit's client in its controller, for rows in the unit's partition [`BLOBS`]. Calls fail immediately if
/// the unit does not answer.
pub(crate) trait UnitClient: std::fmt::Debug + Send + Sync {
    /// Puts a blob.
    fn put(&self, blob: Put) -> BoxFuture<'_, Result<Vec<RowHandle>, QueueError>>;

    /// Gets columns of rows, or all columns if `columns` is absent.
    fn get<'a>(
        &'a self,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>>;

    /// Frees the given rows that still exist.
    fn clear<'a>(&'a self, rows: &'a [RowHandle]) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Whether the unit answers. The call itself has no time limit.
    fn is_there(&self) -> BoxFuture<'_, bool>;
}

/// Makes the client of a unit at an address. Needs a tokio runtime.
pub(crate) type Connect = Box<dyn Fn(&str) -> Result<Arc<dyn UnitClient>, QueueError> + Send + Sync>;

fn yes() -> bool {
    true
}

/// The unit that gets certain rows.
pub(crate) struct Chosen {
    pub(crate) unit: String,
    pub(crate) client: Arc<dyn UnitClient>,
    pub(crate) is_durable: bool,
}

/// The card with which a unit announces itself periodically.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitCard {
    /// The unit's name, which identifies its contents.
    pub unit: String,
    /// The address at which clients reach the unit.
    pub url: String,
    /// Whether the unit's rows outlive its process.
    pub is_durable: bool,
}

/// The state of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitStatus {
    /// The unit accepts and delivers rows.
    Live,
    /// The unit delivers rows but accepts none. Its rows move to other units, and it may leave when it has no
    /// rows left.
    Draining,
    /// The unit did not answer, and has not returned.
    Dead,
}

/// A unit as people and clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitInspection {
    /// The card with which the unit registered.
    #[serde(flatten)]
    pub card: UnitCard,
    /// The state of the unit.
    pub status: UnitStatus,
    /// The number of chunks on the unit.
    pub chunks: usize,
}

/// The weight of a unit for a key: the unit with the greatest weight gets the key. When a unit leaves, only
/// its own keys move to other units.
pub(crate) fn weight(unit: &str, key: &str) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), xxh3_64_with_seed(unit.as_bytes(), 0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn chosen(units: &[&str], key: &str) -> String {
        units.iter().max_by_key(|unit| weight(unit, key)).map(|unit| (*unit).to_owned()).unwrap()
    }

    #[test]
    fn a_unit_that_leaves_moves_only_its_own_keys_and_all_get_their_share() {
        let keys: Vec<String> = (0..3000).map(|key| format!("group-{key}")).collect();
        let (all, fewer) = (["a", "b", "c"], ["a", "c"]);
        let mut counts = BTreeMap::new();
        for key in &keys {
            let before = chosen(&all, key);
            if before != "b" {
                assert_eq!(chosen(&fewer, key), before);
            }
            *counts.entry(before).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
