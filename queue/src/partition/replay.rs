//! Restoring partitions from the journal, and writing a partition as a new journal.

mod check;
mod mend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use tokio::time::Instant;

use super::Shared;
use super::table::{ACK_ROWS, Added, GENERATION_MAX, Move, Slice, Table, ack_records, declaration, rest};
use crate::error::QueueError;
use crate::journal::Sink;
use crate::plane::Plane;
use crate::record::{PayloadRecord, PutRecord, Record};
use crate::row::{RowHandle, Runs};
use crate::store::{ChunkId, Note, Reach};

pub(crate) use mend::{Mend, NamedTasks, Unusable};

/// The tables while records are replayed.
pub(crate) struct Replay {
    tables: BTreeMap<String, (Table, u32)>,
    /// The plane with the payload of the records. `None` if the caller handles the payload.
    plane: Option<Plane>,
    /// Chunks whose storage unit does not answer.
    pub(crate) away: HashSet<ChunkId>,
    /// The length of the sound part of the lease file.
    pub(crate) leases_sound: u64,
    pub(crate) next_chunk: u64,
    /// A number greater than every row generation of the removed partitions.
    pub(crate) generation_floor: u32,
}

impl Replay {
    pub(crate) fn new(plane: Plane) -> Self {
        Self { plane: Some(plane), ..Self::detached() }
    }

    /// Creates a replay without payload.
    pub(crate) fn detached() -> Self {
        Self {
            tables: BTreeMap::new(),
            plane: None,
            away: HashSet::new(),
            leases_sound: 0,
            next_chunk: 0,
            generation_floor: 0,
        }
    }

    /// Leaves out `count` generations of each slot, so that no later row gets the handle of a row that was put
    /// before the restart and whose record was lost.
    pub(crate) fn skip_generations(&mut self, count: u32) {
        let skipped = |floor: u32| floor.saturating_add(count).min(GENERATION_MAX);
        self.generation_floor = skipped(self.generation_floor);
        for (table, floor) in self.tables.values_mut() {
            *floor = skipped(table.generation_floor().max(*floor));
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

    fn keep(&mut self, payload: &PayloadRecord) -> Result<(), QueueError> {
        let PayloadRecord { chunk, note, .. } = payload;
        self.next_chunk = self.next_chunk.max(chunk.0 + 1);
        if let (Some(plane), Some(note)) = (&self.plane, note)
            && plane.keep(*chunk, note)? == Reach::Away
        {
            self.away.insert(*chunk);
        }
        Ok(())
    }

    fn free(&self, chunks: &[ChunkId]) {
        if let Some(plane) = &self.plane {
            plane.free(chunks);
        }
    }

    /// Applies a record to the table of its partition. Frees the chunks that no row needs any more. The function is
    /// long because it has one arm for each kind of record.
    pub(crate) fn apply(&mut self, record: Record) -> Result<(), QueueError> {
        match record {
            Record::Declare { spec, generation_floor, dispositions } => {
                // Two simultaneous declarations are both in the journal. The first declaration counts.
                self.tables.entry(spec.name.clone()).or_insert_with(|| {
                    let mut table = Table::new(spec);
                    table.dispositions = dispositions;
                    (table, generation_floor)
                });
            }
            Record::Types { partition, columns } => self.table(&partition)?.learn_columns(&columns),
            Record::Put(put) => self.apply_put(put)?,
            Record::Columns { partition, rows, payload, kib, overwrite, lengths, token } => {
                let added = Added { rows: &rows, payload: &payload, kib, overwrite, lengths: &lengths };
                self.apply_columns(&partition, added, token)?;
            }
            Record::Moved { partition, from, rows, payload } => {
                self.apply_move(&partition, Move { from, rows }, &payload)?;
            }
            Record::Tokens { partition, tokens } => {
                let table = self.table(&partition)?;
                tokens.into_iter().for_each(|(token, rows)| table.end_token(Some(token), Some(rows)));
            }
            Record::Ack { partition, task, rows, lease } => {
                self.apply_ack(&partition, &task, &rows, lease)?
            }
            Record::Lease { partition, task, lease, rows, holders } => {
                let table = self.table(&partition)?;
                let task = table.task(&task)?;
                // The time before the restart does not count, because the holder could not renew the lease.
                let expires = Instant::now() + table.spec.lease();
                table.restore_lease(lease, task, rows, holders, expires);
            }
            Record::LeasesEnd { partition, leases } => {
                let table = self.table(&partition)?;
                for lease in leases {
                    // The lease may already have been acked, or its rows may have been leased again.
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
                records.iter().for_each(|words| table.keep_record(words));
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
            Record::Floor { generation, file, .. } => {
                self.generation_floor = self.generation_floor.max(generation);
                if let (Some(plane), Some(file)) = (&self.plane, file) {
                    plane.own().keep_file(file);
                }
            }
        }
        Ok(())
    }

    fn apply_put(&mut self, put: PutRecord) -> Result<(), QueueError> {
        if !put.rows.is_empty() {
            self.keep(&put.payload)?;
        }
        let table = self.table(&put.partition)?;
        table.reserve_for_replay(&put.rows, put.kib);
        if let Err(released) = table.publish(put) {
            self.free(&released.chunks);
        }
        Ok(())
    }

    fn apply_columns(
        &mut self,
        partition: &str,
        added: Added<'_>,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        self.keep(added.payload)?;
        let table = self.table(partition)?;
        let mut freed = table.add_columns(added).released.chunks;
        table.end_token(token, Some(Runs::default()));
        if !table.needs(added.payload.chunk) {
            freed.push(added.payload.chunk);
        }
        self.free(&freed);
        Ok(())
    }

    fn apply_move(
        &mut self,
        partition: &str,
        moved: Move,
        payload: &PayloadRecord,
    ) -> Result<(), QueueError> {
        self.keep(payload)?;
        let from = moved.from;
        let table = self.table(partition)?;
        table.move_chunks(&[moved], payload.chunk, 0);
        let needed = table.needs(payload.chunk);
        self.free(&[from]);
        if !needed {
            self.free(&[payload.chunk]);
        }
        Ok(())
    }

    fn apply_ack(
        &mut self,
        partition: &str,
        task: &str,
        rows: &[RowHandle],
        lease: Option<u64>,
    ) -> Result<(), QueueError> {
        let table = self.table(partition)?;
        let task = table.task(task)?;
        let released = match lease {
            None => table.finish_ack(task, rows),
            Some(lease) => {
                // The lease exists only if the lease file has it.
                let _ = table.nack(lease);
                table.finish_ack_of(lease, task, rows)
            }
        };
        self.free(&released.chunks);
        Ok(())
    }
}

impl Shared {
    /// Writes every record of the partition to `sink`, for a rewritten journal. The table is locked for one
    /// slice at a time. Runs on the thread of the journal's writer.
    pub(crate) fn walk(
        &self,
        locate: &impl Fn(ChunkId) -> Option<Note>,
        sink: &mut Sink<'_>,
    ) -> Result<(), QueueError> {
        sink.push(&declaration(&self.table.lock()))?;
        let mut left = 0..u64::MAX;
        while !left.is_empty() {
            let slice = {
                let table = self.table.lock();
                let groups: Vec<_> =
                    table.next_groups(&mut left).into_iter().map(|(_, group)| group).collect();
                Slice::of(&table, &groups, locate)
            };
            slice.into_records().try_for_each(|record| sink.push(&record))?;
        }
        let (rest, acks) = {
            let table = self.table.lock();
            (rest(&table), ack_records(&table))
        };
        rest.chain(acks).try_for_each(|record| sink.push(&record))
    }
}
