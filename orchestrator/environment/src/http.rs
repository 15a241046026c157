//! An environment behind HTTP: a server with two calls.
//!
//! `POST {url}/reset` has `{"session", "messages", "answer", "fields", "seed"}`, and is answered with the
//! first messages, or `{"messages": [...], "tools": [...]}`. `POST {url}/step` has `{"session", "turn",
//! "text", "ids"}`, and is answered with `{"messages": [...]}` or `{"ids": [...]}`, and optionally `reward`,
//! `done` and `info`. The session is the trajectory's identity, so a server can tell trajectories apart. An
//! error status fails the trajectory.
//!
//! A call is sent again only if no connection could be opened. In all other cases, the server may have taken
//! the step already, and a step must not be taken twice.
//!
//! # Deliberately absent
//! The server is not told when a trajectory is cut off: a server is expected to forget idle sessions.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock_reward::external::ShortForm;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::EnvironmentError;
use crate::answer;
use crate::environment::{Action, Begun, Environment, Step, Task};
use crate::error::SECONDS_MAX;

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of times that a call is sent to a server that accepts no connection. The pauses between the
/// attempts are multiples of `CONNECT_PAUSE`.
const CONNECTS_MAX: u32 = 4;
const CONNECT_PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of bytes of an error page that an error shows.
const SHOWN_MAX: usize = 200;

/// The settings of an environment that is a server. The short form is the value of `url` alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// The base URL, to which `/reset` and `/step` are added.
    pub url: String,
    /// The time limit of a call, in seconds.
    #[serde(default = "call_s")]
    pub call_s: f64,
}

fn call_s() -> f64 {
    60.0
}

impl ShortForm for HttpConfig {
    const EXPECTED: &'static str = "a base URL or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self { url: text.to_owned(), call_s: call_s() })
    }
}

impl HttpConfig {
    pub(crate) fn check(&self) -> Result<(), EnvironmentError> {
        let is_url = self.url.starts_with("http://") && reqwest::Url::parse(&self.url).is_ok();
        if !is_url {
            return Err(EnvironmentError::wrong(
                "url",
                "a base URL that begins with http://",
                format!("{:?}", self.url),
            ));
        }
        if !(self.call_s > 0.0 && self.call_s <= SECONDS_MAX) {
            let expected = format!("seconds, above 0 and at most {}", SECONDS_MAX);
            return Err(EnvironmentError::wrong("url.call_s", expected, self.call_s));
        }
        Ok(())
    }
}

/// The client of all trajectories.
pub(crate) struct HttpEnvironments {
    client: reqwest::Client,
    url: String,
}

impl HttpEnvironments {
    pub(crate) fn open(config: &HttpConfig) -> Result<Self, EnvironmentError> {
        let client =
            reqwest::Client::builder().timeout(Duration::from_secs_f64(config.call_s)).no_proxy().build();
        let client = client.map_err(|error| EnvironmentError::wrong("url", "a client for it", error))?;
        Ok(Self { client, url: config.url.trim_end_matches('/').to_owned() })
    }

    pub(crate) fn begin(self: &Arc<Self>, session: &Arc<str>) -> HttpEnvironment {
        HttpEnvironment { server: Arc::clone(self), session: Arc::clone(session), turn: 0 }
    }

    /// Sends a request to check that there is a server. The content of the answer does not matter.
    pub(crate) async fn check(&self) -> Result<(), EnvironmentError> {
        self.client.get(&self.url).send().await.map(drop).map_err(|error| self.failed(&error))
    }

    async fn call(&self, path: &str, body: &Value) -> Result<Value, EnvironmentError> {
        let mut tries = 0;
        let response = loop {
            tries += 1;
            let sent = self.client.post(format!("{}/{path}", self.url)).json(body).send().await;
            match sent {
                Err(error) if error.is_connect() && tries < CONNECTS_MAX => {
                    tokio::time::sleep(CONNECT_PAUSE * tries).await;
                }
                sent => break sent.map_err(|error| self.failed(&error))?,
            }
        };
        let status = response.status();
        let bytes = self.body(response).await?;
        if !status.is_success() {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]).into_owned();
            let reason = format!("{}/{path} answered status={} with {shown:?}", self.url, status.as_u16());
            return Err(EnvironmentError::Failed { reason });
        }
        serde_json::from_slice(&bytes).map_err(|error| EnvironmentError::Failed {
            reason: format!("{}/{path} answered with a body that is not JSON: {error}", self.url),
        })
    }

    async fn body(&self, mut response: reqwest::Response) -> Result<Vec<u8>, EnvironmentError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                let reason = format!("{} answered with more than {ANSWER_BYTES_MAX} bytes", self.url);
                return Err(EnvironmentError::Failed { reason });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn failed(&self, error: &reqwest::Error) -> EnvironmentError {
        let mut words = format!("no answer from {}", self.url);
        let mut source: Option<&dyn std::error::Error> = Some(error);
        while let Some(error) = source {
            words.push_str(&format!(": {error}"));
            source = error.source();
        }
        EnvironmentError::Failed { reason: words }
    }
}

/// One trajectory at the server.
pub(crate) struct HttpEnvironment {
    server: Arc<HttpEnvironments>,
    session: Arc<str>,
    turn: u32,
}

impl Environment for HttpEnvironment {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        let Task { messages, answer, fields, seed } = task;
        self.turn = 0;
        let body = json!({
            "session": &*self.session,
            "messages": messages,
            "answer": answer,
            "fields": fields,
            "seed": seed,
        });
        async move { answer::begun(self.server.call("reset", &body).await?) }.boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        let body = json!({
            "session": &*self.session,
            "turn": self.turn,
            "text": action.text,
            "ids": action.ids,
        });
        self.turn += 1;
        async move { answer::step(self.server.call("step", &body).await?) }.boxed()
    }
}

#[cfg(test)]
mod tests;
