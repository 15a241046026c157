//! Applies each operation to the queue and to the model, and compares the two.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rolldock_queue::{
    Amount, Durability, Lease, OnFull, Partition, PartitionSpec, Put, QueueConfig, QueueError, RowHandle,
    Snapshot, Take, TaskSpec, TransferQueue, invariants,
};

use crate::copied::copy_at_one_moment;
use crate::course::Op;
use crate::reference::{Model, ModelGroup, ModelRow, State};
use crate::rows::{Replaced, bare, checked_ids, payload};
use crate::{CAPACITY_ROWS, CLIENTS, LEASE_MS, TASKS};

pub(crate) struct World<'a> {
    /// The folder for the directories of the queue, or `None` for a queue in memory.
    root: Option<&'a Path>,
    /// The number of processes that have died so far.
    deaths: usize,
    queue: TransferQueue,
    partition: Partition,
    /// The open leases, each with the client that holds it.
    leases: Vec<(usize, Lease)>,
    takes: usize,
    tokens: usize,
    /// The last put that had a token, with its handles.
    tokened: Option<(Put, Vec<RowHandle>)>,
    /// The snapshot that has begun, the bytes that were read of it, and the model at its beginning. The
    /// snapshot keeps the directory of the queue locked.
    snapshot: Option<(Snapshot, Vec<u8>, Model)>,
    model: Model,
}

/// The directory of the queue after `deaths` deaths.
fn dir(root: Option<&Path>, deaths: usize) -> Option<PathBuf> {
    root.map(|root| root.join(deaths.to_string()))
}

pub(crate) fn open(dir: Option<PathBuf>) -> TransferQueue {
    let config = QueueConfig {
        dir,
        durability: Durability::Os,
        segment_bytes: 4096,
        journal_bytes: 4096,
        ..QueueConfig::default()
    };
    TransferQueue::open(config).unwrap()
}

/// Restores a snapshot into a queue in memory.
pub(crate) async fn restored(snapshot: Vec<u8>) -> TransferQueue {
    let queue = open(None);
    queue.restore(std::io::Cursor::new(snapshot)).await.unwrap();
    queue
}

impl<'a> World<'a> {
    pub(crate) async fn new(root: Option<&'a Path>) -> World<'a> {
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
            snapshot: None,
            model: Model::default(),
        }
    }

    /// Puts rows of a group with the settings of `put`. If `put` has keys, each row gets a new key instead.
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
        self.model.writes += 1;
        let extra = Replaced::Extra.rows(&ids, self.model.writes);
        self.partition.write_columns(&handles, extra.clone()).await.unwrap();
        for at in chosen {
            let row = &mut self.model.rows[at];
            (row.extra, row.versions[1]) = (true, self.model.writes);
        }
        let twice = self.partition.write_columns(&handles, extra).await;
        assert!(matches!(twice, Err(QueueError::ColumnExists { .. })), "{twice:?}");
    }

    /// Replaces values of some rows, leased or not. Rows without the column `extra` get it.
    async fn rewrite(&mut self, which: usize, rows: usize, replaced: Replaced) {
        if self.model.rows.is_empty() {
            return;
        }
        self.model.writes += 1;
        let version = self.model.writes;
        let first = which % self.model.rows.len();
        let (mut handles, mut ids) = (Vec::new(), Vec::new());
        for row in self.model.rows[first..].iter_mut().take(rows) {
            handles.push(row.handle);
            ids.push(row.id);
            let [tokens, extra] = replaced.has();
            row.extra |= extra;
            if tokens {
                row.versions[0] = version;
            }
            if extra {
                row.versions[1] = version;
            }
        }
        self.partition.overwrite_columns(&handles, replaced.rows(&ids, version)).await.unwrap();
    }

    async fn take(&mut self, task: usize, groups: bool, count: usize, take: Take) {
        let amount = if groups { Amount::Groups(count) } else { Amount::Rows(count) };
        let take = Take { amount, ..take };
        let expected = self.model.expected(task, groups, count, &take);
        let taken = self.partition.take(&take).await.unwrap();
        let versions = |id| self.model.versions(id);
        let found = taken.as_ref().map_or_else(Vec::new, |lease| checked_ids(lease, versions));
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

    async fn snapshot(&mut self, pieces: usize) {
        if self.snapshot.is_some() {
            return self.end_snapshot().await;
        }
        let mut begun = self.queue.begin_snapshot(None).await.unwrap();
        let read = (0..pieces).map_while(|_| begun.next_piece().unwrap()).flatten().collect();
        self.snapshot = Some((begun, read, self.model.clone()));
    }

    /// Checks that the queue is sound at the end.
    pub(crate) async fn end(mut self) {
        self.end_snapshot().await;
        let report = self.queue.verify().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
    }

    /// Reads the rest of a snapshot, and compares it with the model at its beginning. Rows that were leased
    /// at that time are free in the snapshot.
    async fn end_snapshot(&mut self) {
        let Some((mut begun, mut bytes, model)) = self.snapshot.take() else { return };
        while let Some(piece) = begun.next_piece().unwrap() {
            bytes.extend(piece);
        }
        let partition = restored(bytes).await.partition("p").unwrap();
        assert_eq!(partition.stats().rows, model.rows.len());
        for (task, name) in TASKS.into_iter().enumerate() {
            let is_there = |row: &&ModelRow| row.states[task] != State::Acked && (task == 0 || row.extra);
            let expected: Vec<i64> = model.rows.iter().filter(is_there).map(|row| row.id).collect();
            let taken = partition.take(&Take::rows(name, CAPACITY_ROWS)).await.unwrap();
            let versions = |id| model.versions(id);
            let found = taken.as_ref().map_or_else(Vec::new, |lease| checked_ids(lease, versions));
            assert_eq!(found, expected, "task={name}");
        }
        for row in model.rows.iter().filter(|row| row.key.is_some()) {
            let found = partition.find(row.key.as_slice()).unwrap();
            assert_eq!((found[0].row, &found[0].tags), (row.handle, &row.tags));
        }
    }

    /// Closes the queue and opens it again, as another process does. Leased rows are free afterwards.
    fn reopen(&mut self) {
        if self.root.is_none() {
            return;
        }
        self.end_leases();
        self.queue.close();
        self.start();
    }

    /// Opens a copy of the current files, as another process does after this one has died.
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
        // The directory is unlocked when the last handle is dropped.
        let spec = self.partition.spec();
        self.queue = open(None);
        self.partition = futures::executor::block_on(self.queue.declare(spec)).unwrap();
        self.queue = open(dir(self.root, self.deaths));
        self.partition = self.queue.partition("p").unwrap();
    }

    pub(crate) async fn apply(&mut self, op: Op) {
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
                // The queue may forget a group that has no rows left, so only groups with rows are completed.
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
            Op::Rewrite { which, rows, replaced } => self.rewrite(which, rows, replaced).await,
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
            Op::Snapshot { pieces } => self.snapshot(pieces).await,
            Op::Reopen => {
                self.end_snapshot().await;
                self.reopen();
            }
            Op::Crash => {
                self.end_snapshot().await;
                self.crash();
            }
        }
    }

    pub(crate) async fn check(&self) {
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
