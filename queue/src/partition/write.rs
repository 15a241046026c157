//! Payload and records on their way to where they last.

use tokio::sync::oneshot;

use super::{Partition, Plane, Put, Shared, Table};
use crate::journal::{Record, Recorder};
use crate::store::{Chunk, ChunkSizes, encode};
use crate::units::{BLOBS, Chosen, Place};
use crate::{ChunkId, ChunkLocation, ErrorClass, Queue, QueueError};

/// A chunk and what is written down about it.
pub(super) struct Written {
    pub(super) chunk: ChunkId,
    pub(super) record: Record,
    /// Its place in the payload that is written with it; absent where it is all of that.
    pub(super) within: Option<Within>,
}

/// A stretch of payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Within {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) checksum: u32,
}

impl Within {
    /// Where the stretch lies when the whole lies there.
    fn of(within: Option<Self>, whole: ChunkLocation) -> ChunkLocation {
        let Some(Self { offset, length, checksum }) = within else { return whole };
        ChunkLocation { offset: whole.offset + offset, length, checksum, ..whole }
    }
}

impl Shared {
    /// Keeps in mind where a chunk that has become visible lies, if that is on a unit.
    pub(super) fn learn_place(&self, table: &mut Table, chunk: ChunkId, unit: Option<Place>) {
        if let Some(place) = unit {
            let is_here = self.units.insert(chunk, place);
            if !is_here {
                table.set_away(chunk, true);
            }
        }
    }
}

impl Partition {
    /// Payload on its way: the bytes for the disk, encoded off the I/O threads; or put into memory; or on a unit.
    pub(super) async fn payload(
        &self,
        chunk: ChunkId,
        rows: &Chunk,
        group: &str,
    ) -> Result<(Option<Vec<u8>>, Option<Place>), QueueError> {
        if let Some(place) = self.place(rows, group).await? {
            return Ok((None, Some(place)));
        }
        match &self.shared.plane {
            Plane::Memory(store) => {
                store.insert(chunk, rows.clone());
                Ok((None, None))
            }
            Plane::ReadOnly(_) => Err(QueueError::ReadOnly),
            Plane::Disk { .. } => {
                let rows = rows.clone();
                let encoding = tokio::task::spawn_blocking(move || encode(&rows));
                let encoded =
                    encoding.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
                Ok((Some(encoded?), None))
            }
        }
    }

    /// Puts rows on the unit that their group belongs to, or the next one if that is away. `None`: there are no units.
    async fn place(&self, rows: &Chunk, group: &str) -> Result<Option<Place>, QueueError> {
        while let Some(Chosen { unit, client, is_durable }) = self.shared.units.choose(group) {
            let blob = format!("{:032x}", rand::random::<u128>());
            let put =
                Put { batches: rows.pieces().to_vec(), ..Put::group(blob.clone(), rows.pieces()[0].clone()) };
            let put = Put { group_size: rows.rows(), ..put };
            match client.put(BLOBS, put, None).await {
                Ok(rows) => return Ok(Some(Place { unit, blob, rows, is_durable })),
                Err(error) if error.class() == ErrorClass::Retryable => {
                    tracing::warn!(%unit, %error, "a storage unit takes no rows; another one gets them");
                    self.shared.units.shun(&unit);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// How much a chunk that [`payload`](Self::payload) was made of keeps in memory; `None` if it lies elsewhere.
    pub(super) fn sizes(&self, rows: &Chunk, unit: Option<&Place>) -> Option<ChunkSizes> {
        (unit.is_none() && matches!(self.shared.plane, Plane::Memory(_))).then(|| rows.sizes())
    }

    /// Commits records with payload; `apply` runs once they are durable, whoever still waits for it.
    pub(super) async fn write(
        &self,
        payload: Option<Vec<u8>>,
        parts: Vec<Written>,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<(), QueueError> + Send + 'static,
    ) -> Result<(), QueueError> {
        let plane = self.shared.plane.clone();
        let (reply, outcome) = oneshot::channel();
        let places: Vec<(ChunkId, Option<Within>)> =
            parts.iter().map(|part| (part.chunk, part.within)).collect();
        let recorder: Recorder = Box::new(move |location| {
            let record = |part: Written| part.record.at(location.map(|whole| Within::of(part.within, whole)));
            parts.into_iter().map(record).collect()
        });
        self.shared.commit(payload, recorder, move |durable| {
            let durable = durable.map(|location| {
                if let (Plane::Disk { store, .. }, Some(whole)) = (&plane, location) {
                    places
                        .iter()
                        .for_each(|(chunk, within)| store.insert(*chunk, Within::of(*within, whole)));
                }
            });
            if durable.is_err() {
                places.iter().for_each(|(chunk, _)| plane.store().free(*chunk));
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
