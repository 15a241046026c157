//! The messages between client and server. Client and server come from the same build, so the protocol has
//! only one version.

use arrow_schema::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::array::ArrayPlace;
use crate::edges::wire::{PutQuery, TakeBody};
use crate::{PartitionSpec, QueueError, RowHandle, Unfinished};

/// The version of the protocol, which the server sends first. A client of another version ends the
/// connection.
pub(super) const VERSION: u32 = 1;

/// Rows of at most this size in bytes are sent through the socket.
pub(super) const INLINE_BYTES_MAX: usize = 64 << 10;

#[allow(clippy::large_enum_variant, reason = "nearly all are calls")]
/// The messages of a client. The number of a call is never used again, even on another connection of the
/// client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToServer {
    /// A request, which the server answers.
    Call { id: u64, ask: Ask },
    /// Cancels a call. The client no longer waits for the answer, and the server takes back the result of the
    /// call.
    Cancel { id: u64 },
    /// Gives back the region that the server lent for this call, or the regions that contain the rows of this
    /// call.
    Release { id: u64 },
}

/// The place of the rows of a call. The rows are one Arrow IPC stream.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum RowsPlace {
    /// In the frame's tail.
    Tail,
    /// At the start of the region that the server lent for an earlier call.
    Loan { id: u64, length: usize },
}

/// A lease that a call granted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LeaseName {
    pub(super) partition: String,
    /// The run of the server that granted the lease.
    pub(super) life: u64,
    pub(super) lease: u64,
    pub(super) member: u32,
    /// The number of the call that took the lease.
    pub(super) take: u64,
}

/// The request of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Declare(PartitionSpec),
    /// Requests a region for rows. The region is lent until its `Release`, or until the rows are put.
    Room {
        bytes: usize,
    },
    Put {
        partition: String,
        query: PutQuery,
        rows: RowsPlace,
    },
    WriteColumns {
        partition: String,
        rows: RowsPlace,
        token: String,
        /// Whether the values replace existing values.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overwrite: bool,
    },
    Get {
        partition: String,
        rows: Vec<RowHandle>,
        columns: Option<Vec<String>>,
    },
    Find {
        partition: String,
        keys: Option<Vec<String>>,
    },
    SetTags {
        partition: String,
        tags: Vec<(RowHandle, Value)>,
    },
    Reset {
        partition: String,
        task: String,
    },
    Announce {
        partition: String,
        policy_version: u64,
    },
    StatusAfter {
        partition: String,
        revision: u64,
        wait_ms: u64,
    },
    Names,
    Take {
        partition: String,
        take: TakeBody,
    },
    Ack(LeaseName),
    Nack(LeaseName),
    Renew(LeaseName),
    Clear {
        partition: String,
        rows: Vec<RowHandle>,
        token: String,
    },
    ClearAll {
        partition: String,
        token: String,
    },
    EndSample {
        partition: String,
        sample: String,
    },
    CloseGroups {
        partition: String,
        older_than_ms: u64,
        unfinished: Unfinished,
    },
    EndOfPuts {
        partition: String,
    },
    Status {
        partition: String,
    },
    Inspect,
}

/// The messages of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToClient {
    Hello {
        version: u32,
        life: u64,
    },
    /// Regions whose descriptors are sent with this frame, in this order.
    Regions(Vec<RegionNotice>),
    /// Regions that were freed. The client unmaps them.
    Forget(Vec<u64>),
    /// The result of a call.
    Answer {
        id: u64,
        body: Box<RawValue>,
    },
    /// The error of a call.
    Refusal {
        id: u64,
        error: QueueError,
    },
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct RegionNotice {
    pub(super) number: u64,
    pub(super) bytes: usize,
    /// Whether the client may write to the region.
    pub(super) writable: bool,
}

/// The answer to a call for room.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RoomAnswer {
    pub(super) region: u64,
}

/// The answer to a take.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TakeAnswer {
    Nothing {
        /// Whether no more rows can become ready.
        ended: bool,
    },
    Rows {
        life: u64,
        lease: u64,
        fresh_from: u64,
        parcel: Parcel,
    },
}

/// The places of the rows of a lease.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) schemas: Vec<Schema>,
    pub(super) batches: Vec<BatchPlace>,
    /// The length of the labels' stream, with which the tail starts.
    pub(super) labels_length: usize,
    /// The streams of the columns that are not in regions, in the order of the batches.
    pub(super) streams: Vec<StreamPlace>,
    /// The region in which the streams are; if absent, the streams are in the tail after the labels.
    pub(super) streams_region: Option<u64>,
}

impl Parcel {
    /// Whether any column is in a region.
    pub(super) fn has_regions(&self) -> bool {
        let mut columns = self.batches.iter().flat_map(|batch| &batch.columns);
        self.streams_region.is_some() || columns.any(Option::is_some)
    }

    /// The approximate number of bytes that the client has to read.
    pub(super) fn bytes(&self) -> usize {
        let places = self.batches.iter().flat_map(|batch| batch.columns.iter().flatten());
        let streams = self.streams.iter().map(|stream| stream.length);
        places.map(ArrayPlace::bytes).chain(streams).fold(0, usize::saturating_add)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BatchPlace {
    /// The index of the batch's schema in the schemas of the parcel.
    pub(super) schema: usize,
    pub(super) rows: usize,
    /// The columns in the schema's order; a column that is `None` is in the streams.
    pub(super) columns: Vec<Option<ArrayPlace>>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct StreamPlace {
    pub(super) at: usize,
    pub(super) length: usize,
}
