//! Records: the journal's facts, and the values that records and tables share.
//!
//! A record is plain data. The [journal](crate::journal) frames and stores records without interpreting them;
//! the [tables](crate::partition) apply them.

mod facts;
mod payload;
mod tally;

use serde::{Deserialize, Serialize};

use crate::config::{ColumnSpec, PartitionSpec};
use crate::row::{RowHandle, Runs, runs};
use crate::store::{ChunkId, Note};

pub(crate) use facts::{ClosedNames, Freed, Label, SamplesRecord};
pub use facts::{Dispositions, INCOMPLETE, SamplePart, Unfinished};
pub(crate) use payload::PayloadRecord;
pub(crate) use tally::Tally;

/// One fact in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Record {
    /// A partition was declared.
    Declare {
        spec: PartitionSpec,
        /// A number greater than every row generation in use so far.
        #[serde(default)]
        generation_floor: u32,
        /// The dispositions of rows whose records are no longer in the journal.
        #[serde(default)]
        dispositions: Dispositions,
    },
    /// Columns got their types, from their first put.
    Types { partition: String, columns: Vec<ColumnSpec> },
    /// Rows were put.
    Put(PutRecord),
    /// Rows got more columns, or new values of columns.
    Columns {
        partition: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        payload: PayloadRecord,
        /// The part of the partition's capacity in bytes that the columns use, in KiB.
        #[serde(default, skip_serializing_if = "is_zero")]
        kib: u32,
        /// Whether the values replace existing values.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overwrite: bool,
        /// The new number of tokens of each row. If empty, the numbers do not change.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lengths: Vec<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// The live rows of a chunk were moved to another chunk, in the order of `rows`.
    Moved {
        partition: String,
        from: ChunkId,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        payload: PayloadRecord,
    },
    /// The tags of rows were replaced.
    Tags { partition: String, tags: Vec<(RowHandle, serde_json::Value)> },
    /// A task was reset.
    Reset { partition: String, task: String },
    /// A newer policy version was announced.
    Version { partition: String, policy_version: u64 },
    /// The tokens of changes, which are remembered after the records of these changes were removed.
    Tokens { partition: String, tokens: Vec<(String, Runs)> },
    /// A task acked rows.
    Ack {
        partition: String,
        task: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        /// The lease of the rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<u64>,
    },
    /// A client holds rows. This record is in the lease file.
    Lease {
        partition: String,
        task: String,
        lease: u64,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        /// The names of the clients that hold the lease.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holders: Vec<String>,
    },
    /// Leases ended without an ack of their rows. This record is in the lease file.
    LeasesEnd { partition: String, leases: Vec<u64> },
    /// Acked leases whose records were removed, as runs of numbers: the first number, and the length of the
    /// run.
    Acked { partition: String, leases: Vec<(u64, u64)> },
    /// Rows were freed.
    Clear {
        partition: String,
        #[serde(with = "runs")]
        rows: Vec<RowHandle>,
        why: Freed,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// A sample gets no more rows.
    EndSample { partition: String, sample: String },
    /// Groups get no more rows, even if some are missing.
    Close { partition: String, groups: Vec<String>, unfinished: Unfinished },
    /// The samples of a group that counts samples. This record precedes the rows of the group.
    Samples { partition: String, samples: SamplesRecord },
    /// The names of closed groups.
    Closed {
        partition: String,
        #[serde(flatten)]
        names: ClosedNames,
    },
    /// The puts have ended.
    End { partition: String },
    /// The owner's records of earlier puts, even if the rows of these puts were freed.
    Records { partition: String, records: Vec<String> },
    /// The owner's oldest `count` records were forgotten.
    Forget { partition: String, count: usize },
    /// A partition was removed with all of its contents.
    Remove { partition: String, generation_floor: u32 },
    /// The first record of a rewritten journal.
    Floor {
        /// A number above every row generation of the removed partitions.
        generation: u32,
        /// How often the journal was rewritten.
        #[serde(default, skip_serializing_if = "is_zero")]
        rewrites: u64,
        /// The newest file of the store. No other record of a rewritten journal names this file if all of its rows
        /// were freed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<u64>,
    },
}

impl Record {
    /// The payload of the record, if it has one.
    pub(crate) fn payload(&self) -> Option<&PayloadRecord> {
        match self {
            Self::Put(put) if put.rows.is_empty() => None,
            Self::Put(put) => Some(&put.payload),
            Self::Columns { payload, .. } | Self::Moved { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Returns only the payload of the record, if it has one.
    pub(crate) fn into_payload(self) -> Option<PayloadRecord> {
        match self {
            Self::Put(put) if put.rows.is_empty() => None,
            Self::Put(put) => Some(put.payload),
            Self::Columns { payload, .. } | Self::Moved { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The partition of the record, if it has one.
    pub(crate) fn partition(&self) -> Option<&str> {
        match self {
            Self::Floor { .. } => None,
            Self::Declare { spec, .. } => Some(&spec.name),
            Self::Put(put) => Some(&put.partition),
            Self::Types { partition, .. }
            | Self::Columns { partition, .. }
            | Self::Moved { partition, .. }
            | Self::Tags { partition, .. }
            | Self::Reset { partition, .. }
            | Self::Version { partition, .. }
            | Self::Tokens { partition, .. }
            | Self::Ack { partition, .. }
            | Self::Lease { partition, .. }
            | Self::LeasesEnd { partition, .. }
            | Self::Acked { partition, .. }
            | Self::Clear { partition, .. }
            | Self::EndSample { partition, .. }
            | Self::Close { partition, .. }
            | Self::Samples { partition, .. }
            | Self::Closed { partition, .. }
            | Self::End { partition }
            | Self::Records { partition, .. }
            | Self::Forget { partition, .. }
            | Self::Remove { partition, .. } => Some(partition),
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

    /// Whether the record adds data to the queue. Such records are refused while the disk is full. The other
    /// records are accepted, because they drain the queue.
    pub(crate) fn adds(&self) -> bool {
        match self {
            Self::Declare { .. }
            | Self::Types { .. }
            | Self::Put(_)
            | Self::Columns { .. }
            | Self::Moved { .. }
            | Self::Tags { .. }
            | Self::Tokens { .. }
            | Self::Samples { .. }
            | Self::Closed { .. }
            | Self::Records { .. }
            | Self::Acked { .. }
            | Self::Floor { .. } => true,
            Self::Reset { .. }
            | Self::Version { .. }
            | Self::Ack { .. }
            | Self::Lease { .. }
            | Self::LeasesEnd { .. }
            | Self::Clear { .. }
            | Self::EndSample { .. }
            | Self::Close { .. }
            | Self::End { .. }
            | Self::Forget { .. }
            | Self::Remove { .. } => false,
        }
    }

    /// Sets the note of the record's payload.
    pub(crate) fn at(mut self, note: Option<Note>) -> Self {
        if let Some(payload) = self.payload_mut() {
            payload.note = note;
        }
        self
    }
}

/// The rows of one put. A record without rows describes an open group whose rows so far were all freed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PutRecord {
    pub(crate) partition: String,
    pub(crate) group: String,
    pub(crate) group_size: usize,
    /// The number of rows of the group that were freed before the journal was rewritten.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) group_gone: usize,
    /// Whether the group has several puts. If the field is absent, the group has several puts exactly when
    /// this record lacks some of the group's rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_parts: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<SamplePart>,
    pub(crate) policy_version: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) priority: i64,
    /// The number of tokens of each row. If empty, each row has 0 tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lengths: Vec<u32>,
    /// The part of the partition's capacity in bytes that the rows use, in KiB.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) kib: u32,
    /// The key and tags of each row. If empty, no row has a key or tags.
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
