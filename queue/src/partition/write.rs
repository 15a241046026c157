//! Payload and records on their way to where they last.

use tokio::sync::oneshot;

use super::{Partition, Shared, Table};
use crate::journal::{Record, Recorder};
use crate::store::{Chunk, Encoded, NewChunk, Store, Stored, Within};
use crate::units::Place;
use crate::{ChunkId, ChunkLocation, QueueError};

/// A chunk and what is written down about it.
pub(super) struct Written {
    pub(super) chunk: ChunkId,
    pub(super) record: Record,
    /// Its place in the payload that is written with it; absent where it is all of that.
    pub(super) within: Option<Within>,
}

/// Where a stretch lies when the whole lies there.
fn within(within: Option<Within>, whole: ChunkLocation) -> ChunkLocation {
    let Some(Within { offset, length, checksum }) = within else { return whole };
    ChunkLocation { offset: whole.offset + offset, length, checksum, ..whole }
}

impl Shared {
    /// Keeps in mind where a chunk that has become visible lies, if that is on a unit.
    pub(super) fn learn_place(&self, table: &mut Table, chunk: ChunkId, unit: Option<Place>) {
        if let Some(place) = unit {
            let is_here = self.plane.units.insert(chunk, place);
            if !is_here {
                table.set_away(chunk, true);
            }
        }
    }
}

impl Partition {
    /// Hands a chunk to where payload lies. What comes back goes to [`write`](Self::write) without an await in between:
    /// who is cancelled there leaves nothing behind.
    pub(super) async fn store_one(
        &self,
        chunk: ChunkId,
        rows: &Chunk,
        group: &str,
    ) -> Result<Stored, QueueError> {
        let new = NewChunk { chunk, rows: rows.clone(), group: group.to_owned() };
        let stored = self.shared.plane.put(vec![new]).await?;
        let none = || QueueError::Arrow { reason: "a store that says nothing of a chunk".to_owned() };
        stored.into_iter().next().ok_or_else(none)
    }

    /// Commits records with payload; `apply` runs once they are durable, whoever still waits for it.
    pub(super) async fn write(
        &self,
        payload: Option<Encoded>,
        parts: Vec<Written>,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<(), QueueError> + Send + 'static,
    ) -> Result<(), QueueError> {
        let plane = self.shared.plane.clone();
        let (reply, outcome) = oneshot::channel();
        let places: Vec<(ChunkId, Option<Within>)> =
            parts.iter().map(|part| (part.chunk, part.within)).collect();
        let recorder: Recorder = Box::new(move |location| {
            let record = |part: Written| part.record.at(location.map(|whole| within(part.within, whole)));
            parts.into_iter().map(record).collect()
        });
        self.shared.commit(payload, recorder, move |durable| {
            let durable = durable.map(|location| {
                if let (Some(store), Some(whole)) = (plane.disk(), location) {
                    places.iter().for_each(|(chunk, part)| store.insert(*chunk, within(*part, whole)));
                }
            });
            if durable.is_err() {
                plane.free(&places.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>());
            }
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(apply(durable));
        });
        if self.returns_early() {
            return Ok(());
        }
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }
}
