//! Restores the partitions of a snapshot, all of them or none.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

use arrow_buffer::Buffer;

use super::read::{Frame, Reader};
use super::{SnapshotCounts, Stretch};
use crate::config::{ColumnSpec, Durability};
use crate::edges::wire::ipc::decode_batches;
use crate::error::QueueError;
use crate::journal::{Entry, Facts, Journal, Log, Notes, Payload};
use crate::partition::{Partition, Replay, Table};
use crate::put::columns_of;
use crate::queue::{Claim, TransferQueue};
use crate::record::{PayloadRecord, Record};
use crate::store::{Chunk, ChunkId, Encoded, NewChunk, Note, Stored};
use crate::tasks;

/// The maximum number of bytes of payload that wait to be written to disk. At this number, the restoration
/// waits.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;
/// The maximum number of journal entries that wait to be written to disk.
const IN_FLIGHT_MAX: usize = 256;

/// A chunk that was written, with the note to find it again, or the error of the write.
type Placed = (ChunkId, Result<Note, QueueError>);

/// A payload that was read, and the number of its rows that records have claimed. Each row belongs to one
/// record.
struct Arrival {
    chunk: ChunkId,
    columns: Vec<ColumnSpec>,
    rows: usize,
    /// The number of rows that records have claimed, from the first row on.
    given: usize,
    /// The partition to which the payload belongs.
    partition: Option<String>,
    /// The rows, if the queue's store holds them in memory.
    held: Option<Chunk>,
}

impl Arrival {
    fn rows_left(&self) -> usize {
        self.rows - self.given
    }

    /// Assigns the next rows to the record.
    fn give_rows(&mut self, record: &mut Record) -> Result<(), &'static str> {
        let (partition, rows, payload) = match record {
            Record::Put(put) => (&put.partition, put.rows.len(), &mut put.payload),
            Record::Columns { partition, rows, payload, .. } => (&*partition, rows.len(), payload),
            _ => return Ok(()),
        };
        if self.partition.get_or_insert_with(|| partition.clone()) != partition {
            return Err("payload of two partitions");
        }
        let first = self.given;
        self.given += rows;
        let places = u32::try_from(first).ok().zip(u32::try_from(self.given).ok());
        let (first, end) = places.ok_or("payload of too many rows")?;
        let is_whole = rows == self.rows;
        *payload = PayloadRecord {
            chunk: self.chunk,
            note: None,
            columns: std::mem::take(&mut payload.columns),
            chunk_rows: if is_whole { Vec::new() } else { (first..end).collect() },
        };
        Ok(())
    }
}

/// Partitions that are not visible yet.
struct Restoration<'a> {
    queue: &'a TransferQueue,
    replay: Replay,
    /// The records that the journal will get.
    records: Vec<Record>,
    notes: HashMap<ChunkId, Note>,
    claims: Vec<Claim>,
    /// The chunks that are freed when this value is dropped: all chunks, unless the restoration succeeds.
    chunks: Vec<ChunkId>,
    counts: SnapshotCounts,
    /// The bytes of each payload that waits to be written to disk.
    in_flight: VecDeque<u64>,
    placed: (Sender<Placed>, Receiver<Placed>),
}

impl TransferQueue {
    /// Creates the partitions of a snapshot. No partition of the same name may exist yet. After an error,
    /// nothing has changed. A partition is never restored in part, even if the process dies.
    ///
    /// Not cancel-safe: if the call is dropped, the restoration continues to its end.
    pub async fn restore(
        &self,
        mut source: impl Read + Send + 'static,
    ) -> Result<SnapshotCounts, QueueError> {
        let queue = self.clone();
        let restoring = tasks::blocking("snapshot restore", move || queue.restore_from(&mut source));
        restoring.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?
    }

    /// Restores a snapshot on the calling thread. Blocks.
    pub(crate) fn restore_from(&self, source: &mut dyn Read) -> Result<SnapshotCounts, QueueError> {
        if self.inner.log.is_read_only() {
            return Err(QueueError::ReadOnly);
        }
        let mut reader = Reader::new(source)?;
        let mut restoration = Restoration::new(self);
        loop {
            match reader.frame()? {
                Frame::Records { records, payloads } => restoration.take(records, &payloads, &mut reader)?,
                Frame::End(counts) if counts == restoration.counts => {
                    reader.end()?;
                    restoration.finish()?;
                    return Ok(counts);
                }
                Frame::End(counts) => {
                    let found = restoration.counts;
                    return Err(reader.bad(format!("its end counts {counts:?}, found {found:?}")));
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
            notes: HashMap::new(),
            claims: Vec::new(),
            chunks: Vec::new(),
            counts: SnapshotCounts::default(),
            in_flight: VecDeque::new(),
            placed: channel(),
        }
    }

    /// Reads the next frame with its payloads.
    fn take(
        &mut self,
        records: Vec<Record>,
        payloads: &[Stretch],
        reader: &mut Reader<'_>,
    ) -> Result<(), QueueError> {
        self.counts.count_payloads(payloads);
        let arrivals = payloads.iter().map(|stretch| self.keep_payload(*stretch, reader));
        let mut arrivals = arrivals.collect::<Result<Vec<_>, _>>()?;
        for record in records {
            self.take_record(record, &mut arrivals, reader)?;
        }
        for arrival in arrivals {
            let Some(partition) = arrival.partition.as_deref().filter(|_| arrival.rows_left() == 0) else {
                return Err(reader.bad("payload with rows that no record has"));
            };
            if let Some(rows) = &arrival.held {
                self.replay.table(partition)?.size_chunk(arrival.chunk, &rows.sizes());
            }
        }
        Ok(())
    }

    fn take_record(
        &mut self,
        mut record: Record,
        arrivals: &mut [Arrival],
        reader: &Reader<'_>,
    ) -> Result<(), QueueError> {
        self.counts.count(&record);
        if let Record::Declare { spec, generation_floor, .. } = &mut record {
            let inner = &self.queue.inner;
            let is_there = || inner.partitions.lock().contains_key(&spec.name);
            self.claims.push(inner.claims.restore(&spec.name, is_there)?);
            // With this floor, a handle of an earlier partition of this name refers to the same row as
            // before, or to no row.
            let floor = inner.generation_floor.load(Ordering::Relaxed);
            *generation_floor = floor.max(*generation_floor);
        }
        self.replay.check(&record).map_err(|reason| reader.bad(reason))?;
        if let Some(payload) = record.payload() {
            let missing = || reader.bad("a put without its payload");
            let arrival = arrivals.get_mut(payload.chunk.0 as usize).ok_or_else(missing)?;
            let checked = self.replay.check_payload(&record, &arrival.columns, arrival.rows_left());
            checked.map_err(|reason| reader.bad(reason))?;
            arrival.give_rows(&mut record).map_err(|reason| reader.bad(reason))?;
        }
        if self.queue.inner.log.is_written() {
            self.records.push(record.clone());
        }
        self.replay.apply(record).map_err(|error| reader.bad(error))
    }

    /// Reads and stores the next payload, before any record has claimed its rows.
    fn keep_payload(&mut self, stretch: Stretch, reader: &mut Reader<'_>) -> Result<Arrival, QueueError> {
        let bytes = Buffer::from_vec(reader.payload(stretch)?);
        let rows = decode_batches(bytes.clone(), usize::MAX).and_then(Chunk::new);
        let rows = rows.map_err(|reason| reader.bad(reason))?;
        let chunk = ChunkId(self.queue.inner.next_chunk.fetch_add(1, Ordering::Relaxed));
        self.chunks.push(chunk);
        let mut arrival = Arrival {
            chunk,
            columns: columns_of(rows.schema()),
            rows: rows.rows(),
            given: 0,
            partition: None,
            held: None,
        };
        match self.store(chunk, &rows)? {
            Stored::Held => arrival.held = Some(rows),
            Stored::Noted(note) => drop(self.notes.insert(chunk, note)),
            Stored::Unwritten(encoded) => self.write(chunk, encoded)?,
        }
        Ok(arrival)
    }

    /// Puts rows into the queue's own store. Blocks.
    fn store(&self, chunk: ChunkId, rows: &Chunk) -> Result<Stored, QueueError> {
        let new = NewChunk { chunk, rows: rows.clone(), group: String::new() };
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
        let stored = runtime.block_on(self.queue.inner.plane.own().put(vec![new]))?;
        let none = || QueueError::Arrow { reason: "expected one answer for a chunk, found none".to_owned() };
        stored.into_iter().next().ok_or_else(none)
    }

    /// Sends a payload to the journal's writer. Records will refer to the payload later.
    fn write(&mut self, chunk: ChunkId, rows: Encoded) -> Result<(), QueueError> {
        while self.in_flight.len() >= IN_FLIGHT_MAX
            || self.in_flight.iter().sum::<u64>() > IN_FLIGHT_BYTES_MAX
        {
            self.await_place()?;
        }
        let Log::Files { journal, .. } = &self.queue.inner.log else { return Err(QueueError::ReadOnly) };
        self.in_flight.push_back(rows.len());
        let (placed, plane) = (self.placed.0.clone(), self.queue.inner.plane.clone());
        let done = Box::new(move |written: Result<Notes, QueueError>| {
            let missing = || QueueError::ChunkGone { chunk: chunk.0 };
            let note = written.and_then(|notes| notes.into_iter().next().ok_or_else(missing));
            let kept = note.and_then(|note| plane.keep(chunk, &note).map(|_| note));
            // The restoration waits for every such message before it ends.
            let _ = placed.send((chunk, kept));
        });
        let payload = Payload::from_iter([(chunk, rows)]);
        let facts: Facts = Box::new(|_, _| Ok(()));
        let entry = Entry { adds: true, payload, facts, durability: Durability::Os, done };
        send(journal, entry);
        Ok(())
    }

    fn await_place(&mut self) -> Result<(), QueueError> {
        let closed = || QueueError::Closed { partition: "of a snapshot".to_owned() };
        let (chunk, place) = self.placed.1.recv().map_err(|_| closed())?;
        self.in_flight.pop_front();
        self.notes.insert(chunk, place?);
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
        // The replay has removed rows that every task had acked, so some chunks may hold no live row.
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
        for (chunk, note) in &self.notes {
            inner.plane.keep(*chunk, note)?;
        }
        match &inner.log {
            Log::Files { journal, .. } => self.write_down(journal, publish)?,
            Log::Nowhere | Log::ReadOnly => publish(),
        }
        self.chunks = idle;
        Ok(())
    }

    /// Writes all records in one frame of the journal, so that they take effect together or not at all.
    fn write_down(
        &mut self,
        journal: &Journal,
        publish: impl FnOnce() + Send + 'static,
    ) -> Result<(), QueueError> {
        let mut records = std::mem::take(&mut self.records);
        for payload in records.iter_mut().filter_map(Record::payload_mut) {
            payload.note = self.notes.get(&payload.chunk).cloned();
        }
        let facts: Facts = Box::new(move |_, body| records.iter().try_for_each(|record| body.push(record)));
        let (reply, outcome) = channel();
        let done = Box::new(move |durable: Result<Notes, QueueError>| {
            // This runs on the writer's thread, so the journal cannot be rewritten between the write and
            // `publish`.
            let written = durable.map(|_| publish());
            let _ = reply.send(written);
        });
        let payload = Payload::new();
        send(journal, Entry { adds: true, payload, facts, durability: Durability::Fsync, done });
        let closed = || QueueError::Closed { partition: "of a snapshot".to_owned() };
        outcome.recv().unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for Restoration<'_> {
    fn drop(&mut self) {
        // Waits for all writes. Otherwise, a chunk that still waits to be written would reach the store after
        // it was freed.
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
