//! The control plane of a partition: rows, groups, readiness and leases, as plain data behind one lock.
//!
//! Nothing in here waits or copies payload, nothing but a [cut](super::cut) does I/O (it opens segments), and every
//! operation touches the rows it is about and no others: what is ready is kept in ordered sets, never searched for.

mod check;
mod choose;
mod chunks;
mod columns;
mod dropping;
mod fates;
mod groups;
mod index;
mod labels;
mod leaving;
mod puts;
mod ready;
mod samples;
mod share;
mod slots;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::cut::Cuts;
use super::room::Size;
use crate::recent::Recent;
use crate::{ChunkId, ColumnSpec, PartitionSpec, QueueError};

pub(crate) use leaving::BeginAck;

pub(crate) use choose::Chosen;
use chunks::Chunks;
pub(crate) use chunks::Move;
use fates::Fates;
pub use fates::{Disposition, GroupFate};
pub(crate) use groups::Group;
use index::GroupIndex;
pub use labels::KeyedRow;
pub(crate) use labels::Label;
pub(crate) use ready::Progress;
use ready::{Ready, SingleRows};
use samples::SampleIndex;
pub use samples::{ClosedGroup, INCOMPLETE, SamplePart, Unfinished};
pub(crate) use samples::{ClosedNames, SamplesRecord};
pub(crate) use slots::{GENERATION_MAX, SLOTS_AT_REST, SLOTS_MAX};
use tokens::Tokens;

/// Names one row for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowHandle {
    /// Used again when the row is freed.
    pub slot: u32,
    /// Never the same for two rows of a slot.
    pub generation: u32,
}

/// Where some columns of a row lie.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) chunk: ChunkId,
    pub(crate) row: u32,
    /// Of payload; 0 where nobody counts them.
    bytes: u32,
    pub(crate) columns: Arc<[String]>,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: u64,
    /// Its place in the group.
    place: usize,
    /// Tokens.
    pub(crate) length: u32,
    /// What it takes of a capacity in bytes.
    pub(crate) kib: u32,
    /// Parts that are out of reach.
    away: u32,
    pub(crate) label: Option<Box<Label>>,
    /// One for each write to it; most have their put's alone, and no memory of their own for it.
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) progress: SmallVec<[Progress; 1]>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// It is set aside for a row whose put is not durable yet.
    is_reserved: bool,
    /// `None` for free slots, and for those that are set aside. Boxed, since a slot may outlive many rows.
    row: Option<Box<Row>>,
}

/// Rows of a group whose puts are not durable yet.
#[derive(Debug)]
struct UnderWay {
    group_size: usize,
    rows: usize,
    /// Puts of each sample.
    samples: BTreeMap<String, usize>,
}

/// What is set aside for a put that is not durable yet.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) kib: u32,
    group: String,
    sample: Option<String>,
    token: Option<String>,
    keys: Vec<String>,
    /// Columns that nobody knew before.
    columns: Vec<ColumnSpec>,
}

/// What a put is, before anything is written.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Something new.
    Fresh,
    /// A repetition of one that is on its way.
    UnderWay,
    /// A repetition of one that made these rows.
    Known(Vec<RowHandle>),
}

/// What the table has let go of.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// What there is room for now.
    pub(crate) size: Size,
    /// Chunks that nobody needs any more.
    pub(crate) chunks: Vec<ChunkId>,
    /// Chunks that keep more than the rows in them that are left.
    pub(crate) sparse: Vec<ChunkId>,
}

#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) task: usize,
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) expires: Instant,
    /// Whether the journal knows of it: it outlives the process.
    pub(crate) is_recorded: bool,
    /// As those who took it call themselves; nobody where it was given out before this process, or to one without a name.
    holders: Vec<String>,
    /// Consumers that get the same rows; they are consumed when all have acked.
    members: u32,
    fetched: BTreeSet<u32>,
    acked: BTreeSet<u32>,
}

/// What became of rows that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispositions {
    /// Freed because every task acked them.
    pub acked: u64,
    /// Dropped to make room.
    pub dropped: u64,
    /// Cleared by their owner.
    pub cleared: u64,
    /// Their payload could not be read back.
    pub lost: u64,
    /// Dropped because their policy version was too old for a take.
    #[serde(default)]
    pub stale: u64,
}

/// Why rows are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Freed {
    Acked,
    Dropped,
    Cleared,
    /// With whatever the groups still lacked.
    ClearedAll,
    Lost,
    Stale,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) spec: PartitionSpec,
    pub(crate) columns: BTreeMap<String, ColumnSpec>,
    /// Columns that only puts have which are not durable yet, and how many of these.
    columns_to_come: BTreeMap<String, (ColumnSpec, usize)>,
    slots: Vec<Slot>,
    /// Slots without rows, in the order in which these left.
    free: VecDeque<u32>,
    /// Slots that became free since somebody looked whether there are too many.
    freed_since_look: usize,
    /// New slots start here.
    generation_floor: u32,
    /// Above every generation that this process gave out.
    generation_above: u32,
    pub(crate) groups: BTreeMap<u64, Group>,
    /// Groups that are there by their names; the latest of a name.
    open_groups: HashMap<String, u64>,
    samples: SampleIndex,
    next_group: u64,
    ready: Vec<Ready>,
    leases: HashMap<u64, LeaseState>,
    expiries: BTreeSet<(Instant, u64)>,
    /// Starts anew in a place of its own each time the queue is opened: numbers of an earlier life mean the same or
    /// nothing.
    next_lease: u64,
    /// Takes that were served.
    draws: u64,
    /// Ends of recorded leases that are still to be written down.
    unrecorded_ends: Vec<u64>,
    /// Acks by lease: whether they are done.
    acks: HashMap<u64, bool>,
    ack_order: VecDeque<u64>,
    shares: HashMap<share::Team, share::Waiting>,
    chunks: Chunks,
    /// Moments that somebody is reading.
    pub(super) cuts: Cuts,
    /// Groups that may be dropped, once somebody has asked for them.
    droppable: Option<GroupIndex>,
    tokens: Tokens,
    groups_under_way: HashMap<String, UnderWay>,
    /// Columns of rows whose writing is not durable yet.
    columns_under_way: HashSet<(RowHandle, String)>,
    records: VecDeque<String>,
    records_bytes: usize,
    keys: HashMap<String, RowHandle>,
    keys_under_way: HashSet<String>,
    /// Names of columns that were put together.
    column_sets: Recent<[String]>,
    /// Rows that have each column.
    column_rows: BTreeMap<String, usize>,
    /// The newest that a put had or somebody announced.
    pub(crate) policy_version: u64,
    /// Counts changes.
    pub(crate) revision: u64,
    pub(crate) dispositions: Dispositions,
    pub(crate) fates: Fates,
    pub(crate) rows_live: usize,
    pub(crate) rows_reserved: usize,
    pub(crate) kib_live: u32,
    pub(crate) kib_reserved: u32,
    /// There are no more puts, as far as this process goes.
    pub(crate) closed: bool,
    /// There are no more puts, as is written down.
    pub(crate) ended: bool,
}

impl Table {
    pub(crate) fn new(spec: PartitionSpec) -> Self {
        let columns = spec.columns.iter().map(|column| (column.name.clone(), column.clone())).collect();
        let ready = spec.tasks.iter().map(|_| Ready::default()).collect();
        Self {
            columns,
            columns_to_come: BTreeMap::new(),
            ready,
            spec,
            slots: Vec::new(),
            free: VecDeque::new(),
            freed_since_look: 0,
            generation_floor: 0,
            generation_above: 0,
            groups: BTreeMap::new(),
            open_groups: HashMap::new(),
            samples: SampleIndex::default(),
            next_group: 0,
            leases: HashMap::new(),
            expiries: BTreeSet::new(),
            next_lease: u64::from(rand::random::<u32>() >> 1) << 32,
            draws: 0,
            unrecorded_ends: Vec::new(),
            acks: HashMap::new(),
            ack_order: VecDeque::new(),
            shares: HashMap::new(),
            chunks: Chunks::default(),
            cuts: Cuts::default(),
            droppable: None,
            tokens: Tokens::default(),
            groups_under_way: HashMap::new(),
            columns_under_way: HashSet::new(),
            records: VecDeque::new(),
            records_bytes: 0,
            keys: HashMap::new(),
            keys_under_way: HashSet::new(),
            column_sets: Recent::default(),
            column_rows: BTreeMap::new(),
            policy_version: 0,
            revision: 0,
            fates: Fates::default(),
            dispositions: Dispositions::default(),
            rows_live: 0,
            rows_reserved: 0,
            kib_live: 0,
            kib_reserved: 0,
            closed: false,
            ended: false,
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
        let slot = self.slots.get(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        let stale = || QueueError::StaleHandle { slot: handle.slot, generation: handle.generation };
        slot.and_then(|slot| slot.row.as_deref()).ok_or_else(stale)
    }

    fn row_mut(&mut self, handle: RowHandle) -> Result<&mut Row, QueueError> {
        let slot =
            self.slots.get_mut(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        let stale = || QueueError::StaleHandle { slot: handle.slot, generation: handle.generation };
        slot.and_then(|slot| slot.row.as_deref_mut()).ok_or_else(stale)
    }

    /// Above every group that has been there.
    pub(super) fn next_group(&self) -> u64 {
        self.next_group
    }

    /// There will be no more puts, whoever asks.
    pub(crate) fn end(&mut self) {
        self.closed = true;
        self.ended = true;
    }

    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }
}
