//! Partitions from a snapshot, all of them or none.

use std::collections::VecDeque;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

use arrow::buffer::Buffer;

use super::read::Reader;
use super::{Line, SnapshotCounts};
use crate::journal::{Entry, Facts, Journal, PayloadRecord, Record};
use crate::partition::{Partition, Replay, Table, columns_of};
use crate::plane::OwnStore;
use crate::queue::Claim;
use crate::store::{DiskStore, Encoded, Store, decode};
use crate::{Chunk, ChunkId, ChunkLocation, Durability, QueueError, TransferQueue};

/// Payload that may be on its way to the disk; bytes.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;
/// Entries that may be.
const IN_FLIGHT_MAX: usize = 256;

/// Which record a payload belongs to, and where it lies now.
type Placed = (usize, Result<Option<ChunkLocation>, QueueError>);

/// Partitions that nobody sees yet.
struct Restoration<'a> {
    queue: &'a TransferQueue,
    replay: Replay,
    records: Vec<Record>,
    claims: Vec<Claim>,
    /// Given back unless the restoration comes to its end.
    chunks: Vec<ChunkId>,
    counts: SnapshotCounts,
    /// Bytes of payloads that are on their way to the disk.
    in_flight: VecDeque<u64>,
    placed: (Sender<Placed>, Receiver<Placed>),
}

impl TransferQueue {
    /// Makes the partitions of a snapshot; those of their names must not be there. On an error nothing has changed,
    /// and none of them is ever there in part, also after the death of the process.
    ///
    /// Not cancel-safe: a dropped restoration goes on to its end.
    pub async fn restore(
        &self,
        mut source: impl Read + Send + 'static,
    ) -> Result<SnapshotCounts, QueueError> {
        let queue = self.clone();
        let restoring = tokio::task::spawn_blocking(move || queue.restore_from(&mut source));
        restoring.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?
    }

    /// Blocks.
    pub(crate) fn restore_from(&self, source: &mut dyn Read) -> Result<SnapshotCounts, QueueError> {
        if self.inner.plane.is_read_only() {
            return Err(QueueError::ReadOnly);
        }
        let mut reader = Reader::new(source)?;
        let mut restoration = Restoration::new(self);
        loop {
            for line in reader.frame()? {
                match line {
                    Line::Record(record) => restoration.take(*record, &mut reader)?,
                    Line::End(counts) if counts == restoration.counts => {
                        reader.end()?;
                        restoration.finish()?;
                        return Ok(counts);
                    }
                    Line::End(counts) => {
                        let found = restoration.counts;
                        return Err(reader.bad(format!("its end counts {counts:?}, found {found:?}")));
                    }
                }
            }
        }
    }
}

impl<'a> Restoration<'a> {
    fn new(queue: &'a TransferQueue) -> Self {
        Self {
            queue,
            replay: Replay::detached(),
            records: Vec::new(),
            claims: Vec::new(),
            chunks: Vec::new(),
            counts: SnapshotCounts::default(),
            in_flight: VecDeque::new(),
            placed: channel(),
        }
    }

    /// Takes the next record, with its payload.
    fn take(&mut self, mut record: Record, reader: &mut Reader<'_>) -> Result<(), QueueError> {
        self.counts.count(&record);
        if let Record::Declare { spec, generation_floor, .. } = &mut record {
            let inner = &self.queue.inner;
            let is_there = || inner.partitions.lock().contains_key(&spec.name);
            self.claims.push(inner.claims.restore(&spec.name, is_there)?);
            // Handles of an earlier partition of this name name no row of this one but the one that they named then.
            let floor = inner.generation_floor.load(Ordering::Relaxed);
            *generation_floor = floor.max(*generation_floor);
        }
        self.replay.check(&record).map_err(|reason| reader.bad(reason))?;
        if let Some(payload) = record.payload() {
            let location = payload.location.ok_or_else(|| reader.bad("a put without its payload"))?;
            let bytes = reader.payload(&location)?;
            let rows = decode_untrusted(Buffer::from_vec(bytes.clone())).and_then(|chunk| {
                self.replay.check_payload(&record, &columns_of(chunk.schema()), chunk.rows())?;
                Ok(chunk)
            });
            self.keep_payload(&mut record, bytes, rows.map_err(|reason| reader.bad(reason))?)?;
        }
        self.replay.apply(record.clone()).map_err(|error| reader.bad(error))?;
        self.records.push(record);
        Ok(())
    }

    /// Keeps the payload of a record that has been checked.
    fn keep_payload(&mut self, record: &mut Record, bytes: Vec<u8>, rows: Chunk) -> Result<(), QueueError> {
        let chunk = ChunkId(self.queue.inner.next_chunk.fetch_add(1, Ordering::Relaxed));
        if let Some(payload) = record.payload_mut() {
            let columns = std::mem::take(&mut payload.columns);
            *payload = PayloadRecord { chunk, location: None, unit: None, columns, chunk_rows: Vec::new() };
        }
        self.chunks.push(chunk);
        match &self.queue.inner.plane.own {
            OwnStore::Memory(store) => {
                store.insert(chunk, rows);
                Ok(())
            }
            OwnStore::Disk { store, journal, .. } => self.write(chunk, bytes, store, journal),
            OwnStore::ReadOnly(_) => Err(QueueError::ReadOnly),
        }
    }

    /// Hands payload to the journal's writer; a record will refer to it later.
    fn write(
        &mut self,
        chunk: ChunkId,
        bytes: Vec<u8>,
        store: &Arc<DiskStore>,
        journal: &Journal,
    ) -> Result<(), QueueError> {
        while self.in_flight.len() >= IN_FLIGHT_MAX
            || self.in_flight.iter().sum::<u64>() > IN_FLIGHT_BYTES_MAX
        {
            self.await_place()?;
        }
        self.in_flight.push_back(bytes.len() as u64);
        let (record, placed, store) = (self.records.len(), self.placed.0.clone(), Arc::clone(store));
        let done = Box::new(move |place: Result<Option<ChunkLocation>, QueueError>| {
            if let Ok(Some(location)) = &place {
                store.insert(chunk, *location);
            }
            // Whoever restores waits for all of them.
            let _ = placed.send((record, place));
        });
        let entry = Entry {
            payload: Some(Encoded::from(vec![Buffer::from_vec(bytes)])),
            facts: Box::new(|_| Ok(Vec::new())),
            durability: Durability::Os,
            done,
        };
        send(journal, entry);
        Ok(())
    }

    fn await_place(&mut self) -> Result<(), QueueError> {
        let closed = || QueueError::Closed { partition: "of a snapshot".to_owned() };
        let (record, place) = self.placed.1.recv().map_err(|_| closed())?;
        self.in_flight.pop_front();
        let place = place?;
        if let Some(payload) = self.records.get_mut(record).and_then(Record::payload_mut) {
            payload.location = place;
        }
        Ok(())
    }

    /// Makes the partitions visible.
    fn finish(mut self) -> Result<(), QueueError> {
        while !self.in_flight.is_empty() {
            self.await_place()?;
        }
        let inner = &self.queue.inner;
        let tables: Vec<Table> =
            std::mem::replace(&mut self.replay, Replay::detached()).into_tables().collect();
        // Rows that every task had acked are gone with their payload.
        let is_idle = |chunk: &ChunkId| !tables.iter().any(|table| table.needs(*chunk));
        let idle: Vec<ChunkId> = self.chunks.iter().copied().filter(is_idle).collect();
        let home = self.queue.home();
        let (partitions, claims) = (Arc::clone(&inner.partitions), std::mem::take(&mut self.claims));
        let publish = move || {
            let mut partitions = partitions.lock();
            for table in tables {
                let partition = Partition::from_table(table, home.clone());
                partitions.insert(partition.name().to_owned(), partition);
            }
            drop(partitions);
            drop(claims);
        };
        match &inner.plane.own {
            OwnStore::Disk { journal, .. } => self.write_down(journal, publish)?,
            OwnStore::Memory(_) | OwnStore::ReadOnly(_) => publish(),
        }
        self.chunks = idle;
        Ok(())
    }

    /// All records in one frame: they are there together or not at all.
    fn write_down(
        &mut self,
        journal: &Journal,
        publish: impl FnOnce() + Send + 'static,
    ) -> Result<(), QueueError> {
        let records = std::mem::take(&mut self.records);
        let facts: Facts = Box::new(move |_| Ok(records));
        let (reply, outcome) = channel();
        let done = Box::new(move |durable: Result<Option<ChunkLocation>, QueueError>| {
            // On the writer's thread: no rewriting of the journal comes in between.
            let written = durable.map(|_| publish());
            let _ = reply.send(written);
        });
        send(journal, Entry { payload: None, facts, durability: Durability::Fsync, done });
        let closed = || QueueError::Closed { partition: "of a snapshot".to_owned() };
        outcome.recv().unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for Restoration<'_> {
    fn drop(&mut self) {
        // What is still on its way would come into the store after it was freed.
        while !self.in_flight.is_empty() {
            let _ = self.await_place();
        }
        self.queue.inner.plane.free(&self.chunks);
    }
}

fn send(journal: &Journal, entry: Entry) {
    if let Err(entry) = journal.send(entry) {
        (entry.done)(Err(QueueError::Closed { partition: "of a snapshot".to_owned() }));
    }
}

/// Rows that anybody may have written. Arrow's reader takes a stream's lengths on trust, and panics where one leads out
/// of its bytes.
fn decode_untrusted(bytes: Buffer) -> Result<Chunk, QueueError> {
    let panicked = |_| QueueError::Arrow { reason: "payload whose lengths lead out of its bytes".to_owned() };
    catch_unwind(AssertUnwindSafe(|| decode(bytes))).map_err(panicked)?
}
