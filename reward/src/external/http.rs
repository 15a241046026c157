//! A reward server over HTTP, one job or a batch of jobs a request.
//!
//! A single request posts the question of a job ([`super::answer`]) and the answer is read as a worker's line would
//! be. A batch posts `{"items": [question, ..]}` and is answered by `{"scores": [answer, ..]}` or by the bare list, in
//! the order of the items; another number of answers than of items is an error for each of them, since nobody can say
//! whose they are.
//!
//! # Invariants
//! - Dropping a job closes its connection; a batch's connection is closed when the last of its jobs is dropped.
//! - Answers are read up to [`ANSWER_BYTES_MAX`]. Redirects are errors: a question is not sent on to strangers.
//!
//! # Deliberately absent
//! Limits of time: the guard has them.

mod batch;

use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde_json::Value;

use super::answer::{nonsense, question, quote, read_score};
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};

pub use batch::HttpBatch;

/// Bytes of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Bytes that are read of the answer that comes with a refusal: more than is quoted.
const REFUSAL_BYTES_MAX: usize = 1024;
/// A host that does not take connections.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Below the keep-alive of common servers, so that a connection is not used in the moment it closes.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// One place that is asked by POST. Without `Debug`, because of the key.
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    api_key: Option<String>,
    what: String,
}

impl Endpoint {
    /// `key` names the setting that `url` comes from. `api_key` is sent as a bearer token.
    pub(super) fn new(
        kind: &str,
        key: &'static str,
        url: &str,
        api_key: Option<String>,
    ) -> Result<Self, RewardError> {
        let wrong = |found: String| RewardError::Misconfigured {
            key,
            expected: "an address that begins with http:// (there is no TLS)",
            found,
        };
        let parsed = Url::parse(url).map_err(|error| wrong(format!("{url:?} ({error})")))?;
        if parsed.scheme() != "http" || !parsed.has_host() {
            return Err(wrong(format!("{url:?}")));
        }
        let client = Client::builder()
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .redirect(Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Self { client, what: format!("{kind} {parsed}"), url: parsed, api_key })
    }

    /// As errors call it.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// The bytes of a successful answer. Cancel-safe: dropping it closes the connection.
    pub(super) async fn post(&self, body: &Value) -> Result<Vec<u8>, RewardError> {
        let request = self.client.post(self.url.clone()).json(body);
        let request = match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            let (bytes, is_cut) = self.read(response, ANSWER_BYTES_MAX).await?;
            let too_long =
                || nonsense(&self.what, format!("the answer is over {ANSWER_BYTES_MAX} bytes"), &bytes);
            return if is_cut { Err(too_long()) } else { Ok(bytes) };
        }
        let retry_after = retry_after(&response);
        // Its words are for people only: a refusal without them is still one.
        let words =
            self.read(response, REFUSAL_BYTES_MAX).await.map_or_else(|_| Vec::new(), |(bytes, _)| bytes);
        Err(RewardError::Refused {
            what: self.what.clone(),
            status: status.as_u16(),
            retry_after,
            quote: quote(&words),
        })
    }

    /// At most `most` bytes of a body, and whether there were more.
    async fn read(&self, mut response: Response, most: usize) -> Result<(Vec<u8>, bool), RewardError> {
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            let room = most - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() > room {
                return Ok((bytes, true));
            }
        }
        Ok((bytes, false))
    }

    fn unreachable(&self, error: &reqwest::Error) -> RewardError {
        RewardError::Unreachable { what: self.what.clone(), reason: cause_of(error) }
    }
}

/// Seconds, with or without decimals; the form of a date is left aside.
fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

/// The cause, which reqwest's own words leave out.
fn cause_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// One job a request.
pub struct HttpSingle(Endpoint);

impl HttpSingle {
    /// Posts to `url`; errors name the key `http.url`.
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, RewardError> {
        Endpoint::new("reward server", "http.url", url, api_key).map(Self)
    }
}

impl RewardRunner for HttpSingle {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let bytes = self.0.post(&question(0, job)).await?;
            read_score(&self.0.what, &bytes)
        })
    }
}

#[cfg(test)]
mod tests;
