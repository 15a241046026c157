//! The wire format of calls and rows, over HTTP and through shared memory: JSON for calls and answers, and
//! Arrow IPC streams ([`ipc`]) for rows. The bodies about storage units are in `units`.

mod errors;
pub(crate) mod ipc;
mod place;
mod units;

use std::time::Duration;

use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Amount, ClosedGroup, ExportFormat, KeyedRow, Put, QueueError, RowHandle, SamplePart, Sampler, Share,
    Stale, Take, Unfinished,
};

pub(crate) use errors::{ErrorBody, status};
pub(crate) use place::LocalAnswer;
pub use place::LocalPlace;
pub(crate) use units::{
    BlobsBody, PlacedAnswer, PlacedBody, PlacedColumns, PlacedColumnsBody, PlacedPart, PlacedStretch,
    PlacesAnswer, UnitRows, UnitsAnswer, UnitsOfAnswer, UnitsOfBody, UnknownAnswer,
};

/// The content type of rows.
pub(crate) const ARROW_STREAM: &str = "application/vnd.apache.arrow.stream";
/// The content type of a snapshot.
pub(crate) const SNAPSHOT_STREAM: &str = "application/vnd.rolldock.snapshot";
/// The header of a take's answer that names the lease.
pub(crate) const LEASE: &str = "rolldock-lease";
/// The header of an empty answer that tells whether no more rows can become ready.
pub(crate) const ENDED: &str = "rolldock-ended";

/// The header of a take's answer with the oldest policy version that counted as fresh.
pub(crate) const FRESH_FROM: &str = "rolldock-fresh-from";

/// The query of a put.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutQuery {
    pub(crate) group: String,
    /// The size of the group. If absent, it is the size that the partition declares, or else the number of
    /// rows of this put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group_size: Option<usize>,
    /// The sample to which the rows belong. With a sample, the size of the group counts samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<String>,
    /// Whether these rows complete the sample.
    #[serde(default)]
    pub(crate) sample_is_last: bool,
    #[serde(default)]
    pub(crate) policy_version: u64,
    #[serde(default)]
    pub(crate) priority: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The owner's record, if it is short. A long record is sent with the rows, in the schema's metadata
    /// under [`RECORD`](ipc::RECORD).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
    /// The time to wait for room, in milliseconds. If absent, the put does not wait.
    #[serde(default)]
    pub(crate) wait_ms: u64,
}

impl PutQuery {
    /// The query of a put that does not wait, without the owner's record. A put without a token gets one,
    /// which makes a repetition harmless.
    pub(crate) fn new(put: &Put) -> Self {
        Self {
            group: put.group.clone(),
            group_size: Some(put.group_size),
            sample: put.sample.as_ref().map(|part| part.uid.clone()),
            sample_is_last: put.sample.as_ref().is_some_and(|part| part.is_last),
            policy_version: put.policy_version,
            priority: put.priority,
            token: Some(put.token.clone().unwrap_or_else(ipc::fresh_token)),
            record: None,
            wait_ms: 0,
        }
    }

    /// Returns the put of rows without keys or tags. `record` is the record that was sent with the rows.
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
    /// Whether the client can fetch rows from units itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) placed: bool,
    /// The time to wait for rows, in milliseconds. If absent, the take does not wait.
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
                let reason = "expected exactly one of `groups`, `rows`, `tokens` and `only`".to_owned();
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

/// The query of a write of columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnsQuery {
    #[serde(default)]
    pub(crate) token: Option<String>,
    /// Whether the values replace existing values.
    #[serde(default)]
    pub(crate) overwrite: bool,
}

/// The body of a clear of some or all rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClearBody {
    #[serde(default)]
    pub(crate) rows: Vec<RowHandle>,
    /// Whether all existing rows are cleared, instead of the rows in `rows`.
    #[serde(default)]
    pub(crate) all: bool,
    /// Whether rows that were already freed are skipped. Otherwise they cause an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skip_gone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

/// The query of a status.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusQuery {
    /// Waits until the partition has changed after this revision.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    #[serde(default)]
    pub(crate) wait_ms: u64,
}

/// The body of a read of rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetBody {
    pub(crate) rows: Vec<RowHandle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) columns: Option<Vec<String>>,
    /// Whether the client can fetch rows from units itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) placed: bool,
}

/// The body of a search for keys. If the keys are absent, the search returns all keys.
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

/// The body of a call that ends a sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SampleBody {
    pub(crate) sample: String,
}

/// The body of a call that closes groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseBody {
    pub(crate) older_than_ms: u64,
    pub(crate) unfinished: Unfinished,
}

/// The groups that a call has closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClosedAnswer {
    pub(crate) groups: Vec<ClosedGroup>,
}

/// The body of a call that announces a policy version.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VersionBody {
    pub(crate) policy_version: u64,
}

/// The answer to a reset of a task: the number of rows that are ready for it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ResetAnswer {
    pub(crate) rows: usize,
}

/// Names of partitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NamesAnswer {
    pub(crate) partitions: Vec<String>,
}

/// The answer to a clear: the number of freed rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cleared {
    pub(crate) rows: usize,
}

/// The query of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotQuery {
    /// The partition. If absent, the snapshot contains all partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<String>,
}

/// The query of an export.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportQuery {
    pub(crate) format: ExportFormat,
    /// Whether rows whose payload is damaged are skipped. Otherwise they cause an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skip_damaged: bool,
}
