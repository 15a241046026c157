//! Units as a store: chunks are put on the units of their groups, and read from the units that store them.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::{Chosen, Place, Units};
use crate::error::{ErrorClass, QueueError};
use crate::put::Put;
use crate::row::RowHandle;
use crate::store::{
    Capabilities, Chunk, ChunkId, Found, Live, NewChunk, Note, Reach, Store, Stored, UNITS, Wanted,
};

/// The maximum number of chunks of one call that are transferred at the same time.
const AT_A_TIME: usize = 16;

impl Units {
    /// Puts each chunk on the unit to which its group belongs, or on the next unit if that unit accepts no
    /// rows. Returns `None` if no unit accepts rows. Chunks that were already put are removed later, as blobs
    /// to which no table refers.
    pub(crate) async fn put_all(&self, chunks: &[NewChunk]) -> Result<Option<Vec<Stored>>, QueueError> {
        let putting = stream::iter(0..chunks.len()).map(|at| self.put_one(&chunks[at])).buffered(AT_A_TIME);
        let places: Vec<Option<Place>> = putting.try_collect().await?;
        Ok(places.into_iter().map(|place| place.map(|place| Stored::Noted(place.into_note()))).collect())
    }

    async fn put_one(&self, new: &NewChunk) -> Result<Option<Place>, QueueError> {
        while let Some(Chosen { unit, client, is_durable }) = self.choose(&new.group) {
            let blob = format!("{:032x}", rand::random::<u128>());
            let put = Put::group_of(blob.clone(), new.rows.pieces().to_vec());
            match client.put(put).await {
                Ok(rows) => return Ok(Some(Place { unit, blob, rows, is_durable })),
                Err(error)
                    if error.class() == ErrorClass::Retryable
                        || matches!(error, QueueError::DiskFull { .. } | QueueError::OutOfFiles { .. }) =>
                {
                    tracing::warn!(%unit, %error, "a storage unit accepts no rows; another unit gets them");
                    self.shun(&unit);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn get_one(&self, wanted: &Wanted, columns: Option<&[String]>) -> Result<Found, QueueError> {
        let gone = || QueueError::ChunkGone { chunk: wanted.chunk.0 };
        let place = self.place(wanted.chunk).ok_or_else(gone)?;
        let rows: &[RowHandle] = place.rows.get(wanted.first..wanted.first + wanted.rows).unwrap_or_default();
        let needed = |name: &&String| columns.is_none_or(|columns| columns.contains(name));
        let names: Vec<String> = wanted.columns.iter().filter(needed).cloned().collect();
        let fetched = match self.client_of(&place.unit) {
            Ok(client) => client.get(rows, Some(&names)).await,
            Err(error) => Err(error),
        };
        match fetched {
            Ok(batches) => Ok(Found { chunk: Chunk::new(batches)?, first: 0 }),
            Err(error) if error.class() == ErrorClass::Retryable => {
                tracing::warn!(unit = %place.unit, %error, "rows cannot be fetched");
                self.suspect(&place.unit);
                Err(QueueError::UnitAway { unit: place.unit.clone() })
            }
            // The chunk has moved since its place was read.
            Err(_) if self.place(wanted.chunk).is_none() => Err(gone()),
            Err(error) => Err(error),
        }
    }
}

impl Store for Units {
    fn name(&self) -> &'static str {
        UNITS
    }

    /// Units check their own rows, so the store counts as not local.
    fn capabilities(&self) -> Capabilities {
        Capabilities { outlives_process: true }
    }

    fn put(&self, chunks: Vec<NewChunk>) -> BoxFuture<'_, Result<Vec<Stored>, QueueError>> {
        let no_unit = || QueueError::UnitAway { unit: "any".to_owned() };
        async move { self.put_all(&chunks).await?.ok_or_else(no_unit) }.boxed()
    }

    fn get<'a>(
        &'a self,
        wanted: &'a [Wanted],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Vec<Result<Found, QueueError>>> {
        let fetching = stream::iter(0..wanted.len()).map(move |at| self.get_one(&wanted[at], columns));
        fetching.buffered(AT_A_TIME).collect().boxed()
    }

    fn free(&self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.forget(*chunk));
    }

    /// Always 0: no bytes are in this process.
    fn bytes(&self) -> u64 {
        0
    }
    fn keep(&self, chunk: ChunkId, note: &Note) -> Result<Reach, QueueError> {
        Ok(self.insert(chunk, note.content()?))
    }

    fn note(&self, chunk: ChunkId) -> Option<Note> {
        self.place(chunk).map(|place| Note::of(UNITS, place))
    }

    fn thin(&self, chunk: ChunkId, live: &Live<'_>) {
        self.forget_others(chunk, live);
    }

    /// Refuses rows on a unit that has died or is being drained since the client put them there.
    fn admit(&self, note: Note) -> Result<Note, QueueError> {
        let place = note.content::<Place>()?;
        let is_durable = self.check_takes_rows(&place.unit)?;
        if place.is_durable == is_durable {
            return Ok(note);
        }
        Ok(Place { is_durable, ..place.as_ref().clone() }.into_note())
    }
}
