//! Calls about storage units: units register, and clients ask for units and put rows that are stored on them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use tokio::time::Instant;

use super::bodies::json_of;
use super::{Answer, Path, Query, Service, Shared, done, json, until_end};
use crate::config::check_column_names;
use crate::edges::wire::{
    self, BlobsBody, ColumnsQuery, PlacedBody, PlacedColumnsBody, PlacedStretch, PutAnswer, PutQuery,
    UnitRows, UnitsAnswer, UnitsOfAnswer, UnitsOfBody, UnknownAnswer,
};
use crate::partition::{PlacedColumns, PlacedPart, PlacedRows};
use crate::store::Store;
use crate::units::{Place, Units};
use crate::{Put, QueueError, UnitCard};

pub(super) fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/units", get(list).post(register))
        .route("/v1/units/{unit}/unknown", post(unknown))
        .route("/v1/units/{unit}/drain", post(drain))
        .route("/v1/units/{unit}/forget", post(forget))
        .route("/v1/units/{unit}/suspect", post(suspect))
        .route("/v1/partitions/{partition}/placed", post(put_placed))
        .route("/v1/partitions/{partition}/columns/units", post(units_of_columns))
        .route("/v1/partitions/{partition}/columns/placed", post(write_placed_columns))
        .route("/v1/partitions/{partition}/spec", get(spec))
}

async fn list(State(service): Shared) -> Answer {
    Ok(json(&UnitsAnswer { units: service.queue.units().inspect() }))
}

async fn register(State(service): Shared, body: Body) -> Answer {
    let card: UnitCard = json_of(&service, body).await?;
    service.queue.unit_registered(card).await?;
    done()
}

async fn unknown(State(service): Shared, Path(unit): Path<String>, body: Body) -> Answer {
    let BlobsBody { blobs } = json_of(&service, body).await?;
    Ok(json(&UnknownAnswer { unknown: service.queue.units().unknown(&unit, blobs) }))
}

async fn drain(State(service): Shared, Path(unit): Path<String>) -> Answer {
    service.queue.units().drain(&unit)?;
    done()
}

async fn forget(State(service): Shared, Path(unit): Path<String>) -> Answer {
    service.queue.forget_unit(&unit).await?;
    done()
}

async fn suspect(State(service): Shared, Path(unit): Path<String>) -> Answer {
    service.queue.units().suspect(&unit);
    done()
}

async fn spec(State(service): Shared, Path(partition): Path<String>) -> Answer {
    Ok(json(&service.queue.partition(&partition)?.spec()))
}

async fn put_placed(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<PutQuery>,
    body: Body,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let PlacedBody { place, columns, lengths, bytes, keys, tags, record } = json_of(&service, body).await?;
    check_column_names(&columns)?;
    let rows = place.rows.len();
    let note = service.queue.units().admit(place.into_note())?;
    let deadline = Instant::now() + std::time::Duration::from_millis(query.wait_ms);
    let put = Put { keys, tags, ..query.into_put(Vec::new(), record) };
    let placed = PlacedRows { note, rows, columns, lengths, bytes };
    let rows = until_end(&service, partition.put_placed(put, placed, Some(deadline))).await?;
    Ok(json(&PutAnswer { rows }))
}

async fn units_of_columns(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let UnitsOfBody { rows } = json_of(&service, body).await?;
    let groups = partition.groups_of(&rows).await?;
    let chosen = groups.into_iter().map(|(group, rows)| {
        let unit = service.queue.units().choose(&group)?.unit;
        Some(UnitRows { unit, rows })
    });
    // The list is empty if no unit accepts rows.
    let units: Option<Vec<UnitRows>> = chosen.collect();
    Ok(json(&UnitsOfAnswer { units: units.unwrap_or_default() }))
}

async fn write_placed_columns(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<ColumnsQuery>,
    body: Body,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let PlacedColumnsBody { rows, columns, pieces } = json_of(&service, body).await?;
    if query.overwrite {
        // An overwrite must send the rows, because the controller counts their tokens.
        let reason = "expected columns that are not there yet; send others to `columns`".to_owned();
        return Err(QueueError::BadRequest { reason }.into());
    }
    check_column_names(&columns)?;
    let placed = |wire::PlacedColumns { place, bytes }: wire::PlacedColumns| {
        let rows = place.rows.len();
        PlacedColumns { note: place.into_note(), rows, bytes }
    };
    let placed = pieces.into_iter().map(placed).collect();
    partition.write_placed_columns(&rows, &columns, placed, query.token).await?;
    done()
}

/// The places of rows, for a client that fetches the rows itself. `None` unless all rows are on units that
/// answer.
pub(super) fn stretches(
    units: &Units,
    places: Option<Vec<Vec<PlacedPart>>>,
) -> Result<Option<Vec<PlacedStretch>>, QueueError> {
    let Some(places) = places else { return Ok(None) };
    let mut stretches = Vec::with_capacity(places.len());
    for parts in places {
        let mut placed = Vec::with_capacity(parts.len());
        for PlacedPart { note, first, rows, columns } in parts {
            let place = note.content::<Place>()?;
            let Some(url) = units.url_of(&place.unit) else { return Ok(None) };
            let rows = place.rows.get(first..first + rows).unwrap_or_default().to_vec();
            placed.push(wire::PlacedPart { unit: place.unit.clone(), url, rows, columns });
        }
        stretches.push(PlacedStretch { parts: placed });
    }
    Ok(Some(stretches))
}
