//! Calls about one partition: its counts, reading and finding rows, tags, a task's reset, versions, and the
//! ends of samples and groups.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use rolldock_listener::Client;
use tokio::time::Instant;

use super::bodies::json_of;
use super::{Answer, Path, Query, Service, Shared, done, json, stretches, until_end};
use crate::batches::{common_schema, conformed};
use crate::edges::wire::ipc::Pieces;
use crate::edges::wire::{
    ARROW_STREAM, CloseBody, ClosedAnswer, FindBody, FoundAnswer, GetBody, PlacesAnswer, ResetAnswer,
    SampleBody, StatusQuery, TagsBody, VersionBody,
};

pub(super) fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/partitions/{partition}", get(status))
        .route("/v1/partitions/{partition}/get", post(get_rows))
        .route("/v1/partitions/{partition}/find", post(find))
        .route("/v1/partitions/{partition}/tags", post(set_tags))
        .route("/v1/partitions/{partition}/tasks/{task}/reset", post(reset))
        .route("/v1/partitions/{partition}/version", post(announce))
        .route("/v1/partitions/{partition}/samples/end", post(end_sample))
        .route("/v1/partitions/{partition}/groups/close", post(close_groups))
}

async fn status(
    State(service): Shared,
    client: Client,
    Path(partition): Path<String>,
    Query(query): Query<StatusQuery>,
) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let Some(after) = query.after else { return Ok(json(&partition.stats())) };
    let deadline = Instant::now() + std::time::Duration::from_millis(query.wait_ms);
    let waiting = async {
        Ok(tokio::select! {
            biased;
            stats = partition.stats_after(after, deadline) => stats,
            () = client.closed_its_side() => partition.stats_after(after, Instant::now()).await,
        })
    };
    Ok(json(&until_end(&service, waiting).await?))
}

async fn get_rows(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let GetBody { rows, columns, placed } = json_of(&service, body).await?;
    let places = if placed { partition.places(&rows, columns.as_deref(), None)? } else { None };
    if let Some(stretches) = stretches(service.queue.units(), places)? {
        return Ok(json(&PlacesAnswer { stretches }));
    }
    let batches = partition.get(&rows, columns.as_deref()).await?;
    let schema = common_schema(&batches);
    let batches = batches.iter().map(|batch| conformed(batch, &schema)).collect::<Result<Vec<_>, _>>()?;
    let pieces = futures::stream::try_unfold(Pieces::new(schema, batches), |mut pieces| async move {
        let bytes = pieces.next()?;
        Ok::<_, crate::QueueError>(bytes.map(|bytes| (bytes, pieces)))
    });
    Ok(([(header::CONTENT_TYPE, ARROW_STREAM)], Body::from_stream(pieces)).into_response())
}

async fn find(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let FindBody { keys } = json_of(&service, body).await?;
    let rows = match keys {
        Some(keys) => partition.find(&keys)?,
        None => partition.keyed_rows(),
    };
    Ok(json(&FoundAnswer { rows }))
}

async fn set_tags(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let TagsBody { tags } = json_of(&service, body).await?;
    partition.set_tags(tags).await?;
    done()
}

async fn reset(State(service): Shared, Path((partition, task)): Path<(String, String)>) -> Answer {
    let rows = service.queue.partition(&partition)?.reset(&task).await?;
    Ok(json(&ResetAnswer { rows }))
}

async fn announce(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let VersionBody { policy_version } = json_of(&service, body).await?;
    partition.announce(policy_version).await?;
    done()
}

async fn end_sample(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let SampleBody { sample } = json_of(&service, body).await?;
    partition.end_sample(&sample).await?;
    done()
}

async fn close_groups(State(service): Shared, Path(partition): Path<String>, body: Body) -> Answer {
    let partition = service.queue.partition(&partition)?;
    let CloseBody { older_than_ms, unfinished } = json_of(&service, body).await?;
    let older_than = std::time::Duration::from_millis(older_than_ms);
    let groups = partition.close_groups(older_than, unfinished).await?;
    Ok(json(&ClosedAnswer { groups }))
}
