//! The control plane of a partition: rows, groups, readiness and leases, as plain data behind one lock.
//!
//! This module neither waits nor copies payload, and only a [cut](self::cuts) does I/O (it opens segments).
//! Every operation touches only the rows that it concerns: ready rows are kept in ordered sets, never
//! searched for.

mod check;
mod choose;
mod chunks;
mod closing;
mod columns;
mod cuts;
mod dropping;
mod fates;
mod groups;
mod index;
mod keys;
mod labels;
mod leases;
mod leasing;
mod leaving;
mod live;
mod puts;
mod ready;
mod records;
mod samples;
mod share;
mod slots;
#[cfg(test)]
mod tests;
mod tokens;
mod under_way;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{ColumnSpec, PartitionSpec};
use crate::error::QueueError;
use crate::record::{Dispositions, Freed, Label};
use crate::row::RowHandle;
use crate::store::ChunkId;

pub(crate) use choose::Chosen;
use chunks::Chunks;
pub(crate) use chunks::Move;
use columns::Columns;
use cuts::Cuts;
use fates::Fates;
pub(crate) use groups::Group;
use index::GroupIndex;
use keys::Keys;
pub(crate) use leases::BeginAck;
use leases::Leases;
pub(crate) use live::lease_records;
pub(super) use live::{ACK_ROWS, SLICE_ROWS, Slice, ack_records, declaration, rest, weight};
pub(crate) use ready::Progress;
use ready::{Ready, SingleRows};
use records::OwnerRecords;
use samples::SampleIndex;
use share::Shares;
use slots::Slots;
pub(crate) use slots::{GENERATION_MAX, SLOTS_AT_REST, SLOTS_MAX};
use tokens::Tokens;
use under_way::PutsUnderWay;

/// Where some columns of a row lie.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) chunk: ChunkId,
    pub(crate) row: u32,
    /// Bytes of payload; 0 where they are not counted.
    bytes: u32,
    pub(crate) columns: Arc<[String]>,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: u64,
    /// Its place in the group.
    place: usize,
    /// The number of its tokens.
    pub(crate) length: u32,
    /// What the row takes of a capacity in bytes.
    pub(crate) kib: u32,
    /// Number of parts that are out of reach.
    away: u32,
    pub(crate) label: Option<Box<Label>>,
    /// The parts of the row, one for each write to it. Most rows have only that of their put, which takes no
    /// memory of its own.
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) progress: SmallVec<[Progress; 1]>,
}

/// What is reserved for a put that is not durable yet.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) kib: u32,
    group: String,
    sample: Option<String>,
    token: Option<String>,
    keys: Vec<String>,
    /// Columns that are new with this put.
    columns: Vec<ColumnSpec>,
}

/// The kind of a put, before anything is written.
#[derive(Debug)]
pub(crate) enum Admission {
    /// A new put.
    Fresh,
    /// A repetition of a put in progress.
    UnderWay,
    /// A repetition of a put that made these rows.
    Known(Vec<RowHandle>),
}

/// The size of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    /// 0 where bytes are not counted.
    pub(crate) kib: u32,
}

/// What the table has released.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// The room that is free now.
    pub(crate) size: Size,
    /// Chunks that no row needs any more.
    pub(crate) chunks: Vec<ChunkId>,
    /// Chunks that keep more memory than their remaining rows need.
    pub(crate) sparse: Vec<ChunkId>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) spec: PartitionSpec,
    columns: Columns,
    slots: Slots,
    pub(crate) groups: BTreeMap<u64, Group>,
    /// Existing groups by name; the latest group of a name.
    open_groups: HashMap<String, u64>,
    samples: SampleIndex,
    next_group: u64,
    ready: Vec<Ready>,
    leases: Leases,
    shares: Shares,
    chunks: Chunks,
    /// The cuts that are being read.
    cuts: Cuts,
    /// Groups that may be dropped; counted from the first time that room has to be made.
    droppable: Option<GroupIndex>,
    tokens: Tokens,
    puts: PutsUnderWay,
    records: OwnerRecords,
    keys: Keys,
    /// The newest policy version that a put had or that was announced.
    pub(crate) policy_version: u64,
    /// Counts changes.
    pub(crate) revision: u64,
    pub(crate) dispositions: Dispositions,
    pub(crate) fates: Fates,
    pub(crate) rows_live: usize,
    pub(crate) kib_live: u32,
    /// Whether this process takes no more puts.
    pub(crate) closed: bool,
    /// Whether the journal has the end of the puts.
    pub(crate) ended: bool,
}

impl Table {
    pub(crate) fn new(spec: PartitionSpec) -> Self {
        Self {
            columns: Columns::new(&spec),
            slots: Slots::default(),
            groups: BTreeMap::new(),
            open_groups: HashMap::new(),
            samples: SampleIndex::default(),
            next_group: 0,
            ready: spec.tasks.iter().map(|_| Ready::default()).collect(),
            leases: Leases::default(),
            shares: Shares::default(),
            chunks: Chunks::default(),
            cuts: Cuts::default(),
            droppable: None,
            tokens: Tokens::default(),
            puts: PutsUnderWay::default(),
            records: OwnerRecords::default(),
            keys: Keys::default(),
            policy_version: 0,
            revision: 0,
            fates: Fates::default(),
            dispositions: Dispositions::default(),
            rows_live: 0,
            kib_live: 0,
            closed: false,
            ended: false,
            spec,
        }
    }

    pub(crate) fn task(&self, name: &str) -> Result<usize, QueueError> {
        let found = self.spec.tasks.iter().position(|task| task.name == name);
        found.ok_or_else(|| QueueError::UnknownTask {
            partition: self.spec.name.clone(),
            task: name.to_owned(),
            tasks: self.spec.tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    pub(crate) fn row(&self, handle: RowHandle) -> Result<&Row, QueueError> {
        self.slots.row(handle).ok_or_else(|| stale(handle))
    }

    fn row_mut(&mut self, handle: RowHandle) -> Result<&mut Row, QueueError> {
        self.slots.row_mut(handle).ok_or_else(|| stale(handle))
    }

    /// Rows whose puts are not durable yet; they count against the capacity.
    pub(crate) fn rows_reserved(&self) -> usize {
        self.puts.rows()
    }

    /// A number above those of all groups so far.
    pub(super) fn next_group(&self) -> u64 {
        self.next_group
    }

    /// Ends the puts, for this process and in the journal.
    pub(crate) fn end(&mut self) {
        self.closed = true;
        self.ended = true;
    }
}

fn stale(handle: RowHandle) -> QueueError {
    QueueError::StaleHandle { slot: handle.slot, generation: handle.generation }
}
