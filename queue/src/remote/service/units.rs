//! Storage units: those that announce themselves, and those who ask about them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use tokio::time::Instant;

use super::bodies::json_of;
use super::{Answer, Path, Query, Service, Shared, done, json, until_end};
use crate::partition::PlacedRows;
use crate::remote::ipc::check_name;
use crate::remote::wire::{
    BlobsBody, ColumnsQuery, PlacedBody, PlacedColumnsBody, PutAnswer, PutQuery, UnitsAnswer, UnitsOfAnswer,
    UnitsOfBody, UnknownAnswer,
};
use crate::{Put, UnitCard};

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
    let PlacedBody { mut place, columns, lengths, bytes, keys, tags, record } =
        json_of(&service, body).await?;
    columns.iter().try_for_each(|column| check_name(&column.name))?;
    place.is_durable = service.queue.units().check_takes_rows(&place.unit)?;
    let deadline = Instant::now() + std::time::Duration::from_millis(query.wait_ms);
    let put = Put { keys, tags, ..query.into_put(Vec::new(), record) };
    let placed = PlacedRows { place, columns, lengths, bytes };
    let rows = until_end(&service, partition.put_placed(put, placed, Some(deadline))).await?;
    Ok(json(&PutAnswer { rows }))
}

async fn units_of_columns(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let UnitsOfBody { rows } = json_of(&service, body).await?;
    Ok(json(&UnitsOfAnswer { units: partition.units_of(&rows).await?.unwrap_or_default() }))
}

async fn write_placed_columns(
    State(service): Shared,
    Path(partition): Path<String>,
    Query(query): Query<ColumnsQuery>,
    body: Body,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let PlacedColumnsBody { rows, columns, pieces } = json_of(&service, body).await?;
    columns.iter().try_for_each(|column| check_name(&column.name))?;
    partition.write_placed_columns(&rows, &columns, pieces, query.token).await?;
    done()
}
