//! Reads the body of a request. The body is held until a server begins to answer.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use super::Shared;
use super::clock::{Over, Timed};
use super::limits::Held;
use super::refusal::Refusal;

/// Reads the whole body. Refuses a body that is too long or too slow, or that exceeds the bound on the bytes
/// of all requests.
///
/// Cancel-safe: the bytes that were read are released.
pub(super) async fn whole<'a>(
    body: Incoming,
    shared: &'a Shared,
    timed: &Timed,
) -> Result<(Bytes, Held<'a>), Refusal> {
    let bytes_max = shared.config.body_bytes_max;
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Refusal::too_long(bytes_max));
    }
    let limit = shared.config.body_timeout;
    timed.until(Instant::now() + limit);
    match timed.bound(collect(body, bytes_max, shared.buffered.hold())).await {
        Ok(collected) => collected,
        Err(Over) => {
            let message = format!("the body has not arrived within {} s", limit.as_secs_f64());
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
        }
    }
}

async fn collect(
    mut body: Incoming,
    bytes_max: usize,
    mut held: Held<'_>,
) -> Result<(Bytes, Held<'_>), Refusal> {
    // A body nearly always arrives in one piece. Such a body is not copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::bad_request(error.to_string()))?;
        let Ok(piece) = frame.into_data() else { continue };
        length += piece.len();
        if length > bytes_max {
            return Err(Refusal::too_long(bytes_max));
        }
        if !held.grow(piece.len()) {
            return Err(Refusal::overloaded("too many bytes of requests wait for a server"));
        }
        if first.is_empty() {
            first = piece;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&piece);
        }
    }
    Ok((if all.is_empty() { first } else { all.freeze() }, held))
}
