//! A partition from its journal, and a journal from a partition.

mod check;
mod live;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::table::{Move, Table};
use crate::journal::{PayloadRecord, Record, Runs};
use crate::store::{DiskStore, Store};
use crate::units::Units;
use crate::{ChunkId, ChunkLocation, QueueError};

use live::ACK_ROWS;
pub(crate) use live::lease_records;
pub(super) use live::{SLICE_ROWS, Slice, declaration, rest, weight};

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
                table.move_chunks(&[Move { from, rows }], payload.chunk, 0);
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
