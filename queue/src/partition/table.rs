//! The control plane of a partition: rows, groups, readiness and leases, as plain data behind one lock.
//!
//! Nothing in here waits, copies payload or does I/O, and every operation touches the rows it is about and no
//! others: what is ready is kept in ordered sets, never searched for.

mod check;
mod choose;
mod chunks;
mod columns;
mod dropping;
mod fates;
mod index;
mod labels;
mod leaving;
mod puts;
mod samples;
mod share;
mod slots;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::TaskStats;
use super::room::Size;
use super::waiting::Waiters;
use crate::config::TaskSpec;
use crate::{ChunkId, ColumnSpec, PartitionSpec, QueueError, ReadyGroup};

pub(crate) use leaving::BeginAck;

pub(crate) use choose::Chosen;
use chunks::Chunks;
use fates::Fates;
pub use fates::{Disposition, GroupFate};
use index::{GroupIndex, Keys};
pub use labels::KeyedRow;
pub(crate) use labels::Label;
pub use samples::{ClosedGroup, INCOMPLETE, SamplePart, Unfinished};
pub(crate) use samples::{ClosedNames, SamplesRecord};
use samples::{GroupSamples, SampleIndex};
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

/// What a row is for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Columns are missing.
    Incomplete,
    Ready,
    /// It would be ready if all of its payload were within reach.
    Away,
    Leased(u64),
    /// Acked or dropped, not yet durable.
    Leaving,
    Acked,
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
    pub(crate) parts: Vec<Part>,
    pub(crate) progress: Vec<Progress>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// It is set aside for a row whose put is not durable yet.
    is_reserved: bool,
    /// `None` for free slots, and for those that are set aside.
    row: Option<Row>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: String,
    pub(crate) size: usize,
    /// Live rows, in order of their puts.
    pub(crate) rows: Vec<RowHandle>,
    /// Rows ever put.
    pub(crate) put: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    /// Tokens of its live rows.
    pub(crate) tokens: u64,
    /// Whether its rows came in several puts, or are to.
    in_parts: bool,
    /// Per task: rows that are ready.
    ready: Vec<usize>,
    /// Over all tasks: rows that are ready or acked. Counted once somebody drops groups.
    settled: usize,
    /// Where it is put by samples: then its size counts these.
    samples: Option<Box<GroupSamples>>,
}

impl Group {
    fn keys(&self) -> Keys {
        Keys { policy_version: self.policy_version, priority: self.priority }
    }

    fn view(&self) -> ReadyGroup<'_> {
        ReadyGroup {
            group: &self.key,
            rows: self.rows.len(),
            tokens: self.tokens,
            policy_version: self.policy_version,
            priority: self.priority,
        }
    }

    /// Whether no more rows will come.
    fn is_whole(&self) -> bool {
        match &self.samples {
            Some(samples) => samples.is_closed(),
            None => self.put == self.size,
        }
    }

    /// Whether every row is there and ready for the task.
    fn is_ready(&self, task: usize) -> bool {
        self.is_whole() && self.ready[task] == self.rows.len() && !self.rows.is_empty()
    }
}

/// What is ready for a task.
#[derive(Debug, Default)]
struct Ready {
    rows: usize,
    /// Groups all of whose rows are ready.
    groups: GroupIndex,
    /// For takes of single rows; built for the first one.
    single: Option<SingleRows>,
    /// Rows that lack columns of the task.
    incomplete: usize,
    /// Rows that somebody holds, those on their way out included.
    held: usize,
    /// Rows that would be ready if all of their payload were within reach.
    away: usize,
    /// Rows that the task is done with and others are not.
    acked: usize,
    waiters: Waiters,
    /// Something became ready that nobody was woken for.
    is_news: bool,
}

impl Ready {
    fn count_of(&mut self, progress: Progress) -> &mut usize {
        match progress {
            Progress::Incomplete => &mut self.incomplete,
            Progress::Ready => &mut self.rows,
            Progress::Away => &mut self.away,
            Progress::Leased(_) | Progress::Leaving => &mut self.held,
            Progress::Acked => &mut self.acked,
        }
    }

    fn count(&mut self, from: Progress, to: Progress) {
        *self.count_of(from) -= 1;
        *self.count_of(to) += 1;
    }
}

/// What takes of single rows need.
#[derive(Debug, Default)]
struct SingleRows {
    /// Ready rows by group and place in the group.
    rows: BTreeSet<(u64, usize, RowHandle)>,
    /// Groups any of whose rows is ready.
    groups: GroupIndex,
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
    /// New slots start here.
    generation_floor: u32,
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
            generation_floor: 0,
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
            droppable: None,
            tokens: Tokens::default(),
            groups_under_way: HashMap::new(),
            columns_under_way: HashSet::new(),
            records: VecDeque::new(),
            records_bytes: 0,
            keys: HashMap::new(),
            keys_under_way: HashSet::new(),
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
        slot.and_then(|slot| slot.row.as_ref()).ok_or_else(stale)
    }

    fn row_mut(&mut self, handle: RowHandle) -> Result<&mut Row, QueueError> {
        let slot =
            self.slots.get_mut(handle.slot as usize).filter(|slot| slot.generation == handle.generation);
        let stale = || QueueError::StaleHandle { slot: handle.slot, generation: handle.generation };
        slot.and_then(|slot| slot.row.as_mut()).ok_or_else(stale)
    }

    /// Marks the row ready for the tasks whose columns are all there.
    fn complete(&mut self, handle: RowHandle) {
        for task in 0..self.spec.tasks.len() {
            let Ok(row) = self.row(handle) else { return };
            let has = |name: &String| row.parts.iter().any(|part| part.columns.contains(name));
            if row.progress[task] == Progress::Incomplete && self.spec.tasks[task].columns.iter().all(has) {
                self.set(handle, task, Progress::Ready);
            }
        }
    }

    /// The one place that changes what a row is for a task, and every index with it.
    fn set(&mut self, handle: RowHandle, task: usize, to: Progress) {
        let Ok(row) = self.row_mut(handle) else { return };
        let to = if to == Progress::Ready && row.away > 0 { Progress::Away } else { to };
        let from = std::mem::replace(&mut row.progress[task], to);
        let (group_id, place) = (row.group, row.place);
        self.ready[task].count(from, to);
        self.count_settled(group_id, from, to);
        if (from == Progress::Ready) == (to == Progress::Ready) {
            return;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let ready = &mut self.ready[task];
        if to == Progress::Ready {
            group.ready[task] += 1;
            ready.is_news = true;
        } else {
            group.ready[task] -= 1;
        }
        if let Some(single) = &mut ready.single {
            if to == Progress::Ready {
                single.rows.insert((group_id, place, handle));
            } else {
                single.rows.remove(&(group_id, place, handle));
            }
        }
        self.index_group(group_id, task);
    }

    /// Puts a group where takers find it, or out of it. Whoever changes what it is ordered by calls
    /// [`unindex_group`](Self::unindex_group) before.
    fn index_group(&mut self, id: u64, task: usize) {
        let Some(group) = self.groups.get(&id) else { return };
        let ready = &mut self.ready[task];
        if group.is_ready(task) {
            ready.is_news = true;
            ready.groups.insert(id, group.keys());
        } else {
            ready.groups.remove(id, group.keys());
        }
        if let Some(single) = &mut ready.single {
            if group.ready[task] > 0 {
                single.groups.insert(id, group.keys());
            } else {
                single.groups.remove(id, group.keys());
            }
        }
    }

    fn unindex_group(&mut self, id: u64) {
        let Some(group) = self.groups.get(&id) else { return };
        for ready in &mut self.ready {
            ready.groups.remove(id, group.keys());
            if let Some(single) = &mut ready.single {
                single.groups.remove(id, group.keys());
            }
        }
        if let Some(droppable) = &mut self.droppable {
            droppable.remove(id, group.keys());
        }
    }

    pub(crate) fn ready_group_count(&self, task: usize) -> usize {
        self.ready[task].groups.len()
    }

    /// Rows by state for a task: incomplete, ready, leased, acked, away.
    pub(crate) fn counts(&self, task: usize) -> [usize; 5] {
        let mut counts = [0; 5];
        for row in self.slots.iter().filter_map(|slot| slot.row.as_ref()) {
            let place = match row.progress[task] {
                Progress::Incomplete => 0,
                Progress::Ready => 1,
                Progress::Leased(_) | Progress::Leaving => 2,
                Progress::Acked => 3,
                Progress::Away => 4,
            };
            counts[place] += 1;
        }
        counts
    }

    pub(crate) fn ready_row_count(&self, task: usize) -> usize {
        self.ready[task].rows
    }

    pub(crate) fn task_stats(&self) -> Vec<TaskStats> {
        let stats = |(task, ready): (&TaskSpec, &Ready)| TaskStats {
            task: task.name.clone(),
            incomplete_rows: ready.incomplete,
            ready_rows: ready.rows,
            ready_groups: ready.groups.len(),
            leased_rows: ready.held,
            away_rows: ready.away,
            acked_rows: ready.acked,
        };
        self.spec.tasks.iter().zip(&self.ready).map(stats).collect()
    }

    /// Whether rows may still become ready for the task without another put.
    pub(crate) fn may_become_ready(&self, task: usize) -> bool {
        self.rows_reserved > 0
            || self.ready[task].incomplete > 0
            || self.ready[task].away > 0
            || self.leases.values().any(|lease| lease.task == task)
    }

    pub(super) fn waiters(&mut self, task: usize) -> &mut Waiters {
        &mut self.ready[task].waiters
    }

    /// Wakes the takes that what has become ready can serve.
    pub(crate) fn wake(&mut self) {
        for ready in &mut self.ready {
            if !std::mem::take(&mut ready.is_news) {
                continue;
            }
            match self.closed {
                true => ready.waiters.wake_all(),
                false => ready.waiters.wake(ready.groups.len(), ready.rows),
            }
        }
    }

    /// The same after a change; all of them once the puts have ended, since any change may be the last.
    pub(crate) fn wake_after_change(&mut self) {
        if self.closed {
            self.ready.iter_mut().for_each(|ready| ready.is_news = true);
        }
        self.wake();
    }

    /// Somebody who was woken for rows of the task is gone before looking.
    pub(super) fn wake_again(&mut self, task: usize) {
        self.ready[task].is_news = true;
        self.wake();
    }

    /// There is a newer policy version: whoever looks at versions looks again.
    pub(crate) fn raise_version(&mut self, policy_version: u64) {
        if policy_version > self.policy_version {
            self.policy_version = policy_version;
            self.ready.iter_mut().for_each(|ready| ready.waiters.wake_lookers());
        }
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
