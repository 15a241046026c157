//! A reward server over HTTP, which scores one job or a batch of jobs per request.
//!
//! A single request posts the question of a job, and its answer is read as [`super::answer`] describes. A
//! batch posts `{"items": [question, ..]}`, and the server answers `{"scores": [answer, ..]}` or the bare
//! list, in the order of the items. When the numbers of answers and items differ, each job of the batch
//! fails, because the answers cannot be assigned to their jobs.
//!
//! # Invariants
//! - Dropping a job closes its connection; a batch's connection is closed when the last of its jobs is
//!   dropped.
//! - Answers are read up to [`ANSWER_BYTES_MAX`]. Redirects are errors: a question goes only to the
//!   configured server.
//!
//! # Deliberately absent
//! Requests have no time limits of their own; the guard limits their time.

mod batch;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{nonsense, question, quote, read_score};
use super::settings::{api_key, count};
use super::short_form::ShortForm;
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};

use batch::HttpBatch;

/// Maximum number of bytes of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Maximum number of bytes that are read of a refusal; errors quote fewer.
const REFUSAL_BYTES_MAX: usize = 1024;
/// The time limit of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long an idle connection is kept. The time is shorter than the keep-alive of common servers, so a
/// request does not use a connection that the server is closing.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Maximum number of items of a request.
const BATCH_MAX: usize = 1 << 14;
/// The longest wait of a batch, in milliseconds.
const BATCH_WAIT_MS_MAX: u64 = 60_000;

/// A reward server; its short form is `url` alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// The address of the server; it begins with `http://`.
    pub url: String,
    /// The environment variable whose value is sent as a bearer token.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Maximum number of jobs of a request; one request per job when absent.
    #[serde(default)]
    pub batch_max: Option<usize>,
    /// How long a batch waits to become full, in milliseconds; at most 60,000.
    #[serde(default = "batch_wait_ms")]
    pub batch_wait_ms: u64,
}

fn batch_wait_ms() -> u64 {
    20
}

impl ShortForm for HttpConfig {
    const EXPECTED: &'static str = "\"http://..\" or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self {
            url: text.to_owned(),
            api_key_env: None,
            batch_max: None,
            batch_wait_ms: batch_wait_ms(),
        })
    }
}

impl HttpConfig {
    /// Builds the runner: one request per job, or one per batch where `batch_max` is set.
    pub(super) fn runner(
        &self,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Arc<dyn RewardRunner>, RewardError> {
        let key = api_key("http.api_key_env", self.api_key_env.as_deref())?;
        let Some(batch_max) = self.batch_max else { return Ok(Arc::new(HttpSingle::new(&self.url, key)?)) };
        let batch_max = count("http.batch_max", batch_max, BATCH_MAX)?;
        if self.batch_wait_ms > BATCH_WAIT_MS_MAX {
            let (key, found) = ("http.batch_wait_ms", self.batch_wait_ms.to_string());
            return Err(RewardError::Misconfigured { key, expected: "at most 60000 milliseconds", found });
        }
        let batch_wait = Duration::from_millis(self.batch_wait_ms);
        Ok(Arc::new(HttpBatch::new(&self.url, key, batch_max, batch_wait, tracker, token)?))
    }
}

/// An address that takes questions by POST. It has no `Debug`, because `Debug` would show the key.
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
            .map_err(|error| wrong(format!("{url:?}, and no client for it: {}", cause_of(&error))))?;
        // Errors show the address, and must not show a password. The calls fail only for a URL without a host.
        let mut shown = parsed.clone();
        let _ = (shown.set_username(""), shown.set_password(None));
        Ok(Self { client, what: format!("{kind} {shown}"), url: parsed, api_key })
    }

    /// The name of the endpoint in errors.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Posts `body` and reads a successful answer. Cancel-safe: dropping the future closes the connection.
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
            let too_long = || {
                nonsense(
                    &self.what,
                    format!("expected an answer of at most {ANSWER_BYTES_MAX} bytes"),
                    &bytes,
                )
            };
            return if is_cut { Err(too_long()) } else { Ok(bytes) };
        }
        let retry_after = retry_after(&response);
        // The body of a refusal is only shown to people, so errors while reading are ignored.
        let words =
            self.read(response, REFUSAL_BYTES_MAX).await.map_or_else(|_| Vec::new(), |(bytes, _)| bytes);
        Err(RewardError::Refused {
            what: self.what.clone(),
            status: status.as_u16(),
            retry_after,
            quote: quote(&words),
        })
    }

    /// Reads at most `most` bytes of a body. The flag tells whether the body is longer.
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

/// The header `Retry-After` in seconds, with or without decimals; dates are not read.
fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

/// The innermost cause, which the message of reqwest's error leaves out.
fn cause_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A runner that sends one job per request.
pub(crate) struct HttpSingle(Endpoint);

impl HttpSingle {
    /// A runner that posts to `url`; errors name the key `http.url`.
    pub(crate) fn new(url: &str, api_key: Option<String>) -> Result<Self, RewardError> {
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
