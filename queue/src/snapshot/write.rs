//! A captured queue as bytes, a piece at a time.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;

use super::capture::{Captured, Scrutiny, Source};
use super::{Line, MAGIC, SnapshotCounts};
use crate::journal::{Body, PayloadRecord, Record};
use crate::{ChunkId, ChunkLocation, QueueError, TransferQueue};

/// Frames without payload are of about this size; bytes.
const FRAME_BYTES: usize = 1 << 20;

/// A queue, or one of its partitions, at one moment: what it was when this was made, whatever happens meanwhile.
///
/// It holds the payload that was live then: memory, or open segment files (one for each that has live rows). Pieces
/// are made when they are asked for, with one chunk in memory at a time.
#[derive(Debug)]
pub struct Snapshot {
    records: VecDeque<(Record, Arc<HashMap<ChunkId, Source>>)>,
    ready: VecDeque<Bytes>,
    counts: SnapshotCounts,
    has_ended: bool,
}

impl Snapshot {
    fn of(captured: Vec<Captured>) -> Self {
        let mut records = VecDeque::new();
        for partition in captured {
            let chunks = Arc::new(partition.chunks);
            records.extend(partition.records.into_iter().map(|record| (record, Arc::clone(&chunks))));
        }
        let ready = VecDeque::from([Bytes::from_static(MAGIC)]);
        Self { records, ready, counts: SnapshotCounts::default(), has_ended: false }
    }

    /// The next bytes, until there are none. Blocks while it reads payload. After an error there is no more.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, QueueError> {
        if self.ready.is_empty() && !self.has_ended {
            let made = self.make();
            self.has_ended |= made.is_err();
            made?;
        }
        Ok(self.ready.pop_front())
    }

    /// What the pieces so far hold; all of it when there are no more.
    pub fn counts(&self) -> SnapshotCounts {
        self.counts
    }

    /// Makes the next frame, with the payload that belongs to it.
    fn make(&mut self) -> Result<(), QueueError> {
        let mut body = Body::default();
        while let Some((record, chunks)) = self.records.pop_front() {
            if record.payload().is_some() {
                if body.len() > 0 {
                    // Payload stands behind a frame of its own record.
                    self.records.push_front((record, chunks));
                    break;
                }
                return self.make_with_payload(record, &chunks);
            }
            body.push(&record)?;
            self.counts.count(&record);
            if body.len() >= FRAME_BYTES {
                break;
            }
        }
        if body.len() == 0 {
            body.push(&Line::End(self.counts))?;
            self.has_ended = true;
        }
        self.ready.push_back(body.into_frame()?.into());
        Ok(())
    }

    fn make_with_payload(
        &mut self,
        mut record: Record,
        chunks: &HashMap<ChunkId, Source>,
    ) -> Result<(), QueueError> {
        let Some(payload) = record.payload_mut() else { return Ok(()) };
        let missing = QueueError::ChunkGone { chunk: payload.chunk.0 };
        let bytes = chunks.get(&payload.chunk).ok_or(missing)?.bytes_of(&payload.chunk_rows)?;
        *payload = PayloadRecord {
            chunk: ChunkId(self.counts.chunks),
            location: Some(ChunkLocation {
                segment: 0,
                offset: 0,
                length: bytes.len() as u64,
                checksum: crc32fast::hash(&bytes),
            }),
            unit: None,
            columns: std::mem::take(&mut payload.columns),
            chunk_rows: Vec::new(),
        };
        let mut body = Body::default();
        body.push(&record)?;
        self.counts.count(&record);
        self.ready.push_back(body.into_frame()?.into());
        self.ready.push_back(Bytes::from_owner(bytes));
        Ok(())
    }
}

impl TransferQueue {
    /// What `partition` is now, or the whole queue, to be written somewhere. Traffic goes on.
    ///
    /// Cancel-safe: it changes nothing.
    pub async fn begin_snapshot(&self, partition: Option<&str>) -> Result<Snapshot, QueueError> {
        for one in self.partitions() {
            if partition.is_none_or(|name| name == one.name()) {
                match one.settled().await {
                    // Removed meanwhile: it is not in a snapshot of all.
                    Err(QueueError::UnknownPartition { .. }) if partition.is_none() => {}
                    settled => settled?,
                }
            }
        }
        let queue = self.clone();
        let partition = partition.map(str::to_owned);
        let capturing =
            tokio::task::spawn_blocking(move || queue.capture(partition.as_deref(), Scrutiny::None));
        Ok(Snapshot::of(capturing.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })??))
    }

    /// Writes what `partition` is now, or the whole queue. Traffic goes on.
    ///
    /// Not cancel-safe: a dropped snapshot goes on to be written.
    pub async fn snapshot(
        &self,
        partition: Option<&str>,
        mut into: impl Write + Send + 'static,
    ) -> Result<SnapshotCounts, QueueError> {
        let mut snapshot = self.begin_snapshot(partition).await?;
        let writing = tokio::task::spawn_blocking(move || {
            while let Some(piece) = snapshot.next_piece()? {
                into.write_all(&piece).map_err(QueueError::io("write", "a snapshot"))?;
            }
            into.flush().map_err(QueueError::io("write", "a snapshot"))?;
            Ok(snapshot.counts())
        });
        writing.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?
    }
}
