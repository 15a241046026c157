//! Bodies of requests, which are read as they arrive, up to their limit.

use arrow_array::RecordBatch;
use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::{Service, bad};
use crate::QueueError;
use crate::edges::wire::ipc;

/// A body that is read up to a limit.
struct Bounded {
    body: Body,
    left: usize,
    bytes_max: usize,
}

impl Bounded {
    fn new(service: &Service, body: Body) -> Result<Self, QueueError> {
        let bytes_max = service.config.body_bytes_max;
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(QueueError::BodyTooLarge { bytes_max });
        }
        Ok(Self { body, left: bytes_max, bytes_max })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, QueueError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| bad(format!("the body did not arrive whole: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let over = QueueError::BodyTooLarge { bytes_max: self.bytes_max };
            self.left = self.left.checked_sub(data.len()).ok_or(over)?;
            return Ok(Some(data));
        }
        Ok(None)
    }
}

pub(super) async fn json_of<T: DeserializeOwned>(service: &Service, body: Body) -> Result<T, QueueError> {
    let mut body = Bounded::new(service, body)?;
    let mut bytes = Vec::new();
    while let Some(more) = body.next().await? {
        bytes.extend_from_slice(&more);
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(format!("JSON body: {error}")))
}

/// The rows of a body, decoded as they arrive, so that a large put is never in memory twice. More rows than
/// `rows_max` are refused before any work is done per row, because a column of nulls may claim any number of
/// rows.
pub(super) async fn rows_of(
    service: &Service,
    body: Body,
    rows_max: usize,
) -> Result<Vec<RecordBatch>, QueueError> {
    let mut body = Bounded::new(service, body)?;
    let mut decoder = ipc::Decoder::new().rows_max(rows_max);
    let mut batches = Vec::new();
    while let Some(bytes) = body.next().await? {
        // A body that arrived in one piece is a slice of the connection's buffer. Without a copy, the rows
        // would keep the whole buffer in memory.
        let bytes = if body.body.is_end_stream() { Bytes::copy_from_slice(&bytes) } else { bytes };
        decoder.feed(bytes, |batch| {
            batches.push(batch);
            Ok(())
        })?;
    }
    decoder.finish()?;
    Ok(batches)
}
