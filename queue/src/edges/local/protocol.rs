//! The messages of both sides. Client and server are of one build: there is no other version to understand.

use arrow_schema::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::array::ArrayPlace;
use crate::edges::wire::{PutQuery, TakeBody};
use crate::{PartitionSpec, QueueError, RowHandle, Unfinished};

/// The server sends it first; a client of another version ends the connection.
pub(super) const VERSION: u32 = 1;

/// Rows up to this size go through the socket.
pub(super) const INLINE_BYTES_MAX: usize = 64 << 10;

#[allow(clippy::large_enum_variant, reason = "nearly all are calls")]
/// What a client sends. Numbers of calls are never used again, also not on another connection of the same
/// client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToServer {
    /// Wants an answer.
    Call { id: u64, ask: Ask },
    /// Does not wait for its answer any more: whatever it gave is given back.
    Cancel { id: u64 },
    /// The region that this call lent, or those that its rows lie in, are not used any more.
    Release { id: u64 },
}

/// Where rows are that come with a call: one Arrow IPC stream.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum RowsPlace {
    /// In the frame's tail.
    Tail,
    /// In the region that an earlier call lent, from its start.
    Loan { id: u64, length: usize },
}

/// A lease that a call gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LeaseName {
    pub(super) partition: String,
    /// The life of the server that gave the lease.
    pub(super) life: u64,
    pub(super) lease: u64,
    pub(super) member: u32,
    /// The call.
    pub(super) take: u64,
}

/// What a call asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Declare(PartitionSpec),
    /// A region to put rows into; it is lent until its `Release`, or until they are put.
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

/// What a server sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToClient {
    Hello {
        version: u32,
        life: u64,
    },
    /// Regions whose descriptors come with this frame, in this order.
    Regions(Vec<RegionNotice>),
    /// Regions that are gone: the client unmaps them.
    Forget(Vec<u64>),
    /// What a call gave.
    Answer {
        id: u64,
        body: Box<RawValue>,
    },
    /// Why a call gave nothing.
    Refusal {
        id: u64,
        error: QueueError,
    },
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct RegionNotice {
    pub(super) number: u64,
    pub(super) bytes: usize,
    /// Lent to be written to.
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
        /// Nothing ever will be ready.
        ended: bool,
    },
    Rows {
        life: u64,
        lease: u64,
        fresh_from: u64,
        parcel: Parcel,
    },
}

/// Where the rows of a lease are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) schemas: Vec<Schema>,
    pub(super) batches: Vec<BatchPlace>,
    /// The labels' stream, at the tail's start.
    pub(super) labels_length: usize,
    /// The columns that are not in regions, one batch of them after the other.
    pub(super) streams: Vec<StreamPlace>,
    /// Where the streams are: in this region, or in the tail behind the labels.
    pub(super) streams_region: Option<u64>,
}

impl Parcel {
    /// Whether any of it is in regions.
    pub(super) fn has_regions(&self) -> bool {
        let mut columns = self.batches.iter().flat_map(|batch| &batch.columns);
        self.streams_region.is_some() || columns.any(Option::is_some)
    }

    /// About what there is to be read.
    pub(super) fn bytes(&self) -> usize {
        let places = self.batches.iter().flat_map(|batch| batch.columns.iter().flatten());
        let streams = self.streams.iter().map(|stream| stream.length);
        places.map(ArrayPlace::bytes).chain(streams).fold(0, usize::saturating_add)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BatchPlace {
    /// Which of the schemas.
    pub(super) schema: usize,
    pub(super) rows: usize,
    /// In the schema's order; `None` comes with the streams.
    pub(super) columns: Vec<Option<ArrayPlace>>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct StreamPlace {
    pub(super) at: usize,
    pub(super) length: usize,
}
