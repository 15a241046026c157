//! Random operations against a reference model that is too simple to be wrong: a list of rows, searched from the front.
//!
//! The queue must agree with it on every answer, on which rows a take gives and in which order, on every byte of their
//! payload, and on what is left, in memory and on disk, with leases that expire and processes that come and go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int32Type, Int64Type};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rolldock_queue::{
    Amount, Durability, Lease, OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, RowHandle,
    Sampler, Take, TaskSpec, TransferQueue, invariants,
};
use serde_json::Value;
use tokio::task::JoinSet;

const CAPACITY_ROWS: usize = 48;
const LEASE_MS: u64 = 1_000;
/// Consumers; each holds leases of its own.
const CLIENTS: usize = 3;
/// Of a case.
const OPERATIONS_MIN: usize = 100;
const CASES_IN_MEMORY: u32 = 800;
const CASES_ON_DISK: u32 = 220;
const _: () = assert!(OPERATIONS_MIN as u32 * (CASES_IN_MEMORY + CASES_ON_DISK) >= 100_000);
const TASKS: [&str; 2] = ["plain", "needs_extra"];

#[derive(Debug, Clone)]
enum Op {
    /// A new group of `size` rows, of which the first `now` are put.
    Put {
        size: usize,
        now: usize,
        priority: i64,
        policy_version: u64,
        keyed: bool,
        with_token: bool,
    },
    /// The last put that had a token once more, whatever became of its rows.
    Repeat,
    /// Other tags for some rows.
    Tags {
        which: usize,
        rows: usize,
    },
    /// A task begins anew.
    Reset {
        task: usize,
    },
    /// One row more for an unfinished group.
    Complete {
        which: usize,
    },
    /// The second column for some rows.
    Extra {
        which: usize,
        rows: usize,
    },
    Take {
        task: usize,
        groups: bool,
        count: usize,
        sampler: Sampler,
        min_policy_version: u64,
    },
    Ack {
        which: usize,
    },
    Nack {
        which: usize,
    },
    Forget {
        which: usize,
    },
    Expire,
    Clear {
        which: usize,
        rows: usize,
    },
    /// A client goes away with what it holds.
    Leave {
        client: usize,
    },
    /// What a snapshot holds, restored elsewhere.
    Snapshot,
    Reopen,
    /// The process dies: what is on disk at this moment is all that is left.
    Crash,
}

fn operations() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1..6_usize, 0..6_usize, 0..3_i64, 0..4_u64, any::<bool>(), any::<bool>()).prop_map(
            |(size, less, priority, policy_version, keyed, with_token)| {
                let now = size.saturating_sub(less).max(1);
                Op::Put { size, now, priority, policy_version, keyed, with_token }
            }
        ),
        1 => Just(Op::Repeat),
        1 => (any::<usize>(), 1..4_usize).prop_map(|(which, rows)| Op::Tags { which, rows }),
        1 => (0..2_usize).prop_map(|task| Op::Reset { task }),
        3 => any::<usize>().prop_map(|which| Op::Complete { which }),
        5 => (any::<usize>(), 1..8_usize).prop_map(|(which, rows)| Op::Extra { which, rows }),
        6 => (0..2_usize, any::<bool>(), 1..6_usize, samplers(), prop_oneof![3 => Just(0), 1 => 1..4_u64]).prop_map(
            |(task, groups, count, sampler, min_policy_version)| {
                Op::Take { task, groups, count, sampler, min_policy_version }
            }
        ),
        6 => any::<usize>().prop_map(|which| Op::Ack { which }),
        2 => any::<usize>().prop_map(|which| Op::Nack { which }),
        1 => any::<usize>().prop_map(|which| Op::Forget { which }),
        1 => Just(Op::Expire),
        1 => (any::<usize>(), 1..4_usize).prop_map(|(which, rows)| Op::Clear { which, rows }),
        1 => (0..CLIENTS).prop_map(|client| Op::Leave { client }),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ];
    prop::collection::vec(op, OPERATIONS_MIN..OPERATIONS_MIN + 41)
}

/// Random draws are the index's own test.
fn samplers() -> impl Strategy<Value = Sampler> {
    prop_oneof![
        2 => Just(Sampler::Declared),
        1 => Just(Sampler::Fifo),
        1 => Just(Sampler::Priority),
        1 => Just(Sampler::Freshest),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Free,
    Leased(u64),
    Acked,
}

#[derive(Debug, Clone)]
struct ModelRow {
    id: i64,
    handle: RowHandle,
    group: usize,
    extra: bool,
    key: Option<String>,
    tags: Value,
    states: [State; 2],
}

#[derive(Debug, Clone)]
struct ModelGroup {
    size: usize,
    put: usize,
    /// The greatest of its puts.
    priority: i64,
    /// The oldest of its puts.
    policy_version: u64,
}

#[derive(Debug, Default)]
struct Model {
    groups: Vec<ModelGroup>,
    /// In order of their groups, then of their puts.
    rows: Vec<ModelRow>,
    /// Handles that must never work again.
    gone: Vec<RowHandle>,
    next_id: i64,
}

impl Model {
    fn is_ready(row: &ModelRow, task: usize) -> bool {
        row.states[task] == State::Free && (task == 0 || row.extra)
    }

    /// Groups in the order in which a take looks at them.
    fn order(&self, take: &Take) -> Vec<usize> {
        let fresh = |group: &usize| self.groups[*group].policy_version >= take.min_policy_version;
        let mut order: Vec<usize> = (0..self.groups.len()).filter(fresh).collect();
        match take.sampler {
            Sampler::Priority => order.sort_by_key(|at| (Reverse(self.groups[*at].priority), *at)),
            Sampler::Freshest => order.sort_by_key(|at| Reverse((self.groups[*at].policy_version, *at))),
            _ => {}
        }
        order
    }

    fn rows_of(&self, group: usize) -> impl Iterator<Item = &ModelRow> {
        self.rows.iter().filter(move |row| row.group == group)
    }

    fn expected(&self, task: usize, groups: bool, count: usize, take: &Take) -> Vec<i64> {
        let order = self.order(take).into_iter();
        if !groups {
            let ready = order.flat_map(|group| self.rows_of(group)).filter(|row| Self::is_ready(row, task));
            return ready.take(count).map(|row| row.id).collect();
        }
        let whole = |group: &usize| {
            let mut rows = self.rows_of(*group).peekable();
            let state = &self.groups[*group];
            state.put == state.size && rows.peek().is_some() && rows.all(|row| Self::is_ready(row, task))
        };
        let chosen = order.filter(whole).take(count);
        chosen.flat_map(|group| self.rows_of(group)).map(|row| row.id).collect()
    }

    fn add(&mut self, group: usize, put: &Put, ids: &[i64], handles: &[RowHandle]) {
        let at = self.rows.partition_point(|row| row.group <= group);
        for (place, (id, handle)) in ids.iter().zip(handles).enumerate() {
            let row = ModelRow {
                id: *id,
                handle: *handle,
                group,
                extra: false,
                key: put.keys.get(place).cloned(),
                tags: Value::Null,
                states: [State::Free; 2],
            };
            self.rows.insert(at + place, row);
        }
        let group = &mut self.groups[group];
        group.put += ids.len();
        group.priority = group.priority.max(put.priority);
        group.policy_version = group.policy_version.min(put.policy_version);
    }

    fn remove(&mut self, gone: impl Fn(&ModelRow) -> bool) {
        self.gone.extend(self.rows.iter().filter(|row| gone(row)).map(|row| row.handle));
        self.rows.retain(|row| !gone(row));
    }

    fn release(&mut self, lease: u64) {
        for state in self.rows.iter_mut().flat_map(|row| row.states.iter_mut()) {
            if *state == State::Leased(lease) {
                *state = State::Free;
            }
        }
    }
}

fn payload(ids: &[i64]) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
    let tokens = ids.iter().map(|id| Some((0..id % 7).map(move |at| Some((id * 10 + at) as i32))));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens));
    RecordBatch::try_from_iter([("id", id), ("tokens", tokens)]).unwrap()
}

/// What a put is besides its rows.
fn bare() -> Put {
    Put::group("", payload(&[]))
}

fn extra(ids: &[i64]) -> RecordBatch {
    let extra: ArrayRef = Arc::new(Float32Array::from_iter_values(ids.iter().map(|id| *id as f32)));
    RecordBatch::try_from_iter([("extra", extra)]).unwrap()
}

/// Ids of a lease's rows, every byte of whose payload was compared.
fn checked_ids(lease: &Lease) -> Vec<i64> {
    let mut ids = Vec::new();
    for batch in lease.batches() {
        let found: Vec<i64> = batch["id"].as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(batch["tokens"].as_list::<i32>().to_data(), payload(&found)["tokens"].to_data());
        if let Some(column) = batch.column_by_name("extra") {
            let values = column.as_primitive::<Float32Type>().values();
            assert!(values.iter().zip(&found).all(|(value, id)| *value == *id as f32));
        }
        ids.extend(found);
    }
    assert_eq!(ids.len(), lease.rows().len());
    ids
}

/// What a snapshot is written to.
#[derive(Clone, Default)]
struct Bytes(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct World<'a> {
    /// Where directories are made.
    root: Option<&'a Path>,
    /// Processes so far that died.
    deaths: usize,
    queue: TransferQueue,
    partition: Partition,
    /// With the client that holds each.
    leases: Vec<(usize, Lease)>,
    takes: usize,
    tokens: usize,
    /// The last put that had a token.
    tokened: Option<(Put, Vec<RowHandle>)>,
    model: Model,
}

/// The directory of the process after so many deaths.
fn dir(root: Option<&Path>, deaths: usize) -> Option<PathBuf> {
    root.map(|root| root.join(deaths.to_string()))
}

/// Names and lengths of the files of a directory.
fn files(dir: &Path) -> std::io::Result<Vec<(std::ffi::OsString, u64)>> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        files.push((file.file_name(), file.metadata()?.len()));
    }
    files.sort();
    Ok(files)
}

/// Copies a directory in which a writer may be tidying up: again until nothing has changed meanwhile.
fn copy_at_one_moment(from: &Path, to: &Path) {
    let copy = || {
        let before = files(from)?;
        let _ = std::fs::remove_dir_all(to);
        std::fs::create_dir(to)?;
        for (name, _) in &before {
            std::fs::copy(from.join(name), to.join(name))?;
        }
        std::io::Result::Ok(before == files(from)? && before == files(to)?)
    };
    while !copy().unwrap_or(false) {}
}

fn open(dir: Option<PathBuf>) -> TransferQueue {
    let config = QueueConfig {
        dir,
        durability: Durability::Os,
        segment_bytes: 4096,
        journal_bytes: 4096,
        ..QueueConfig::default()
    };
    TransferQueue::open(config).unwrap()
}

impl<'a> World<'a> {
    async fn new(root: Option<&'a Path>) -> World<'a> {
        let queue = open(dir(root, 0));
        let mut spec = PartitionSpec::new("p", [TASKS[0]], CAPACITY_ROWS);
        spec.tasks.push(TaskSpec { name: TASKS[1].to_owned(), columns: vec!["extra".to_owned()] });
        spec.on_full = OnFull::Refuse;
        spec.lease_ms = LEASE_MS;
        let partition = queue.declare(spec).await.unwrap();
        World {
            root,
            deaths: 0,
            queue,
            partition,
            leases: Vec::new(),
            takes: 0,
            tokens: 0,
            tokened: None,
            model: Model::default(),
        }
    }

    /// Puts rows of a group; what `put` is of them is as it says, but for keys, which are made here where it has any.
    async fn put(&mut self, group: usize, rows: usize, put: Put) {
        let ids: Vec<i64> = (0..rows as i64).map(|at| self.model.next_id + at).collect();
        let group_size = self.model.groups[group].size;
        let keyed = !put.keys.is_empty();
        let keys = if keyed { ids.iter().map(|id| format!("k{id}")).collect() } else { Vec::new() };
        let put = Put { group: format!("g{group}"), batches: vec![payload(&ids)], group_size, keys, ..put };
        let outcome = self.partition.put(put.clone(), None).await;
        if self.model.rows.len() + rows > CAPACITY_ROWS {
            assert!(matches!(outcome, Err(QueueError::Full { .. })), "{outcome:?}");
            return;
        }
        let handles = outcome.unwrap();
        self.model.next_id += rows as i64;
        self.model.add(group, &put, &ids, &handles);
        if put.token.is_some() {
            self.tokened = Some((put, handles));
        } else if keyed {
            let taken = Put { group: "another".to_owned(), ..put };
            let twice = self.partition.put(taken, None).await;
            assert!(matches!(twice, Err(QueueError::KeyExists { .. })), "{twice:?}");
        }
    }

    async fn repeat(&mut self) {
        let Some((put, handles)) = &self.tokened else { return };
        assert_eq!(self.partition.put(put.clone(), None).await.as_ref(), Ok(handles));
    }

    async fn set_tags(&mut self, which: usize, rows: usize) {
        if self.model.rows.is_empty() {
            return;
        }
        let first = which % self.model.rows.len();
        let mut tags = Vec::new();
        for row in self.model.rows[first..].iter_mut().take(rows) {
            row.tags = serde_json::json!({ "number": which % 97 });
            tags.push((row.handle, row.tags.clone()));
        }
        self.partition.set_tags(tags).await.unwrap();
    }

    async fn reset(&mut self, task: usize) {
        let mut acked = 0;
        for row in self.model.rows.iter_mut().filter(|row| row.states[task] == State::Acked) {
            row.states[task] = State::Free;
            acked += 1;
        }
        assert_eq!(self.partition.reset(TASKS[task]).await, Ok(acked));
    }

    async fn write_extra(&mut self, which: usize, rows: usize) {
        let lacking: Vec<usize> =
            (0..self.model.rows.len()).filter(|at| !self.model.rows[*at].extra).collect();
        if lacking.is_empty() {
            return;
        }
        let first = which % lacking.len();
        let chosen: Vec<usize> = lacking[first..].iter().take(rows).copied().collect();
        let handles: Vec<RowHandle> = chosen.iter().map(|at| self.model.rows[*at].handle).collect();
        let ids: Vec<i64> = chosen.iter().map(|at| self.model.rows[*at].id).collect();
        self.partition.write_columns(&handles, extra(&ids)).await.unwrap();
        chosen.iter().for_each(|at| self.model.rows[*at].extra = true);
        let twice = self.partition.write_columns(&handles, extra(&ids)).await;
        assert!(matches!(twice, Err(QueueError::ColumnExists { .. })), "{twice:?}");
    }

    async fn take(&mut self, task: usize, groups: bool, count: usize, take: Take) {
        let amount = if groups { Amount::Groups(count) } else { Amount::Rows(count) };
        let take = Take { amount, ..take };
        let expected = self.model.expected(task, groups, count, &take);
        let taken = self.partition.take(&take).await.unwrap();
        let found = taken.as_ref().map_or_else(Vec::new, checked_ids);
        assert_eq!(found, expected, "{take:?}");
        let Some(lease) = taken else { return };
        for (at, id) in found.iter().enumerate() {
            let row = self.model.rows.iter().find(|row| row.id == *id).unwrap();
            assert_eq!(lease.keys().get(at).cloned().flatten(), row.key);
            assert_eq!(lease.tags().get(at).cloned().unwrap_or_default(), row.tags);
            assert_eq!(lease.policy_versions()[at], self.model.groups[row.group].policy_version);
        }
        for row in self.model.rows.iter_mut().filter(|row| expected.contains(&row.id)) {
            row.states[task] = State::Leased(lease.id());
        }
        self.takes += 1;
        self.leases.push((self.takes % CLIENTS, lease));
    }

    async fn ack(&mut self, which: usize) {
        let Some(lease) = self.pick_lease(which) else { return };
        let id = lease.id();
        lease.ack().await.unwrap();
        for state in self.model.rows.iter_mut().flat_map(|row| row.states.iter_mut()) {
            if *state == State::Leased(id) {
                *state = State::Acked;
            }
        }
        self.model.remove(|row| row.states == [State::Acked; 2]);
    }

    fn pick_lease(&mut self, which: usize) -> Option<Lease> {
        let count = self.leases.len();
        (count > 0).then(|| self.leases.swap_remove(which % count).1)
    }

    async fn expire(&mut self) {
        tokio::time::advance(Duration::from_millis(LEASE_MS + 1)).await;
        for (_, lease) in std::mem::take(&mut self.leases) {
            self.model.release(lease.id());
            let late = lease.ack().await;
            assert!(matches!(late, Err(QueueError::LeaseGone { .. })), "{late:?}");
        }
    }

    async fn clear(&mut self, which: usize, rows: usize) {
        if self.model.rows.is_empty() {
            return;
        }
        let first = which % self.model.rows.len();
        let handles: Vec<RowHandle> =
            self.model.rows[first..].iter().take(rows).map(|row| row.handle).collect();
        self.partition.clear(&handles).await.unwrap();
        self.model.remove(|row| handles.contains(&row.handle));
    }

    fn leave(&mut self, client: usize) {
        let (gone, stay) =
            std::mem::take(&mut self.leases).into_iter().partition(|(owner, _)| *owner == client);
        self.leases = stay;
        let gone: Vec<(usize, Lease)> = gone;
        gone.iter().for_each(|(_, lease)| self.model.release(lease.id()));
    }

    /// A snapshot is the queue as it is, but for what somebody holds: that is not consumed.
    async fn snapshot(&self) {
        let bytes = Bytes::default();
        self.queue.snapshot(None, bytes.clone()).await.unwrap();
        let restored = open(None);
        let bytes = std::mem::take(&mut *bytes.0.lock());
        restored.restore(std::io::Cursor::new(bytes)).await.unwrap();
        let partition = restored.partition("p").unwrap();
        assert_eq!(partition.stats().rows, self.model.rows.len());
        for (task, name) in TASKS.into_iter().enumerate() {
            let is_there = |row: &&ModelRow| row.states[task] != State::Acked && (task == 0 || row.extra);
            let expected: Vec<i64> = self.model.rows.iter().filter(is_there).map(|row| row.id).collect();
            let taken = partition.take(&Take::rows(name, CAPACITY_ROWS)).await.unwrap();
            assert_eq!(taken.as_ref().map_or_else(Vec::new, checked_ids), expected, "task={name}");
        }
    }

    /// Another process takes over: what was leased is given again.
    fn reopen(&mut self) {
        if self.root.is_none() {
            return;
        }
        self.end_leases();
        self.queue.close();
        self.start();
    }

    /// Another process takes over what was on disk when this one died.
    fn crash(&mut self) {
        let Some(from) = dir(self.root, self.deaths) else { return };
        self.deaths += 1;
        copy_at_one_moment(&from, &dir(self.root, self.deaths).unwrap());
        self.end_leases();
        self.start();
    }

    fn end_leases(&mut self) {
        for (_, lease) in std::mem::take(&mut self.leases) {
            self.model.release(lease.id());
        }
    }

    fn start(&mut self) {
        // The directory's lock goes with the last handle.
        let spec = self.partition.spec();
        self.queue = open(None);
        self.partition = futures::executor::block_on(self.queue.declare(spec)).unwrap();
        self.queue = open(dir(self.root, self.deaths));
        self.partition = self.queue.partition("p").unwrap();
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Put { size, now, priority, policy_version, keyed, with_token } => {
                let fresh = ModelGroup { size, put: 0, priority: i64::MIN, policy_version: u64::MAX };
                self.model.groups.push(fresh);
                let group = self.model.groups.len() - 1;
                self.tokens += 1;
                let token = with_token.then(|| format!("t{}", self.tokens));
                let keys = if keyed { vec!["made later".to_owned()] } else { Vec::new() };
                self.put(group, now, Put { priority, policy_version, token, keys, ..bare() }).await;
                if self.model.groups[group].put == 0 {
                    self.model.groups.pop();
                }
            }
            Op::Complete { which } => {
                // Nothing is promised for later rows of a group all of whose rows are gone: the queue may forget it.
                let resident = |at: &usize| self.model.rows.iter().any(|row| row.group == *at);
                let open =
                    |at: &usize| self.model.groups[*at].put < self.model.groups[*at].size && resident(at);
                let candidates: Vec<usize> = (0..self.model.groups.len()).filter(open).collect();
                if !candidates.is_empty() {
                    let (priority, policy_version) = ((which % 5) as i64, (which % 4) as u64);
                    let put = Put { priority, policy_version, ..bare() };
                    self.put(candidates[which % candidates.len()], 1, put).await;
                }
            }
            Op::Extra { which, rows } => self.write_extra(which, rows).await,
            Op::Take { task, groups, count, sampler, min_policy_version } => {
                let take = Take { sampler, min_policy_version, ..Take::rows(TASKS[task], count) };
                self.take(task, groups, count, take).await;
            }
            Op::Repeat => self.repeat().await,
            Op::Tags { which, rows } => self.set_tags(which, rows).await,
            Op::Reset { task } => self.reset(task).await,
            Op::Ack { which } => self.ack(which).await,
            Op::Nack { which } => {
                if let Some(lease) = self.pick_lease(which) {
                    self.model.release(lease.id());
                    lease.nack().await.unwrap();
                }
            }
            Op::Forget { which } => {
                if let Some(lease) = self.pick_lease(which) {
                    self.model.release(lease.id());
                    drop(lease);
                }
            }
            Op::Expire => self.expire().await,
            Op::Clear { which, rows } => self.clear(which, rows).await,
            Op::Leave { client } => self.leave(client),
            Op::Snapshot => self.snapshot().await,
            Op::Reopen => self.reopen(),
            Op::Crash => self.crash(),
        }
    }

    async fn check(&self) {
        let inspection = self.partition.inspect();
        assert_eq!(inspection.rows, self.model.rows.len());
        invariants::rows_accounted(&inspection).unwrap();
        for (task, counts) in inspection.tasks.iter().enumerate() {
            let ready = self.model.rows.iter().filter(|row| Model::is_ready(row, task)).count();
            assert_eq!(counts.ready, ready, "task={}", counts.task);
            let leased =
                self.model.rows.iter().filter(|row| matches!(row.states[task], State::Leased(_))).count();
            assert_eq!(counts.leased, leased, "task={}", counts.task);
        }
        let keyed = self.model.rows.iter().filter_map(|row| Some((row.key.clone()?, row)));
        for (key, row) in keyed.take(2) {
            let found = self.partition.find(&[key]).unwrap();
            assert_eq!((found[0].row, &found[0].tags), (row.handle, &row.tags));
        }
        if let Some(gone) = self.model.gone.last() {
            let stale = self.partition.clear(&[*gone]).await;
            assert!(matches!(stale, Err(QueueError::StaleHandle { .. })), "{stale:?}");
        }
    }
}

fn run(operations: Vec<Op>, dir: Option<&Path>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(dir).await;
        for op in operations {
            world.apply(op).await;
            world.check().await;
        }
        let report = world.queue.verify().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
    });
}

/// Checks so many random courses; `ROLLDOCK_QUEUE_CASES` asks for another number. Says how many operations they had.
fn check(cases: u32, root: impl Fn() -> Option<tempfile::TempDir>) {
    let asked = std::env::var("ROLLDOCK_QUEUE_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(cases);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let checked = AtomicUsize::new(0);
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        let count = operations.len();
        let root = root();
        run(operations, root.as_ref().map(tempfile::TempDir::path));
        checked.fetch_add(count, Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let checked = checked.into_inner();
    assert!(checked >= cases as usize * OPERATIONS_MIN, "operations={checked}");
}

#[test]
fn in_memory_it_agrees_with_the_model() {
    check(CASES_IN_MEMORY, || None);
}

#[test]
fn on_disk_it_agrees_with_the_model() {
    check(CASES_ON_DISK, || Some(tempfile::tempdir().unwrap()));
}

/// What happened to each id that clients of one queue put, all of them at once.
#[derive(Debug, Default)]
struct Fates {
    put: BTreeSet<i64>,
    consumed: BTreeSet<i64>,
    cleared: BTreeSet<i64>,
}

const PRODUCERS: i64 = 3;
const PUTS: i64 = 250;

async fn produce(partition: Partition, producer: i64, fates: Arc<parking_lot::Mutex<Fates>>) {
    for number in 0..PUTS {
        let first = (producer * PUTS + number) * 4;
        let ids: Vec<i64> = (first..first + 1 + number % 4).collect();
        let token = Some(format!("{producer}/{number}"));
        let keys = ids.iter().map(|id| format!("k{id}")).collect();
        let put = Put { token, keys, ..Put::group(format!("{producer}/{number}"), payload(&ids)) };
        // A repetition whose first answer nobody waited for.
        let again = partition.put(put.clone(), None);
        let (handles, repeated) = tokio::join!(partition.put(put, None), again);
        let handles = handles.unwrap();
        assert_eq!(repeated, Ok(handles.clone()));
        fates.lock().put.extend(&ids);
        if number % 7 == 0 {
            match partition.clear(&handles).await {
                Ok(()) => fates.lock().cleared.extend(&ids),
                Err(error) => assert!(matches!(error, QueueError::StaleHandle { .. }), "{error}"),
            }
        }
    }
}

/// Acks some leases, gives others back, and lets go of the rest.
async fn consume(partition: Partition, consumer: usize, fates: Arc<parking_lot::Mutex<Fates>>) {
    for turn in consumer.. {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        let amount = if turn % 2 == 0 { Amount::Groups(3) } else { Amount::Rows(2) };
        let take = Take { amount, ..Take::rows("plain", 3) }.until(until);
        let Some(lease) = partition.take(&take).await.unwrap() else { return };
        let ids = checked_ids(&lease);
        tokio::task::yield_now().await;
        match turn % 4 {
            0 => lease.nack().await.unwrap(),
            1 => drop(lease),
            _ => {
                lease.ack().await.unwrap();
                let mut fates = fates.lock();
                ids.into_iter()
                    .for_each(|id| assert!(fates.consumed.insert(id), "id={id} is consumed twice"));
            }
        }
    }
}

/// Clients at once, with snapshots meanwhile: nothing is lost, and nothing is consumed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_once_account_for_every_row() {
    for root in [None, Some(tempfile::tempdir().unwrap())] {
        let queue = open(root.as_ref().map(|root| root.path().to_owned()));
        let partition = queue.declare(PartitionSpec::new("p", ["plain"], CAPACITY_ROWS)).await.unwrap();
        let fates = Arc::new(parking_lot::Mutex::new(Fates::default()));
        let (mut producing, mut consuming) = (JoinSet::new(), JoinSet::new());
        for producer in 0..PRODUCERS {
            producing.spawn(produce(partition.clone(), producer, Arc::clone(&fates)));
        }
        for consumer in 0..CLIENTS {
            consuming.spawn(consume(partition.clone(), consumer, Arc::clone(&fates)));
        }
        for _ in 0..10 {
            let bytes = Bytes::default();
            queue.snapshot(None, bytes.clone()).await.unwrap();
            let restored = open(None);
            let bytes = std::mem::take(&mut *bytes.0.lock());
            restored.restore(std::io::Cursor::new(bytes)).await.unwrap();
            assert!(restored.verify().await.unwrap().is_sound());
        }
        while let Some(producer) = producing.join_next().await {
            producer.unwrap();
        }
        partition.end_of_puts();
        while let Some(consumer) = consuming.join_next().await {
            consumer.unwrap();
        }
        let fates = std::mem::take(&mut *fates.lock());
        // A row that was leased when it was cleared may be acked too: then it counts once, as cleared.
        let accounted: BTreeSet<i64> = fates.consumed.union(&fates.cleared).copied().collect();
        assert_eq!(accounted, fates.put);
        let stats = partition.stats();
        assert_eq!((stats.rows, stats.rows_reserved, stats.leases), (0, 0, 0));
        let gone = stats.dispositions.acked + stats.dispositions.cleared;
        assert_eq!(gone as usize, fates.put.len());
        assert!(queue.verify().await.unwrap().is_sound());
    }
}
