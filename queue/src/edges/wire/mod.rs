//! What calls and rows are outside of the process, over HTTP and through shared memory alike: JSON for calls
//! and answers, Arrow IPC streams ([`ipc`]) for rows.

mod errors;
pub(crate) mod ipc;

use std::time::Duration;

use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::units::Place;
use crate::{
    Amount, ClosedGroup, ColumnSpec, ExportFormat, KeyedRow, Put, QueueError, RowHandle, SamplePart, Sampler,
    Share, Stale, Take, Unfinished, UnitInspection,
};

pub(crate) use errors::{ErrorBody, status};

/// Rows are sent as this.
pub(crate) const ARROW_STREAM: &str = "application/vnd.apache.arrow.stream";
/// A snapshot is sent as this.
pub(crate) const SNAPSHOT_STREAM: &str = "application/vnd.rolldock.snapshot";
/// The header of a take's answer that names the lease.
pub(crate) const LEASE: &str = "rolldock-lease";
/// The header of an empty answer that says that there will be no more rows.
pub(crate) const ENDED: &str = "rolldock-ended";

/// The header of a take's answer that says from which policy version on groups were fresh.
pub(crate) const FRESH_FROM: &str = "rolldock-fresh-from";

/// Some columns of rows, on a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacedPart {
    pub(crate) unit: String,
    pub(crate) url: String,
    /// The rows' handles there.
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) columns: Vec<String>,
}

/// Rows that lie together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacedStretch {
    /// Each has other columns of the same rows.
    pub(crate) parts: Vec<PlacedPart>,
}

/// Columns of rows that lie on a unit already.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlacedColumns {
    pub(crate) place: Place,
    /// Size of the payload.
    pub(crate) bytes: u64,
}

/// Rows that follow each other, and the unit that their groups belong to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitRows {
    pub(crate) unit: String,
    pub(crate) rows: usize,
}

/// The query of a put.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutQuery {
    pub(crate) group: String,
    /// The group's size; if absent, the partition's declaration or else the number of rows of this put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group_size: Option<usize>,
    /// The sample that the rows belong to; the group's size counts samples then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<String>,
    /// Whether the sample is whole with these rows.
    #[serde(default)]
    pub(crate) sample_is_last: bool,
    #[serde(default)]
    pub(crate) policy_version: u64,
    #[serde(default)]
    pub(crate) priority: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// A short one; a long one comes with the rows, as the schema's metadata [`RECORD`](ipc::RECORD).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
    /// How long to wait for room; not at all if absent.
    #[serde(default)]
    pub(crate) wait_ms: u64,
}

impl PutQuery {
    /// The put of rows without keys or tags; `record` is what came with them.
    pub(crate) fn into_put(self, batches: Vec<RecordBatch>, record: Option<String>) -> Put {
        Put {
            batches,
            group_size: self.group_size.unwrap_or(0),
            group: self.group,
            sample: self.sample.map(|uid| SamplePart { uid, is_last: self.sample_is_last }),
            policy_version: self.policy_version,
            priority: self.priority,
            keys: Vec::new(),
            tags: Vec::new(),
            token: self.token,
            record: record.or(self.record),
        }
    }
}

/// The answer to a put.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PutAnswer {
    pub(crate) rows: Vec<RowHandle>,
}

/// The body of a take.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakeBody {
    pub(crate) task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<u64>,
    #[serde(default = "one")]
    pub(crate) at_least: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) columns: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) min_policy_version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_staleness: Option<u64>,
    /// Only these rows, instead of an amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<Vec<RowHandle>>,
    #[serde(default)]
    pub(crate) stale: Stale,
    #[serde(default, skip_serializing_if = "is_declared")]
    pub(crate) sampler: Sampler,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<Share>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// The client can fetch rows from units itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) placed: bool,
    /// How long to wait for rows; absent means not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wait_ms: Option<u64>,
}

fn is_declared(sampler: &Sampler) -> bool {
    *sampler == Sampler::Declared
}

fn one() -> usize {
    1
}

impl TakeBody {
    pub(crate) fn new(take: &Take, wait: Option<Duration>) -> Self {
        let (groups, rows, tokens) = match take.amount {
            _ if take.only.is_some() => (None, None, None),
            Amount::Groups(count) => (Some(count), None, None),
            Amount::Rows(count) => (None, Some(count), None),
            Amount::Tokens(budget) => (None, None, Some(budget)),
        };
        Self {
            task: take.task.clone(),
            groups,
            rows,
            tokens,
            at_least: take.at_least,
            columns: take.columns.clone(),
            min_policy_version: take.min_policy_version,
            max_staleness: take.max_staleness,
            only: take.only.clone(),
            stale: take.stale,
            sampler: take.sampler,
            share: take.share,
            holder: take.holder.clone(),
            placed: false,
            wait_ms: wait.map(|wait| wait.as_millis() as u64),
        }
    }

    pub(crate) fn into_take(self) -> Result<Take, QueueError> {
        let amount = match (self.groups, self.rows, self.tokens, &self.only) {
            (Some(count), None, None, None) => Amount::Groups(count),
            (None, Some(count), None, None) => Amount::Rows(count),
            (None, None, Some(budget), None) => Amount::Tokens(budget),
            (None, None, None, Some(rows)) => Amount::Rows(rows.len()),
            _ => {
                let reason = "expected one of groups, rows, tokens and only".to_owned();
                return Err(QueueError::BadRequest { reason });
            }
        };
        Ok(Take {
            task: self.task,
            amount,
            at_least: self.at_least,
            columns: self.columns,
            min_policy_version: self.min_policy_version,
            max_staleness: self.max_staleness,
            only: self.only,
            stale: self.stale,
            sampler: self.sampler,
            share: self.share,
            holder: self.holder,
            deadline: self.wait_ms.map(|wait| Instant::now() + Duration::from_millis(wait)),
        })
    }
}

/// The query of a writing of columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnsQuery {
    #[serde(default)]
    pub(crate) token: Option<String>,
    /// Whether the values replace those of rows that have the columns already.
    #[serde(default)]
    pub(crate) overwrite: bool,
}

/// The body of a clear: rows, or all of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClearBody {
    #[serde(default)]
    pub(crate) rows: Vec<RowHandle>,
    /// All existing rows, instead of given ones.
    #[serde(default)]
    pub(crate) all: bool,
    /// Rows that are gone already are no error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skip_gone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

/// The query of a status.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusQuery {
    /// Waits until something has changed after this revision.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    #[serde(default)]
    pub(crate) wait_ms: u64,
}

/// The body of a reading of rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetBody {
    pub(crate) rows: Vec<RowHandle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) columns: Option<Vec<String>>,
    /// The client can fetch rows from units itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) placed: bool,
}

/// Where rows lie, all of them on units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlacesAnswer {
    pub(crate) stretches: Vec<PlacedStretch>,
}

/// The body of a search for keys; all if absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FindBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<Vec<String>>,
}

/// The answer to a search for keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FoundAnswer {
    pub(crate) rows: Vec<KeyedRow>,
}

/// The body of a change of tags.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TagsBody {
    pub(crate) tags: Vec<(RowHandle, Value)>,
}

/// The body of the end of a sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SampleBody {
    pub(crate) sample: String,
}

/// The body of a closing of groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseBody {
    pub(crate) older_than_ms: u64,
    pub(crate) unfinished: Unfinished,
}

/// The answer to a closing of groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClosedAnswer {
    pub(crate) groups: Vec<ClosedGroup>,
}

/// The body of an announcement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VersionBody {
    pub(crate) policy_version: u64,
}

/// The answer to a reset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ResetAnswer {
    pub(crate) rows: usize,
}

/// Blobs of a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlobsBody {
    pub(crate) blobs: Vec<String>,
}

/// The blobs that no table refers to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnknownAnswer {
    pub(crate) unknown: Vec<String>,
}

/// All storage units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitsAnswer {
    pub(crate) units: Vec<UnitInspection>,
}

/// The body of a put whose rows lie on a unit.
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

/// The body of a question where columns of rows belong.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnitsOfBody {
    pub(crate) rows: Vec<RowHandle>,
}

/// The units for rows, this many at a time; none where columns go to the controller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnitsOfAnswer {
    pub(crate) units: Vec<UnitRows>,
}

/// The body of a writing of columns that lie on units.
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

/// Names of partitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NamesAnswer {
    pub(crate) partitions: Vec<String>,
}

/// The answer to a clear: how many rows were freed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cleared {
    pub(crate) rows: usize,
}

/// The query of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotQuery {
    /// The whole queue if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<String>,
}

/// The query of an export.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportQuery {
    pub(crate) format: ExportFormat,
    /// Leaves out rows whose payload is damaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skip_damaged: bool,
}
