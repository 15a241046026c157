//! Writing payload and records.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::table::types_record;
use super::{Partition, Recorder, Shared, Table};
use crate::config::ColumnSpec;
use crate::error::QueueError;
use crate::journal::Payload;
use crate::record::Record;
use crate::store::{Chunk, ChunkId, Encoded, NewChunk, Note, Reach, Stored};

/// A chunk and its record.
pub(super) struct Written {
    pub(super) chunk: ChunkId,
    pub(super) record: Record,
    /// The bytes of the chunk, if the journal's writer writes them.
    pub(super) payload: Option<Encoded>,
}

/// Returns whether the rows of a kept chunk can be read. If the store rejects its own note, the store is
/// broken, and the rows count as away.
fn reach_of(kept: Result<Reach, QueueError>, chunk: ChunkId) -> Reach {
    kept.unwrap_or_else(|error| {
        tracing::error!(chunk = chunk.0, %error, "a store rejects the note of a chunk that it has accepted");
        Reach::Away
    })
}

impl Shared {
    /// Adds a chunk to the queue, if it has a note. This is done under the table's lock, so that a later
    /// change of the chunk's state finds its rows.
    pub(super) fn keep(&self, table: &mut Table, chunk: ChunkId, note: Option<&Note>) {
        if let Some(note) = note
            && reach_of(self.plane.keep(chunk, note), chunk) == Reach::Away
        {
            table.set_away(chunk, true);
        }
    }
}

impl Partition {
    pub(super) fn check_writable(&self) -> Result<(), QueueError> {
        if self.shared.log.is_read_only() { Err(QueueError::ReadOnly) } else { Ok(()) }
    }

    /// Puts one chunk into a store. The caller must pass the result to [`write`](Self::write) without an
    /// await in between, so that a cancelled call leaves nothing behind.
    pub(super) async fn store_one(
        &self,
        chunk: ChunkId,
        rows: &Chunk,
        group: &str,
    ) -> Result<Stored, QueueError> {
        self.check_writable()?;
        let new = NewChunk { chunk, rows: rows.clone(), group: group.to_owned() };
        let stored = self.shared.plane.put(vec![new]).await?;
        let none = || QueueError::Arrow { reason: "expected one answer for a chunk, found none".to_owned() };
        stored.into_iter().next().ok_or_else(none)
    }

    /// Commits records with payload, and the types of columns that first occur in them. `apply` runs when the
    /// records are durable or have failed, even if the caller was cancelled.
    pub(super) async fn write(
        &self,
        types: Vec<ColumnSpec>,
        parts: Vec<Written>,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<(), QueueError> + Send + 'static,
    ) -> Result<(), QueueError> {
        let plane = self.shared.plane.clone();
        let (reply, outcome) = oneshot::channel();
        let chunks: SmallVec<[ChunkId; 1]> = parts.iter().map(|part| part.chunk).collect();
        let (mut payload, mut records) = (Payload::new(), Vec::with_capacity(parts.len() + 1));
        records.extend(types_record(&self.shared.name, types).map(|record| (record, false)));
        for Written { chunk, record, payload: encoded } in parts {
            records.push((record, encoded.is_some()));
            payload.extend(encoded.map(|encoded| (chunk, encoded)));
        }
        let appended: SmallVec<[ChunkId; 1]> = payload.iter().map(|(chunk, _)| *chunk).collect();
        let recorder: Recorder = Box::new(move |notes| {
            let mut notes = notes.iter();
            let with_note = |(record, is_appended): (Record, bool)| match is_appended {
                true => record.at(notes.next().cloned()),
                false => record,
            };
            records.into_iter().map(with_note).collect()
        });
        self.shared.commit(true, payload, recorder, move |durable| {
            let durable = durable.map(|notes| {
                // This is done before the rows are visible, and outside the table's lock.
                for (chunk, note) in appended.iter().zip(&notes) {
                    reach_of(plane.keep(*chunk, note), *chunk);
                }
            });
            if durable.is_err() {
                plane.free(&chunks);
            }
            // The receiver no longer exists if the caller was cancelled.
            let _ = reply.send(apply(durable));
        });
        if self.returns_early() {
            return Ok(());
        }
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }
}
