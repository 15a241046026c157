//! Runs the job of a generating request and answers it, in one piece or as a stream.

use std::sync::Arc;

use hyper::StatusCode;

use super::Face;
use super::choice::{Job, has_nan};
use super::dialect::Dialect;
use super::params::Sampling;
use super::reply::{Handled, Refusal, bytes_response, engine_error};
use super::stream::stream_response;

/// Runs a job and answers its request. Cancel-safe: when the future or the returned body is dropped, the
/// engine drops the request.
pub(crate) async fn answer<D: Dialect + 'static>(
    face: &Arc<Face>,
    job: Job,
    sampling: Sampling,
    dialect: D,
    streams: bool,
) -> Handled {
    if streams {
        return stream_response(Arc::clone(face), job, sampling, Box::new(dialect)).await;
    }
    let Job { future, .. } = job;
    let responses = match future.await {
        Ok(responses) => responses,
        Err(error) => return engine_error(&error),
    };
    if dialect.refuses_nan() && has_nan(&responses) {
        let refusal = Refusal::bad_request(None, "Out of range float values are not JSON compliant");
        return Ok(refusal.response());
    }
    let answer = dialect.whole(face, &sampling, &responses);
    Ok(bytes_response(StatusCode::OK, "application/json", answer))
}
