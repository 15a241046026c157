//! Puts rows directly on storage units, and gets them directly from units. The controller only gets the
//! places of the rows. The bytes of the rows do not pass through the controller.
//!
//! If a unit cannot be used, the rows are sent through the controller instead.

mod columns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Call, Content, RemoteQueue, path, query};
use crate::batches::{common_schema, conformed};
use crate::edges::remote::link::Response;
use crate::edges::wire::ipc;
use crate::edges::wire::{
    GetBody, PlacedBody, PlacedPart, PlacedStretch, PlacesAnswer, PutAnswer, PutQuery, UnitsAnswer,
};
use crate::put::{columns_of, lengths_of};
use crate::store::payload_bytes;
use crate::units::{BLOBS, ORPHAN_AGE, Place, UnitStatus, weight};
use crate::{ErrorClass, PartitionSpec, Put, Queue, QueueError, RowHandle, UnitCard};

/// The time for which a list of units is used before the controller is asked again.
const UNITS_AGE_MAX: Duration = Duration::from_secs(2);
/// If the controller has not been told of the rows on a unit within this time, the rows are put again,
/// because a unit removes rows to which no table refers.
const UPLOAD_AGE_MAX: Duration = Duration::from_secs(ORPHAN_AGE.as_secs() / 2);

/// Rows that are stored on a unit but that the controller has not accepted yet.
pub(super) struct Upload {
    begun: Instant,
    client: RemoteQueue,
    body: PlacedBody,
}

#[derive(Debug, Default)]
struct Known {
    /// The live units, and the time at which the controller named them.
    units: Option<(Instant, Vec<UnitCard>)>,
    clients: HashMap<String, RemoteQueue>,
    specs: HashMap<String, PartitionSpec>,
}

/// The controller's units, as far as the client knows them.
#[derive(Debug, Default)]
pub(super) struct Direct {
    known: Mutex<Known>,
    /// Whether the server is known to have no units, so that it need not be asked for units.
    has_none: bool,
}

impl Direct {
    /// The state of a client whose server has no units.
    pub(super) fn none() -> Self {
        Self { has_none: true, ..Self::default() }
    }
}

/// Reads rows as they arrive.
async fn read(mut answer: Response<'_>, blocks: &Arc<ipc::Blocks>) -> Result<Vec<RecordBatch>, QueueError> {
    let mut decoder = ipc::Decoder::into_blocks(blocks);
    let mut batches = Vec::new();
    while let Some(bytes) = answer.chunk().await? {
        decoder.feed(bytes, |batch| {
            batches.push(batch);
            Ok(())
        })?;
    }
    decoder.finish()?;
    answer.done().await;
    Ok(batches)
}

impl RemoteQueue {
    /// The live units. The list is empty if the controller does not answer in time. The caller then calls the
    /// controller, and gets its error.
    pub(super) async fn live_units(&self, deadline: Option<Instant>) -> Vec<UnitCard> {
        if self.direct.has_none {
            return Vec::new();
        }
        if let Some((asked, units)) = &self.direct.known.lock().units
            && asked.elapsed() < UNITS_AGE_MAX
        {
            return units.clone();
        }
        let call = Call { give_up: Some(Instant::now()), deadline, ..Call::get("/v1/units") };
        let Ok(UnitsAnswer { units }) = self.link.json(call).await else { return Vec::new() };
        let live = units.into_iter().filter(|unit| unit.status == UnitStatus::Live);
        let live: Vec<_> = live.map(|unit| unit.card).collect();
        self.direct.known.lock().units = Some((Instant::now(), live.clone()));
        live
    }

    fn unit_client(&self, url: &str) -> Result<Self, QueueError> {
        if let Some(client) = self.direct.known.lock().clients.get(url) {
            return Ok(client.clone());
        }
        let client = Self::of_unit(url, self.link.config.token.clone())?;
        self.direct.known.lock().clients.insert(url.to_owned(), client.clone());
        Ok(client)
    }

    async fn spec_of(&self, partition: &str, deadline: Option<Instant>) -> Result<PartitionSpec, QueueError> {
        if let Some(spec) = self.direct.known.lock().specs.get(partition) {
            return Ok(spec.clone());
        }
        let call = Call { deadline, ..Call::get(path(partition, "/spec")) };
        let spec: PartitionSpec = self.link.json(call).await?;
        self.direct.known.lock().specs.insert(partition.to_owned(), spec.clone());
        Ok(spec)
    }

    async fn suspect(&self, unit: &str) {
        self.direct.known.lock().units = None;
        let call = Call::post(format!("/v1/units/{unit}/suspect"), Content::Nothing).repeatable();
        if let Err(error) = self.link.done(call).await {
            tracing::debug!(%unit, %error, "the controller was not told of a silent unit; it probes the unit later");
        }
    }

    /// Puts rows on a unit and tells the controller. With an `upload`, the rows are already on the unit.
    /// Returns `None` if the rows must be sent through the controller.
    pub(super) async fn put_direct(
        &self,
        partition: &str,
        put: &Put,
        what: &PutQuery,
        upload: &mut Option<Upload>,
        deadline: Option<Instant>,
    ) -> Result<Option<PutAnswer>, QueueError> {
        if upload.as_ref().is_some_and(|upload| upload.begun.elapsed() > UPLOAD_AGE_MAX) {
            *upload = None;
        }
        let upload = match upload {
            Some(upload) => upload,
            None => match self.upload(partition, put, deadline).await? {
                Some(uploaded) => upload.insert(uploaded),
                None => return Ok(None),
            },
        };
        let to = path(partition, &format!("/placed?{}", query(what)?));
        let wait = Duration::from_millis(what.wait_ms);
        let call = Call { wait, deadline, ..Call::json(to, &upload.body)?.repeatable() };
        let call = Call { give_up: Some(self.tell_until(upload.begun)), ..call };
        match self.link.json(call).await {
            Err(error) if self.is_void(upload.begun, &error) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The time until which the client tries to tell the controller of rows on a unit.
    fn tell_until(&self, begun: Instant) -> Instant {
        (Instant::now() + self.link.config.patience).min(begun + UPLOAD_AGE_MAX)
    }

    /// Whether rows on a unit are useless after this error, so that they must be sent again. The unit removes
    /// the useless rows by itself.
    fn is_void(&self, begun: Instant, error: &QueueError) -> bool {
        match error {
            // The unit has died or is being drained since the controller named it.
            QueueError::UnitAway { .. } | QueueError::UnknownUnit { .. } => {
                self.direct.known.lock().units = None;
                true
            }
            QueueError::Unreachable { .. } => begun.elapsed() >= UPLOAD_AGE_MAX,
            _ => false,
        }
    }

    /// Puts rows on the unit to which their group hashes. Returns `None` if that is not possible.
    async fn upload(
        &self,
        partition: &str,
        put: &Put,
        deadline: Option<Instant>,
    ) -> Result<Option<Upload>, QueueError> {
        let units = self.live_units(deadline).await;
        let chosen = units.iter().max_by_key(|card| weight(&card.unit, &put.group));
        let Some(card) = chosen.filter(|_| put.rows() > 0) else { return Ok(None) };
        let spec = match self.spec_of(partition, deadline).await {
            // The put through the controller may create the partition.
            Err(QueueError::UnknownPartition { .. }) => return Ok(None),
            spec => spec?,
        };
        if spec.row_bytes_max.is_some() {
            return Ok(None);
        }
        let mut lengths = Vec::new();
        if !spec.length_columns.is_empty() {
            for batch in &put.batches {
                lengths.extend(lengths_of(batch, &spec.length_columns)?);
            }
        }
        let bytes = put.batches.iter().map(payload_bytes).sum::<Result<usize, _>>()? as u64;
        let columns = columns_of(put.batches[0].schema_ref());
        let begun = Instant::now();
        let Some((client, place)) = self.upload_to(card, put.batches.clone()).await? else {
            return Ok(None);
        };
        let (keys, tags, record) = (put.keys.clone(), put.tags.clone(), put.record.clone());
        let body = PlacedBody { place, columns, lengths, bytes, keys, tags, record };
        Ok(Some(Upload { begun, client, body }))
    }

    /// Puts rows on a unit as a separate blob. Returns `None` if the unit accepts no rows.
    async fn upload_to(
        &self,
        card: &UnitCard,
        batches: Vec<RecordBatch>,
    ) -> Result<Option<(Self, Place)>, QueueError> {
        let UnitCard { unit, url, is_durable } = card;
        let (blob, client) = (ipc::fresh_token(), self.unit_client(url)?);
        let rows = Put::group_of(blob.clone(), batches);
        match client.put(BLOBS, rows, None).await {
            Ok(rows) => {
                let place = Place { unit: unit.clone(), blob, rows, is_durable: *is_durable };
                Ok(Some((client, place)))
            }
            Err(error) => {
                tracing::warn!(%unit, %error, "a storage unit accepts no rows; they are sent through the controller");
                self.suspect(unit).await;
                Ok(None)
            }
        }
    }

    /// Removes the rows of a put that the controller has refused.
    pub(super) async fn take_back(&self, upload: Option<Upload>, refusal: &QueueError) {
        if let Some(Upload { client, body, .. }) = upload {
            client.remove_refused(&body.place, refusal).await;
        }
    }

    /// Removes rows from their unit if the controller has refused them. If the error does not tell whether
    /// they were refused, the rows stay, and the unit asks the controller about them later.
    async fn remove_refused(&self, place: &Place, refusal: &QueueError) {
        if !matches!(refusal.class(), ErrorClass::Backpressure | ErrorClass::Client) {
            return;
        }
        if let Err(error) = self.clear(BLOBS, &place.rows).await {
            tracing::debug!(unit = %place.unit, %error, "refused rows stay on a unit until the unit removes them");
        }
    }

    /// Gets columns of rows from the units of the rows. If a row is on no unit, or a unit cannot be reached,
    /// all rows are read through the controller.
    pub(super) async fn rows_of(
        &self,
        partition: &str,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        let mut placed = !self.live_units(None).await.is_empty();
        loop {
            let body = GetBody { rows: rows.to_vec(), columns: columns.map(<[String]>::to_vec), placed };
            let answer = self.link.send(Call::json(path(partition, "/get"), &body)?.repeatable()).await?;
            if answer.headers.get("content-type").is_none_or(|kind| kind != "application/json") {
                return read(answer, &self.link.blocks).await;
            }
            let bytes = answer.bytes().await?;
            let places: PlacesAnswer = serde_json::from_slice(&bytes)
                .map_err(|error| self.link.unreachable(format!("an answer that is not its own: {error}")))?;
            match self.fetch(places.stretches, columns).await {
                Ok(batches) => return Ok(batches),
                // The rows are requested from the controller, whose error tells what is wrong.
                Err(error) => tracing::debug!(%error, "rows are read through the controller"),
            }
            placed = false;
        }
    }

    /// Fetches the rows of a lease from their units.
    pub(super) async fn fetch(
        &self,
        stretches: Vec<PlacedStretch>,
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        let fetching = stretches.iter().map(|stretch| self.fetch_stretch(stretch, columns));
        let batches = try_join_all(fetching).await?.concat();
        let schema = common_schema(&batches);
        batches.iter().map(|batch| conformed(batch, &schema)).collect()
    }

    async fn fetch_stretch(
        &self,
        stretch: &PlacedStretch,
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        let mut parts = Vec::with_capacity(stretch.parts.len());
        for fetched in join_all(stretch.parts.iter().map(|part| self.fetch_part(part))).await {
            parts.push(fetched?);
        }
        match parts.as_slice() {
            // A single part keeps its pieces as they arrived.
            [_] if columns.is_none() => Ok(parts.remove(0)),
            _ => {
                let whole = parts.iter().map(|part| ipc::one(part)).collect::<Result<Vec<_>, _>>()?;
                Ok(vec![ipc::side_by_side(&whole, columns)?])
            }
        }
    }

    async fn fetch_part(&self, part: &PlacedPart) -> Result<Vec<RecordBatch>, QueueError> {
        match self.unit_client(&part.url)?.get(BLOBS, &part.rows, Some(&part.columns)).await {
            Err(error) if error.class() == ErrorClass::Retryable => {
                tracing::warn!(unit = %part.unit, %error, "rows cannot be fetched");
                self.suspect(&part.unit).await;
                Err(QueueError::UnitAway { unit: part.unit.clone() })
            }
            // The rows have moved since the controller sent their places.
            Err(QueueError::StaleHandle { .. }) => Err(QueueError::UnitAway { unit: part.unit.clone() }),
            fetched => fetched,
        }
    }
}
