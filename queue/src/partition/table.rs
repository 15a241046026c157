//! The control plane of a partition: rows, groups, readiness and leases, as plain data under one lock.
//!
//! This module does not wait or copy payload. Only a [cut](self::cuts) does I/O, when it opens segments.
//! Every operation touches only the rows that it concerns: ready rows are in ordered sets, so no search is
//! needed.

mod adding;
mod beside;
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
mod remembered;
mod samples;
mod share;
mod slots;
#[cfg(test)]
mod tests;
mod texts;
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

pub(crate) use adding::Added;
use adding::Rewrites;
pub(super) use beside::{Rest, rest};
pub(crate) use check::Totals;
pub(crate) use choose::Chosen;
use chunks::Chunks;
pub(crate) use chunks::Move;
use columns::Columns;
pub(super) use columns::types_record;
use cuts::Cuts;
use fates::Fates;
pub(crate) use groups::Group;
use index::GroupIndex;
use keys::Keys;
pub(crate) use leases::BeginAck;
use leases::Leases;
pub(super) use live::{ACK_ROWS, Slice, ack_records, declaration};
pub(crate) use ready::Progress;
use ready::{Ready, SingleRows};
use records::OwnerRecords;
use samples::SampleIndex;
use share::Shares;
use slots::Slots;
pub(crate) use slots::{GENERATION_MAX, SLOTS_AT_REST, SLOTS_MAX};
use tokens::Tokens;
use under_way::PutsUnderWay;

/// The location of some columns of a row.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) chunk: ChunkId,
    pub(crate) row: u32,
    /// The bytes of payload; 0 if they are not counted.
    bytes: u32,
    /// The KiB of the partition's capacity in bytes that the part uses.
    kib: u32,
    /// The number of [rewrites](adding) of the table up to this part.
    written: u64,
    /// Whether later parts have all columns of this part. In that case, only leases that began before the
    /// later parts were written read this part.
    is_superseded: bool,
    pub(crate) columns: Arc<[String]>,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: u64,
    /// The index of the row in its group, counted over all puts.
    place: usize,
    /// The number of the row's tokens.
    pub(crate) length: u32,
    /// The number of parts whose storage unit does not answer.
    away: u32,
    pub(crate) label: Option<Box<Label>>,
    /// The parts of the row, one for each write to it, oldest first. Most rows have only the part of their
    /// put, which is stored inline.
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) progress: SmallVec<[Progress; 1]>,
}

/// The reservation of a put that is not durable yet.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) kib: u32,
    group: String,
    sample: Option<String>,
    token: Option<String>,
    keys: Vec<String>,
    /// The columns that are new with this put.
    columns: Vec<ColumnSpec>,
}

/// The kind of a put, as it is known before anything is written.
#[derive(Debug)]
pub(crate) enum Admission {
    /// A new put.
    Fresh,
    /// A repetition of a put in progress.
    UnderWay,
    /// A repetition of a put that created these rows.
    Known(Vec<RowHandle>),
}

/// The size of some rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    /// The size in KiB; 0 if bytes are not counted.
    pub(crate) kib: u32,
}

/// Resources that the table has released.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// The room that became free.
    pub(crate) size: Size,
    /// Chunks that no row needs any more.
    pub(crate) chunks: Vec<ChunkId>,
    /// Chunks that keep more memory than their remaining rows need.
    pub(crate) sparse: Vec<ChunkId>,
}

impl Released {
    fn append(&mut self, more: Self) {
        self.size.rows += more.size.rows;
        self.size.kib += more.size.kib;
        self.chunks.extend(more.chunks);
        self.sparse.extend(more.sparse);
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) spec: PartitionSpec,
    columns: Columns,
    slots: Slots,
    pub(crate) groups: BTreeMap<u64, Group>,
    /// The groups by name. If several groups have the same name, the map has the latest.
    open_groups: HashMap<String, u64>,
    samples: SampleIndex,
    next_group: u64,
    ready: Vec<Ready>,
    leases: Leases,
    shares: Shares,
    chunks: Chunks,
    rewrites: Rewrites,
    /// The cuts that are being read.
    cuts: Cuts,
    /// Groups that may be dropped. `None` until the first drop.
    droppable: Option<GroupIndex>,
    tokens: Tokens,
    puts: PutsUnderWay,
    records: OwnerRecords,
    keys: Keys,
    /// The newest policy version of any put or announcement.
    pub(crate) policy_version: u64,
    /// The number of changes.
    pub(crate) revision: u64,
    pub(crate) dispositions: Dispositions,
    pub(crate) fates: Fates,
    pub(crate) rows_live: usize,
    pub(crate) kib_live: u32,
    /// Whether this process accepts no more puts.
    pub(crate) closed: bool,
    /// Whether the journal has recorded the end of the puts.
    pub(crate) ended: bool,
    /// Whether rows whose leases end without an ack are kept from other consumers.
    pub(crate) gives_once: bool,
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
            rewrites: Rewrites::default(),
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
            gives_once: false,
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

    /// The number of rows whose puts are not durable yet. They count against the capacity.
    pub(crate) fn rows_reserved(&self) -> usize {
        self.puts.rows()
    }

    /// A number greater than the numbers of all existing and earlier groups.
    pub(super) fn next_group(&self) -> u64 {
        self.next_group
    }

    /// Marks the puts as ended, in this process and in the journal.
    pub(crate) fn end(&mut self) {
        self.closed = true;
        self.ended = true;
    }
}

/// Whether any of these parts has the column.
fn has_column(parts: &[Part], name: &str) -> bool {
    parts.iter().flat_map(|part| part.columns.iter()).any(|column| column == name)
}

fn stale(handle: RowHandle) -> QueueError {
    QueueError::StaleHandle { slot: handle.slot, generation: handle.generation }
}
