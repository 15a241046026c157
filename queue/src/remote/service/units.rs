//! Storage units: those that announce themselves, and those who ask about them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post};

use super::bodies::json_of;
use super::{Answer, Service, Shared, done, json};
use crate::UnitCard;
use crate::remote::wire::{BlobsBody, UnitsAnswer, UnknownAnswer};

pub(super) fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/units", get(list).post(register))
        .route("/v1/units/{unit}/unknown", post(unknown))
        .route("/v1/units/{unit}/drain", post(drain))
        .route("/v1/units/{unit}/forget", post(forget))
}

async fn list(State(service): Shared) -> Answer {
    Ok(json(&UnitsAnswer { units: service.queue.units().inspect() }))
}

async fn register(State(service): Shared, body: Body) -> Answer {
    let card: UnitCard = json_of(&service, body).await?;
    service.queue.unit_registered(card)?;
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
