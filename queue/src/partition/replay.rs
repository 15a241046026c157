//! A partition from its journal, and a journal from a partition.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::table::{Label, Part, Progress, RowHandle, Table};
use crate::journal::{PayloadRecord, PutRecord, Record};
use crate::store::{DiskStore, Store};
use crate::{ChunkId, ChunkLocation, QueueError};

/// Tables while the journal is read.
pub(crate) struct Replay {
    tables: BTreeMap<String, (Table, u32)>,
    store: Arc<DiskStore>,
    pub(crate) next_chunk: u64,
}

impl Replay {
    pub(crate) fn new(store: Arc<DiskStore>) -> Self {
        Self { tables: BTreeMap::new(), store, next_chunk: 0 }
    }

    pub(crate) fn into_tables(self) -> impl Iterator<Item = Table> {
        self.tables.into_values().map(|(mut table, floor)| {
            table.finish_replay(floor);
            table.take_unrecorded_ends();
            table
        })
    }

    fn table(&mut self, name: &str) -> Result<&mut Table, QueueError> {
        let unknown = || QueueError::UnknownPartition { name: name.to_owned() };
        self.tables.get_mut(name).map(|(table, _)| table).ok_or_else(unknown)
    }

    fn chunk(&mut self, chunk: ChunkId, location: Option<ChunkLocation>) {
        self.next_chunk = self.next_chunk.max(chunk.0 + 1);
        if let Some(location) = location {
            self.store.insert(chunk, location);
        }
    }

    fn free(&self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.store.free(*chunk));
    }

    pub(crate) fn apply(&mut self, record: Record) -> Result<(), QueueError> {
        match record {
            Record::Declare { spec, generation_floor, dispositions } => {
                // Two declarations at once are both written down; the first one is the partition.
                self.tables.entry(spec.name.clone()).or_insert_with(|| {
                    let mut table = Table::new(spec);
                    table.dispositions = dispositions;
                    (table, generation_floor)
                });
            }
            Record::Put(put) => {
                self.chunk(put.payload.chunk, put.payload.location);
                let table = self.table(&put.partition)?;
                table.reserve_for_replay(&put.rows, put.kib);
                table.publish(put);
            }
            Record::Columns { partition, rows, payload, kib, token } => {
                self.chunk(payload.chunk, payload.location);
                let chunk = payload.chunk;
                let table = self.table(&partition)?;
                table.add_columns(&rows, &payload, kib);
                table.end_token(token, Some(rows));
                if !table.needs(chunk) {
                    self.free(&[chunk]);
                }
            }
            Record::Tokens { partition, tokens } => {
                let table = self.table(&partition)?;
                tokens.into_iter().for_each(|(token, rows)| table.remember(token, rows));
            }
            Record::Ack { partition, task, rows, lease } => {
                let table = self.table(&partition)?;
                let task = table.task(&task)?;
                let released = match lease {
                    None => table.finish_ack(task, &rows),
                    Some(lease) => {
                        // It is there only if it was written down.
                        let _ = table.nack(lease);
                        table.finish_ack_of(lease, task, &rows)
                    }
                };
                self.free(&released.chunks);
            }
            Record::Lease { partition, task, lease, rows } => {
                let table = self.table(&partition)?;
                let task = table.task(&task)?;
                // The time until the restart does not count: nobody could renew it.
                let expires = Instant::now() + table.spec.lease();
                table.restore_lease(lease, task, rows, expires);
            }
            Record::LeasesEnd { partition, leases } => {
                let table = self.table(&partition)?;
                for lease in leases {
                    // It may have been acked or given again before.
                    let _ = table.nack(lease);
                }
            }
            Record::Acked { partition, leases } => {
                let table = self.table(&partition)?;
                leases.into_iter().for_each(|lease| table.remember_ack(lease));
            }
            Record::Records { partition, records } => {
                let table = self.table(&partition)?;
                records.into_iter().for_each(|words| table.keep_record(words));
            }
            Record::Tags { partition, tags } => self.table(&partition)?.set_tags(tags),
            Record::Reset { partition, task } => {
                let table = self.table(&partition)?;
                let task = table.task(&task)?;
                table.reset(task);
            }
            Record::Version { partition, policy_version } => {
                let table = self.table(&partition)?;
                table.policy_version = table.policy_version.max(policy_version);
            }
            Record::EndSample { partition, sample } => self.table(&partition)?.end_sample(&sample),
            Record::Close { partition, groups, unfinished } => {
                let released = self.table(&partition)?.finish_close(&groups, unfinished);
                self.free(&released.chunks);
            }
            Record::Samples { partition, samples } => self.table(&partition)?.replay_samples(samples),
            Record::Closed { partition, groups } => self.table(&partition)?.remember_closed(groups),
            Record::Forget { partition, count } => self.table(&partition)?.forget_records(count),
            Record::Clear { partition, rows, why, token } => {
                let table = self.table(&partition)?;
                let released = table.remove(&rows, why);
                table.end_token(token, Some(rows));
                self.free(&released.chunks);
            }
        }
        Ok(())
    }
}

impl Record {
    /// The record with its payload's place.
    pub(crate) fn at(mut self, place: Option<ChunkLocation>) -> Self {
        match &mut self {
            Self::Put(PutRecord { payload, .. }) | Self::Columns { payload, .. } => payload.location = place,
            _ => {}
        }
        self
    }
}

/// Rows of a group by the chunk that a part of them lies in.
fn by_chunk(table: &Table, rows: &[RowHandle], part: usize) -> BTreeMap<ChunkId, Vec<(RowHandle, Part)>> {
    let mut chunks: BTreeMap<ChunkId, Vec<(RowHandle, Part)>> = BTreeMap::new();
    for handle in rows {
        let found = table.row(*handle).ok().and_then(|row| row.parts.get(part).cloned());
        if let Some(part) = found {
            chunks.entry(part.chunk).or_default().push((*handle, part));
        }
    }
    chunks
}

/// Tokens of each row; empty where none has any.
fn lengths(table: &Table, rows: &[(RowHandle, Part)]) -> Vec<u32> {
    let lengths: Vec<u32> =
        rows.iter().map(|(handle, _)| table.row(*handle).map_or(0, |row| row.length)).collect();
    if lengths.iter().all(|length| *length == 0) { Vec::new() } else { lengths }
}

/// Keys and tags of each row; empty where none has any.
fn labels(table: &Table, rows: &[(RowHandle, Part)]) -> Vec<Label> {
    let label = |(handle, _): &(RowHandle, Part)| {
        let row = table.row(*handle).ok()?;
        row.label.as_deref().cloned()
    };
    let labels: Vec<Option<Label>> = rows.iter().map(label).collect();
    if labels.iter().all(Option::is_none) {
        return Vec::new();
    }
    labels.into_iter().map(Option::unwrap_or_default).collect()
}

fn payload_record(chunk: ChunkId, rows: &[(RowHandle, Part)], store: &DiskStore) -> PayloadRecord {
    PayloadRecord {
        chunk,
        location: store.location(chunk),
        columns: rows.first().map_or_else(Vec::new, |(_, part)| part.columns.to_vec()),
        chunk_rows: rows.iter().map(|(_, part)| part.row).collect(),
    }
}

/// The records that make `table` as it is, for a journal without history.
pub(crate) fn live_records(table: &Table, store: &DiskStore) -> Vec<Record> {
    let partition = table.spec.name.clone();
    let mut records = vec![Record::Declare {
        spec: table.spec.clone(),
        generation_floor: table.generation_floor(),
        dispositions: table.dispositions,
    }];
    for group in table.groups.values() {
        if let Some(samples) = Table::samples_record(group) {
            records.push(Record::Samples { partition: partition.clone(), samples });
        }
        let mut group_gone = group.put - group.rows.len();
        // Rows of one put lie in one chunk: they go back as one put, with their places in it.
        for (chunk, rows) in by_chunk(table, &group.rows, 0) {
            records.push(Record::Put(PutRecord {
                partition: partition.clone(),
                group: group.key.clone(),
                group_size: group.size,
                group_gone: std::mem::take(&mut group_gone),
                sample: None,
                policy_version: group.policy_version,
                priority: group.priority,
                lengths: lengths(table, &rows),
                kib: rows.iter().filter_map(|(handle, _)| table.row(*handle).ok()).map(|row| row.kib).sum(),
                labels: labels(table, &rows),
                rows: rows.iter().map(|(handle, _)| *handle).collect(),
                payload: payload_record(chunk, &rows, store),
                token: None,
                words: None,
            }));
        }
        let parts_max =
            group.rows.iter().filter_map(|row| table.row(*row).ok()).map(|row| row.parts.len()).max();
        for part in 1..parts_max.unwrap_or(0) {
            for (chunk, rows) in by_chunk(table, &group.rows, part) {
                records.push(Record::Columns {
                    partition: partition.clone(),
                    rows: rows.iter().map(|(handle, _)| *handle).collect(),
                    payload: payload_record(chunk, &rows, store),
                    // Counted with the put.
                    kib: 0,
                    token: None,
                });
            }
        }
        for (task, spec) in table.spec.tasks.iter().enumerate() {
            // What is being acked has its own record on the way.
            let acked =
                |row: &&RowHandle| table.row(**row).is_ok_and(|row| row.progress[task] == Progress::Acked);
            let rows: Vec<RowHandle> = group.rows.iter().filter(acked).copied().collect();
            if !rows.is_empty() {
                let (partition, task) = (partition.clone(), spec.name.clone());
                records.push(Record::Ack { partition, task, rows, lease: None });
            }
        }
    }
    for (lease, task, rows) in table.recorded_leases() {
        let task = table.spec.tasks[task].name.clone();
        records.push(Record::Lease { partition: partition.clone(), task, lease, rows });
    }
    records.push(Record::Acked { partition: partition.clone(), leases: table.remembered_acks() });
    records.push(Record::Version { partition: partition.clone(), policy_version: table.policy_version });
    records
        .push(Record::Records { partition: partition.clone(), records: table.records().cloned().collect() });
    let groups = table.closed_groups();
    if !groups.is_empty() {
        records.push(Record::Closed { partition: partition.clone(), groups });
    }
    records.push(Record::Tokens { partition, tokens: table.remembered() });
    records
}
