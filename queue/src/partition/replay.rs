//! A partition from its journal, and a journal from a partition.

mod check;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use super::table::{Label, Part, Progress, RowHandle, Table};
use crate::journal::{PayloadRecord, PutRecord, Record, Runs};
use crate::store::{DiskStore, Store};
use crate::units::{Place, Units};
use crate::{ChunkId, ChunkLocation, QueueError};

/// Tables while records are read.
pub(crate) struct Replay {
    tables: BTreeMap<String, (Table, u32)>,
    /// Where payload lies that records give the place of; absent where somebody else keeps it.
    store: Option<Arc<DiskStore>>,
    pub(crate) units: Arc<Units>,
    /// Length of the sound part of the file of leases.
    pub(crate) leases_sound: u64,
    pub(crate) next_chunk: u64,
    /// Above every row generation that partitions gave out which are gone.
    pub(crate) generation_floor: u32,
}

impl Replay {
    pub(crate) fn new(store: Arc<DiskStore>) -> Self {
        Self { store: Some(store), ..Self::detached() }
    }

    /// Of control state alone.
    pub(crate) fn detached() -> Self {
        Self {
            tables: BTreeMap::new(),
            store: None,
            units: Arc::default(),
            leases_sound: 0,
            next_chunk: 0,
            generation_floor: 0,
        }
    }

    pub(crate) fn into_tables(self) -> impl Iterator<Item = Table> {
        self.tables.into_values().map(|(mut table, floor)| {
            table.finish_replay(floor);
            table.take_unrecorded_ends();
            table
        })
    }

    pub(crate) fn table(&mut self, name: &str) -> Result<&mut Table, QueueError> {
        let unknown = || QueueError::UnknownPartition { name: name.to_owned() };
        self.tables.get_mut(name).map(|(table, _)| table).ok_or_else(unknown)
    }

    fn chunk(&mut self, payload: &PayloadRecord) {
        let (chunk, location) = (payload.chunk, payload.location);
        if let Some(place) = &payload.unit {
            self.units.insert(chunk, place.clone());
        }
        self.next_chunk = self.next_chunk.max(chunk.0 + 1);
        if let (Some(store), Some(location)) = (&self.store, location) {
            store.insert(chunk, location);
        }
    }

    fn free(&self, chunks: &[ChunkId]) {
        self.units.free(chunks);
        if let Some(store) = &self.store {
            store.free(chunks);
        }
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
                if !put.rows.is_empty() {
                    self.chunk(&put.payload);
                }
                let table = self.table(&put.partition)?;
                table.reserve_for_replay(&put.rows, put.kib);
                if let Err(released) = table.publish(put) {
                    self.free(&released.chunks);
                }
            }
            Record::Columns { partition, rows, payload, kib, token } => {
                self.chunk(&payload);
                let chunk = payload.chunk;
                let table = self.table(&partition)?;
                table.add_columns(&rows, &payload, kib);
                table.end_token(token, Some(Runs::default()));
                if !table.needs(chunk) {
                    self.free(&[chunk]);
                }
            }
            Record::Moved { partition, from, rows, payload } => {
                self.chunk(&payload);
                let table = self.table(&partition)?;
                table.move_chunk(from, payload.chunk, &rows, 0);
                let needed = table.needs(payload.chunk);
                self.free(&[from]);
                if !needed {
                    self.free(&[payload.chunk]);
                }
            }
            Record::Tokens { partition, tokens } => {
                let table = self.table(&partition)?;
                tokens.into_iter().for_each(|(token, rows)| table.end_token(Some(token), Some(rows)));
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
                let numbers =
                    leases.into_iter().flat_map(|(first, count)| first..first + count.min(ACK_ROWS as u64));
                numbers.for_each(|lease| table.remember_ack(lease));
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
                table.raise_version(policy_version);
            }
            Record::EndSample { partition, sample } => self.table(&partition)?.end_sample(&sample),
            Record::Close { partition, groups, unfinished } => {
                let released = self.table(&partition)?.finish_close(&groups, unfinished);
                self.free(&released.chunks);
            }
            Record::Samples { partition, samples } => self.table(&partition)?.replay_samples(samples),
            Record::Closed { partition, names } => self.table(&partition)?.remember_closed(&names),
            Record::End { partition } => self.table(&partition)?.end(),
            Record::Forget { partition, count } => self.table(&partition)?.forget_records(count),
            Record::Clear { partition, rows, why, token } => {
                let table = self.table(&partition)?;
                let released = table.remove(&rows, why);
                table.end_token(token, Some(Runs::default()));
                self.free(&released.chunks);
            }
            Record::Remove { partition, generation_floor } => {
                self.generation_floor = self.generation_floor.max(generation_floor);
                if let Some((table, _)) = self.tables.remove(&partition) {
                    self.free(&table.chunk_ids());
                }
            }
            Record::Floor { generation } => self.generation_floor = self.generation_floor.max(generation),
        }
        Ok(())
    }
}

impl Record {
    /// The record with its payload's place.
    pub(crate) fn at(mut self, place: Option<ChunkLocation>) -> Self {
        if let Some(payload) = self.payload_mut() {
            payload.location = place;
        }
        self
    }
}

/// Rows of an ack's record.
const ACK_ROWS: usize = 8192;
/// Of a record that holds owners' words or tokens.
const WORDS_BYTES: usize = 1 << 20;

/// Where payload lies: on disk, or on a unit.
pub(crate) type Located = (Option<ChunkLocation>, Option<Place>);

/// Rows of one chunk.
type InChunk = (ChunkId, Vec<(RowHandle, Part)>);

/// Rows by the chunk that a part of them lies in; chunks in order of their first row, rows in their own.
fn by_chunk<'a>(table: &Table, rows: impl Iterator<Item = &'a RowHandle>, part: usize) -> Vec<InChunk> {
    let mut chunks: Vec<InChunk> = Vec::new();
    let mut places: HashMap<ChunkId, usize> = HashMap::new();
    for handle in rows {
        let found = table.row(*handle).ok().and_then(|row| row.parts.get(part).cloned());
        let Some(part) = found else { continue };
        let place = *places.entry(part.chunk).or_insert_with(|| {
            chunks.push((part.chunk, Vec::new()));
            chunks.len() - 1
        });
        chunks[place].1.push((*handle, part));
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

fn payload_record(
    chunk: ChunkId,
    rows: &[(RowHandle, Part)],
    locate: &impl Fn(ChunkId) -> Located,
) -> PayloadRecord {
    let (location, unit) = locate(chunk);
    PayloadRecord {
        chunk,
        location,
        unit,
        columns: rows.first().map_or_else(Vec::new, |(_, part)| part.columns.to_vec()),
        chunk_rows: rows.iter().map(|(_, part)| part.row).collect(),
    }
}

/// The records that make `table` as it is, for a journal without history or a snapshot. Leases are not in them: what
/// somebody holds is not consumed.
///
/// Columns that were added to rows of many groups come once for the whole chunk, after all puts.
pub(crate) fn live_records(table: &Table, locate: impl Fn(ChunkId) -> Located) -> Vec<Record> {
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
        let mut puts = by_chunk(table, group.rows.iter(), 0);
        if puts.is_empty() {
            // The rest of the group is still to come.
            puts.push((ChunkId(0), Vec::new()));
        }
        for (chunk, rows) in puts {
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
                payload: payload_record(chunk, &rows, &locate),
                token: None,
                words: None,
            }));
        }
    }
    let rows = || table.groups.values().flat_map(|group| &group.rows);
    let parts_max = rows().filter_map(|row| table.row(*row).ok()).map(|row| row.parts.len()).max();
    for part in 1..parts_max.unwrap_or(0) {
        for (chunk, rows) in by_chunk(table, rows(), part) {
            records.push(Record::Columns {
                partition: partition.clone(),
                rows: rows.iter().map(|(handle, _)| *handle).collect(),
                payload: payload_record(chunk, &rows, &locate),
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
        let rows: Vec<RowHandle> = rows().filter(acked).copied().collect();
        records.extend(rows.chunks(ACK_ROWS).map(|rows| Record::Ack {
            partition: partition.clone(),
            task: spec.name.clone(),
            rows: rows.to_vec(),
            lease: None,
        }));
    }
    records.push(Record::Version { partition: partition.clone(), policy_version: table.policy_version });
    if table.ended {
        records.push(Record::End { partition: partition.clone() });
    }
    let names = table.closed_groups();
    if !names.is_empty() {
        records.push(Record::Closed { partition, names });
    }
    push_words(table, &mut records);
    records
}

/// Which acks were done, for a journal without history.
pub(crate) fn ack_records(table: &Table) -> Vec<Record> {
    let name = || table.spec.name.clone();
    let mut leases: Vec<(u64, u64)> = Vec::new();
    for acked in table.remembered_acks() {
        match leases.last_mut() {
            Some((first, count)) if *first + *count == acked => *count += 1,
            _ => leases.push((acked, 1)),
        }
    }
    let acked = (!leases.is_empty()).then(|| Record::Acked { partition: name(), leases });
    acked.into_iter().collect()
}

/// What clients hold.
pub(crate) fn lease_records(table: &Table) -> Vec<Record> {
    let lease = |(lease, task, rows): (u64, usize, Vec<RowHandle>)| Record::Lease {
        partition: table.spec.name.clone(),
        task: table.spec.tasks[task].name.clone(),
        lease,
        rows,
    };
    table.recorded_leases().into_iter().map(lease).collect()
}

/// What outlives its rows, in records of moderate size.
fn push_words(table: &Table, records: &mut Vec<Record>) {
    let name = || table.spec.name.clone();
    let mut words = Vec::new();
    let mut bytes = 0;
    for one in table.records() {
        bytes += one.len();
        words.push(one.clone());
        if bytes >= WORDS_BYTES {
            records.push(Record::Records { partition: name(), records: std::mem::take(&mut words) });
            bytes = 0;
        }
    }
    if !words.is_empty() {
        records.push(Record::Records { partition: name(), records: words });
    }
    let tokens = table.remembered();
    records.extend(
        tokens.chunks(ACK_ROWS).map(|tokens| Record::Tokens { partition: name(), tokens: tokens.to_vec() }),
    );
}
