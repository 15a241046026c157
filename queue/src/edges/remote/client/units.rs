//! Calls for the storage units of a controller, and the client of a unit.

use arrow_array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Call, Content, RemoteQueue};
use crate::edges::remote::client::path;
use crate::edges::wire::{BlobsBody, ClearBody, UnitsAnswer, UnknownAnswer};
use crate::units::{BLOBS, UnitClient};
use crate::{Put, Queue, QueueError, RowHandle, UnitCard, UnitInspection};

impl RemoteQueue {
    /// The storage units, in order of their names. Cancel-safe.
    pub async fn units(&self) -> Result<Vec<UnitInspection>, QueueError> {
        Ok(self.link.json::<UnitsAnswer>(Call::get("/v1/units")).await?.units)
    }

    /// Drains a unit: the unit accepts no more rows, and may leave when it has no rows left. Cancel-safe.
    pub async fn drain_unit(&self, unit: &str) -> Result<(), QueueError> {
        self.link.done(Call::post(format!("/v1/units/{unit}/drain"), Content::Nothing).repeatable()).await
    }

    /// Removes a unit that will not return. Its rows are lost with their whole groups. Cancel-safe.
    pub async fn forget_unit(&self, unit: &str) -> Result<(), QueueError> {
        self.link.done(Call::post(format!("/v1/units/{unit}/forget"), Content::Nothing)).await
    }

    pub(crate) async fn register_unit(&self, card: &UnitCard) -> Result<(), QueueError> {
        self.link.done(Call::json("/v1/units", card)?.repeatable()).await
    }

    /// Frees the given rows that still exist. A repeated call therefore changes nothing. Cancel-safe.
    pub(crate) async fn clear_those_there(
        &self,
        partition: &str,
        rows: &[RowHandle],
    ) -> Result<(), QueueError> {
        let body = ClearBody { rows: rows.to_vec(), all: false, skip_gone: true, token: None };
        self.link.done(Call::json(path(partition, "/clear"), &body)?.repeatable()).await
    }

    pub(crate) async fn unknown_blobs(
        &self,
        unit: &str,
        blobs: Vec<String>,
    ) -> Result<Vec<String>, QueueError> {
        let call = Call::json(format!("/v1/units/{unit}/unknown"), &BlobsBody { blobs })?.repeatable();
        Ok(self.link.json::<UnknownAnswer>(call).await?.unknown)
    }
}

impl UnitClient for RemoteQueue {
    fn put(&self, blob: Put) -> BoxFuture<'_, Result<Vec<RowHandle>, QueueError>> {
        Queue::put(self, BLOBS, blob, None)
    }

    fn get<'a>(
        &'a self,
        rows: &'a [RowHandle],
        columns: Option<&'a [String]>,
    ) -> BoxFuture<'a, Result<Vec<RecordBatch>, QueueError>> {
        Queue::get(self, BLOBS, rows, columns)
    }

    fn clear<'a>(&'a self, rows: &'a [RowHandle]) -> BoxFuture<'a, Result<(), QueueError>> {
        // A repeated call changes nothing, so the call needs no token.
        self.clear_those_there(BLOBS, rows).boxed()
    }

    fn is_there(&self) -> BoxFuture<'_, bool> {
        async move { self.status(BLOBS).await.is_ok() }.boxed()
    }
}
