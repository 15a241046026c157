//! The bodies of calls that concern storage units or the rows on them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::Place;
use crate::{ColumnSpec, RowHandle, UnitInspection};

/// Some columns of rows that are stored on a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacedPart {
    pub(crate) unit: String,
    pub(crate) url: String,
    /// The handles of the rows on the unit.
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) columns: Vec<String>,
}

/// Consecutive rows. Each stored batch that has some of their columns has all of these rows, one after the
/// other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacedStretch {
    /// The parts contain different columns of the same rows.
    pub(crate) parts: Vec<PlacedPart>,
}

/// Columns of rows that are already stored on a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlacedColumns {
    pub(crate) place: Place,
    /// The size of the payload in bytes.
    pub(crate) bytes: u64,
}

/// Consecutive rows, and the unit to which their groups belong.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitRows {
    pub(crate) unit: String,
    pub(crate) rows: usize,
}

/// The places of rows that are all stored on units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacesAnswer {
    pub(crate) stretches: Vec<PlacedStretch>,
}

/// Blobs of a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlobsBody {
    pub(crate) blobs: Vec<String>,
}

/// The blobs to which no table refers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnknownAnswer {
    pub(crate) unknown: Vec<String>,
}

/// All storage units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitsAnswer {
    pub(crate) units: Vec<UnitInspection>,
}

/// The body of a put whose rows are already on a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlacedBody {
    pub(crate) place: Place,
    pub(crate) columns: Vec<ColumnSpec>,
    #[serde(default)]
    pub(crate) lengths: Vec<u32>,
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) keys: Vec<String>,
    #[serde(default)]
    pub(crate) tags: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
}

/// The body of a request that asks which units should store new columns of the rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnitsOfBody {
    pub(crate) rows: Vec<RowHandle>,
}

/// For each run of consecutive rows, the unit that should store their columns. Empty if the columns must be
/// sent to the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitsOfAnswer {
    pub(crate) units: Vec<UnitRows>,
}

/// The body of a write of columns that are already on units.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlacedColumnsBody {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) columns: Vec<ColumnSpec>,
    pub(crate) pieces: Vec<PlacedColumns>,
}

/// The answer to a take of a client that fetches the rows itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacedAnswer {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) groups: Vec<String>,
    pub(crate) policy_versions: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<Value>,
    pub(crate) stretches: Vec<PlacedStretch>,
}
