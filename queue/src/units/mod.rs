//! Payload on other machines.
//!
//! A **storage unit** is a queue server of its own whose rows only the controller knows: the controller keeps
//! the table (which task may take which rows) and, for each chunk, its [`Place`]: the unit and the handles
//! of its rows there. So a unit brings the durability, the checksums, the compaction and the wire format of
//! any queue, and clients read and write it with the same calls.
//!
//! ```text
//!   client --- put payload ---> unit          (chosen by rendezvous hashing of the group)
//!   client --- put, placed ---> controller    (metadata only; columns that come later in the same way)
//!   client --- take ----------> controller    (lease and places)
//!   client --- get -----------> units
//! ```
//!
//! Clients that know nothing of units use the controller as ever; it fetches and carries for them.
//!
//! # Invariants
//! - Rows on a dead unit are never handed out. If the unit keeps its rows on disk they are **away** until it
//!   is back; otherwise they are freed at once with the disposition `lost`, and their whole groups with them.
//! - A unit's name is the identity of what it holds: one that lost its rows comes back under another.
//! - A blob that no table knows is removed by its unit: a put that failed half-way leaves nothing.
//! - A unit is asked before it counts as dead: it is dead when it does not answer, not when it is silent.
//!
//! # Deliberately absent
//! Replication: that is the business of an existing distributed store behind [`Store`](crate::store::Store).

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
/// The task of [`BLOBS`] that never takes anything: rows go when the controller clears them.
const CONTROLLER: &str = "controller";
/// A unit that has been silent for this time is probed.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How long the controller waits for a unit that keeps its rows in memory and that only the journal or a put
/// names: the units of a restarted controller have yet to register.
const RETURN_MAX: Duration = Duration::from_secs(10);

/// A blob that the controller does not know after this time was never put.
pub(crate) const ORPHAN_AGE: Duration = Duration::from_secs(600);

/// What a unit's partition is declared as.
pub(crate) fn blobs_spec() -> PartitionSpec {
    PartitionSpec::new(BLOBS, [CONTROLLER], u32::MAX as usize)
}

/// Where the rows of a chunk lie that are on a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) unit: String,
    /// Its group there.
    pub(crate) blob: String,
    /// Its rows there.
    pub(crate) rows: Vec<RowHandle>,
    /// Whether they outlive the unit's process.
    #[serde(default = "yes")]
    pub(crate) is_durable: bool,
}

impl Place {
    /// The note of rows that lie there.
    pub(crate) fn into_note(self) -> Note {
        Note::new(UNITS, self)
    }
}

/// A unit, as its controller speaks to it: rows in its partition [`BLOBS`]. Calls fail at once where it does
/// not answer.
pub(crate) trait UnitClient: std::fmt::Debug + Send + Sync {
    /// Puts a blob.
    fn put(&self, blob: Put) -> BoxFuture<'_, Result<Vec<RowHandle>, QueueError>>;

    /// Some columns of rows, all if absent.
    fn get<'a>(
        &'a self,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>>;

    /// Frees the existing rows among these.
    fn clear<'a>(&'a self, rows: &'a [RowHandle]) -> BoxFuture<'a, Result<(), QueueError>>;

    /// Whether it answers. Waits as long as it takes.
    fn is_there(&self) -> BoxFuture<'_, bool>;
}

/// Makes the client of a unit at an address. Needs a tokio runtime.
pub(crate) type Connect = Box<dyn Fn(&str) -> Result<Arc<dyn UnitClient>, QueueError> + Send + Sync>;

fn yes() -> bool {
    true
}

/// A unit that gets rows.
pub(crate) struct Chosen {
    pub(crate) unit: String,
    pub(crate) client: Arc<dyn UnitClient>,
    pub(crate) is_durable: bool,
}

/// A unit as it announces itself, again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitCard {
    /// The identity of what it holds.
    pub unit: String,
    /// Where clients reach it.
    pub url: String,
    /// Whether its rows outlive its process.
    pub is_durable: bool,
}

/// What a unit is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitStatus {
    /// It takes rows and gives them.
    Live,
    /// It gives rows and takes none; what it has moves to others. It may leave when it has none.
    Draining,
    /// It is silent.
    Dead,
}

/// A unit for people and clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitInspection {
    /// The card with which it registered.
    #[serde(flatten)]
    pub card: UnitCard,
    /// What it is.
    pub status: UnitStatus,
    /// Chunks that lie there.
    pub chunks: usize,
}

/// Weight of a unit for a key: the greatest has it. When a unit leaves, only its own keys go elsewhere.
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
