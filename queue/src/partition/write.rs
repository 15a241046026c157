//! Payload and records on their way to where they last.

use tokio::sync::oneshot;

use super::{Partition, Plane};
use crate::journal::{Record, Recorder};
use crate::store::{Chunk, encode};
use crate::{ChunkId, Durability, QueueError};

impl Partition {
    /// The bytes for the disk, encoded off the I/O threads; or the chunk put into memory.
    pub(super) async fn payload(&self, chunk: ChunkId, rows: &Chunk) -> Result<Option<Vec<u8>>, QueueError> {
        match &self.shared.plane {
            Plane::Memory(store) => {
                store.insert(chunk, rows.clone());
                Ok(None)
            }
            Plane::ReadOnly(_) => Err(QueueError::ReadOnly),
            Plane::Disk { .. } => {
                let rows = rows.clone();
                let encoding = tokio::task::spawn_blocking(move || encode(&rows));
                let encoded =
                    encoding.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
                encoded.map(Some)
            }
        }
    }

    /// Commits a record with payload; `apply` runs once it is durable, whoever still waits for it.
    pub(super) async fn write(
        &self,
        payload: Option<Vec<u8>>,
        record: Record,
        chunk: ChunkId,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<(), QueueError> + Send + 'static,
    ) -> Result<(), QueueError> {
        let plane = self.shared.plane.clone();
        let (reply, outcome) = oneshot::channel();
        let recorder: Recorder = Box::new(move |location| record.at(location));
        self.shared.commit(payload, recorder, move |durable| {
            let durable = durable.map(|location| {
                if let (Plane::Disk { store, .. }, Some(location)) = (&plane, location) {
                    store.insert(chunk, location);
                }
            });
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(apply(durable));
        });
        if matches!(&self.shared.plane, Plane::Disk { .. }) && self.shared.durability == Durability::None {
            return Ok(());
        }
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }
}
