//! A captured queue as bytes, piece by piece.

use std::collections::{HashMap, VecDeque};
use std::io::Write;

use bytes::Bytes;

use super::pack::Filling;
use super::{Line, MAGIC, SnapshotCounts};
use crate::error::QueueError;
use crate::partition::CutReader;
use crate::queue::{Captured, TransferQueue};
use crate::record::Record;
use crate::store::{ChunkId, Loader, Source};
use crate::tasks;

/// A queue, or one of its partitions, as it was when the snapshot began, whatever changes in the meantime.
///
/// Pieces are made on request, with one chunk and one frame in memory at a time. If a row is changed or freed
/// before it is read, its earlier state is kept in memory or in an open segment file. A snapshot that is read
/// slowly therefore uses space for all rows that were freed since it began. The queue's directory stays
/// locked until the snapshot is dropped.
#[derive(Debug)]
pub struct Snapshot {
    /// Keeps the directory locked: another process that opens it would delete what is read here.
    _queue: TransferQueue,
    partitions: VecDeque<CutReader>,
    /// Records of the first partition that were read but not written yet.
    records: VecDeque<Record>,
    chunks: HashMap<ChunkId, Source>,
    loader: Loader,
    ready: VecDeque<Bytes>,
    counts: SnapshotCounts,
    has_ended: bool,
}

impl Snapshot {
    fn of(queue: TransferQueue, captured: Vec<Captured>) -> Self {
        Self {
            _queue: queue,
            partitions: captured.into_iter().map(|partition| partition.records).collect(),
            records: VecDeque::new(),
            chunks: HashMap::new(),
            loader: Loader::default(),
            ready: VecDeque::from([Bytes::from_static(MAGIC)]),
            counts: SnapshotCounts::default(),
            has_ended: false,
        }
    }

    /// The next record, and whether it declares a partition.
    fn peek(&mut self) -> Option<bool> {
        while self.records.is_empty() {
            let Some((records, chunks)) = self.partitions.front_mut()?.read() else {
                self.partitions.pop_front();
                continue;
            };
            (self.records, self.chunks) = (records.into(), chunks);
        }
        self.records.front().map(|record| matches!(record, Record::Declare { .. }))
    }

    /// Returns the next bytes. Returns `None` at the end and after an error. Blocks while it reads payload.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, QueueError> {
        if self.ready.is_empty() && !self.has_ended {
            let made = self.make();
            self.has_ended |= made.is_err();
            made?;
        }
        Ok(self.ready.pop_front())
    }

    /// Returns the counts of the pieces made so far. After the last piece, these are the counts of the whole
    /// snapshot.
    pub fn counts(&self) -> SnapshotCounts {
        self.counts
    }

    /// Makes the next frame, with the payloads that belong to it.
    fn make(&mut self) -> Result<(), QueueError> {
        let mut filling = Filling::default();
        while let Some(is_declaration) = self.peek() {
            if is_declaration && !filling.is_empty() {
                break;
            }
            let Some(record) = self.records.pop_front() else { break };
            self.counts.count(&record);
            let loaded = match record.payload() {
                None => None,
                Some(payload) => {
                    let missing = QueueError::ChunkGone { chunk: payload.chunk.0 };
                    let source = self.chunks.get(&payload.chunk).ok_or(missing)?;
                    Some(self.loader.rows_of(payload.chunk, source, &payload.chunk_rows)?)
                }
            };
            filling.push_record(Box::new(record), loaded)?;
            // A declaration has a separate frame: a reader claims the partition's name before it reads any
            // payload, and no payload is shared by two partitions.
            if is_declaration || filling.is_full() {
                break;
            }
        }
        if filling.is_empty() {
            filling.push(&Line::End(self.counts))?;
            self.has_ended = true;
        }
        self.ready.extend(filling.close(&mut self.counts)?);
        Ok(())
    }
}

impl TransferQueue {
    /// Captures the current state of `partition`, or of the whole queue. Traffic continues.
    ///
    /// Cancel-safe: the call changes nothing.
    pub async fn begin_snapshot(&self, partition: Option<&str>) -> Result<Snapshot, QueueError> {
        for one in self.partitions() {
            if partition.is_none_or(|name| name == one.name()) {
                match one.settled().await {
                    // The partition was removed in the meantime, so a snapshot of the whole queue does not
                    // contain it.
                    Err(QueueError::UnknownPartition { .. }) if partition.is_none() => {}
                    settled => settled?,
                }
            }
        }
        let queue = self.clone();
        let partition = partition.map(str::to_owned);
        let capturing = tasks::blocking("snapshot", move || queue.capture(partition.as_deref()));
        let captured = capturing.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })??;
        Ok(Snapshot::of(self.clone(), captured))
    }

    /// Writes the current state of `partition`, or of the whole queue. Traffic continues.
    ///
    /// Not cancel-safe: if the call is dropped while the snapshot is written, the writing continues.
    pub async fn snapshot(
        &self,
        partition: Option<&str>,
        mut into: impl Write + Send + 'static,
    ) -> Result<SnapshotCounts, QueueError> {
        let mut snapshot = self.begin_snapshot(partition).await?;
        let writing = tasks::blocking("snapshot write", move || {
            while let Some(piece) = snapshot.next_piece()? {
                into.write_all(&piece).map_err(QueueError::io("write", "a snapshot"))?;
            }
            into.flush().map_err(QueueError::io("write", "a snapshot"))?;
            Ok(snapshot.counts())
        });
        writing.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?
    }
}
