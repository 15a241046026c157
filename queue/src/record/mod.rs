//! What the journal says: one record for each fact, and the values that records and tables share.
//!
//! A record is data alone. The [journal](crate::journal) frames and keeps it without knowing what it says;
//! the [tables](crate::partition) apply it.

mod facts;
mod payload;

use serde::{Deserialize, Serialize};

use crate::config::PartitionSpec;
use crate::row::{RowHandle, Runs, runs};
use crate::store::{ChunkId, Note};

pub(crate) use facts::{ClosedNames, Freed, Label, SamplesRecord};
pub use facts::{Dispositions, INCOMPLETE, SamplePart, Unfinished};
pub(crate) use payload::PayloadRecord;

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Record {
    /// A partition exists.
    Declare {
        spec: PartitionSpec,
        /// Above every row generation that was given out.
        #[serde(default)]
        generation_floor: u32,
        /// What became of rows that the journal says nothing of any more.
        #[serde(default)]
        dispositions: Dispositions,
    },
    /// Rows exist.
    Put(PutRecord),
    /// Rows have more columns.
    Columns {
        partition: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        payload: PayloadRecord,
        /// What they take of a capacity in bytes.
        #[serde(default, skip_serializing_if = "is_zero")]
        kib: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// What is still needed of a chunk lies in another one, in the order of these rows.
    Moved {
        partition: String,
        from: ChunkId,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        payload: PayloadRecord,
    },
    /// Rows have other tags.
    Tags { partition: String, tags: Vec<(RowHandle, serde_json::Value)> },
    /// A task is reset.
    Reset { partition: String, task: String },
    /// There is a newer policy version.
    Version { partition: String, policy_version: u64 },
    /// Put tokens that are remembered though their records are gone.
    Tokens { partition: String, tokens: Vec<(String, Runs)> },
    /// A task is done with rows.
    Ack {
        partition: String,
        task: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        /// The lease that the rows belonged to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<u64>,
    },
    /// A client holds rows; in the file of leases.
    Lease {
        partition: String,
        task: String,
        lease: u64,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
    },
    /// Leases gave their rows back; in the file of leases.
    LeasesEnd { partition: String, leases: Vec<u64> },
    /// Leases that were acked and whose records are gone: runs of numbers, the first of each and how many.
    Acked { partition: String, leases: Vec<(u64, u64)> },
    /// Rows are gone.
    Clear {
        partition: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        why: Freed,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// A sample has no more rows.
    EndSample { partition: String, sample: String },
    /// Groups have no more rows, whatever is there of them.
    Close { partition: String, groups: Vec<String>, unfinished: Unfinished },
    /// A group that is put by samples, before its rows.
    Samples { partition: String, samples: SamplesRecord },
    /// Names of groups that were closed.
    Closed {
        partition: String,
        #[serde(flatten)]
        names: ClosedNames,
    },
    /// There will be no more puts.
    End { partition: String },
    /// Owners' records whose puts are gone.
    Records { partition: String, records: Vec<String> },
    /// The oldest records are settled.
    Forget { partition: String, count: usize },
    /// A partition is gone with everything in it.
    Remove { partition: String, generation_floor: u32 },
    /// Above every row generation that partitions gave out which are gone.
    Floor { generation: u32 },
}

impl Record {
    /// What it says about payload.
    pub(crate) fn payload(&self) -> Option<&PayloadRecord> {
        match self {
            Self::Put(put) if put.rows.is_empty() => None,
            Self::Put(put) => Some(&put.payload),
            Self::Columns { payload, .. } | Self::Moved { payload, .. } => Some(payload),
            _ => None,
        }
    }

    pub(crate) fn payload_mut(&mut self) -> Option<&mut PayloadRecord> {
        match self {
            Self::Put(put) if put.rows.is_empty() => None,
            Self::Put(put) => Some(&mut put.payload),
            Self::Columns { payload, .. } | Self::Moved { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The record with the note of its payload.
    pub(crate) fn at(mut self, note: Option<Note>) -> Self {
        if let Some(payload) = self.payload_mut() {
            payload.note = note;
        }
        self
    }
}

/// Rows of one put; none where a group goes on though all its rows so far are gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PutRecord {
    pub(crate) partition: String,
    pub(crate) group: String,
    pub(crate) group_size: usize,
    /// Rows of the group that were freed before the journal was rewritten.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) group_gone: usize,
    /// Whether the group came in several puts, though its rows lie together by now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) in_parts: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<SamplePart>,
    pub(crate) policy_version: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) priority: i64,
    /// Tokens of each row; 0 each if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lengths: Vec<u32>,
    /// What the rows take of a capacity in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) kib: u32,
    /// Keys and tags of each row; none if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) labels: Vec<Label>,
    #[serde(with = "runs")]
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) payload: PayloadRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) words: Option<String>,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
