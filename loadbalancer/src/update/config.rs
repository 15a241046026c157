//! What a weight update is told.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Announcement, Phase};
use crate::PauseMode;

/// Control gives up after an hour whatever a deadline says. Seconds.
const DEADLINE_SECONDS_MAX: f64 = 3600.0;

/// Why there is no updater.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// A key of [`UpdateConfig`] makes no sense.
    #[error("{key}: expected {expected}, found {found}")]
    Config {
        /// As it is written.
        key: String,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// There is no HTTP client for the user's hook.
    #[error("the client of the update hook did not start: {reason}")]
    Client {
        /// What happened.
        reason: String,
    },
}

/// How the servers get their weights.
///
/// Written as `"none"`, `"reload"` or `"transfer"`, or with what it needs: `{ reload = { rpc = "..." } }`,
/// `{ command = ["./push-weights.sh"] }`, `{ http = "http://trainer:9000/push" }`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMethod {
    /// The trainer does it; servers are only told what their weights are called, where they offer that.
    #[default]
    None,
    /// Each server loads them from the announced path.
    Reload(Reload),
    /// The trainer sends them, and each server is told to receive what the announcement's payload describes.
    Transfer,
    /// A program is run once for all servers. It gets `ROLLDOCK_VERSION`, `ROLLDOCK_PATH` (unless none was announced) and
    /// `ROLLDOCK_SERVERS` (URLs with spaces between) in its environment.
    Command(Vec<String>),
    /// A URL is posted to once for all servers: `{version, label, path, payload, servers}`.
    Http(String),
}

/// A call of every worker of a server; the defaults are vLLM's own.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// The workers' method.
    pub rpc: String,
    /// The argument that takes the announced path; without a path it is not sent.
    pub path_argument: String,
    /// Further arguments.
    pub kwargs: Map<String, Value>,
}

impl Default for Reload {
    fn default() -> Self {
        Self { rpc: "reload_weights".into(), path_argument: "weights_path".into(), kwargs: Map::new() }
    }
}

/// The methods that need to be told something, or may be.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Reload(Reload),
    Command(Vec<String>),
    Http(String),
}

impl<'de> Deserialize<'de> for UpdateMethod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = UpdateMethod;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "none, reload, transfer, { reload = {...} }, { command = [...] } or { http = \"...\" }",
                )
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<UpdateMethod, E> {
                match name {
                    "none" => Ok(UpdateMethod::None),
                    "reload" => Ok(UpdateMethod::Reload(Reload::default())),
                    "transfer" => Ok(UpdateMethod::Transfer),
                    _ => Err(E::invalid_value(de::Unexpected::Str(name), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UpdateMethod, A::Error> {
                let told = Told::deserialize(MapAccessDeserializer::new(&mut map))?;
                if let Some(second) = map.next_key::<String>()? {
                    return Err(de::Error::custom(format!("expected one method, found a second: {second}")));
                }
                Ok(match told {
                    Told::Reload(reload) => UpdateMethod::Reload(reload),
                    Told::Command(argv) => UpdateMethod::Command(argv),
                    Told::Http(url) => UpdateMethod::Http(url),
                })
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// The longest that each phase may take over all servers, in seconds: an update is never longer than their sum.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// With `pause = "wait"` it has to be longer than the longest answer.
    pub pause: f64,
    /// Of the weights themselves.
    pub update: f64,
    /// Of the prefix cache.
    pub reset: f64,
    /// Of what the weights are called.
    pub label: f64,
    /// After it, a server that does not answer is asked again at every look.
    pub resume: f64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { pause: 60.0, update: 600.0, reset: 30.0, label: 10.0, resume: 30.0 }
    }
}

impl Deadlines {
    /// Of a phase.
    pub fn of(&self, phase: Phase) -> Duration {
        Duration::from_secs_f64(self.seconds(phase).clamp(0.0, DEADLINE_SECONDS_MAX))
    }

    fn seconds(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Pause => self.pause,
            Phase::Update => self.update,
            Phase::Reset => self.reset,
            Phase::Label => self.label,
            Phase::Resume => self.resume,
        }
    }
}

/// See the fields.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateConfig {
    /// See [`UpdateMethod`].
    pub method: UpdateMethod,
    /// What becomes of running requests; the servers are not paused if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseMode>,
    /// Whether what was cached with the old weights is computed again.
    pub reset_prefix_cache: bool,
    /// See [`Deadlines`].
    pub deadlines: Deadlines,
    /// Servers that are asked at a time. A transfer asks all at once: its servers wait for each other.
    pub concurrency: usize,
    /// Between two looks for servers that lack the weights, in seconds.
    pub interval: f64,
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self {
            method: UpdateMethod::None,
            pause: None,
            reset_prefix_cache: false,
            deadlines: Deadlines::default(),
            concurrency: 64,
            interval: 2.0,
        }
    }
}

impl UpdateConfig {
    /// Refuses by name what makes no sense.
    pub fn check(&self) -> Result<(), UpdateError> {
        let refuse = |key: &str, expected, found: String| {
            Err(UpdateError::Config { key: key.to_owned(), expected, found })
        };
        for phase in Phase::ALL {
            let seconds = self.deadlines.seconds(phase);
            if !(seconds > 0.0 && seconds <= DEADLINE_SECONDS_MAX) {
                let key = format!("deadlines.{}", phase.as_str());
                return refuse(&key, "seconds above 0 and at most 3600", seconds.to_string());
            }
        }
        if !(self.interval > 0.0 && self.interval <= DEADLINE_SECONDS_MAX) {
            return refuse("interval", "seconds above 0 and at most 3600", self.interval.to_string());
        }
        if self.concurrency == 0 {
            return refuse("concurrency", "at least 1", "0".to_owned());
        }
        match &self.method {
            UpdateMethod::Reload(reload) if reload.rpc.is_empty() => {
                refuse("method.reload.rpc", "the name of a method", "\"\"".to_owned())
            }
            UpdateMethod::Command(argv) if argv.first().is_none_or(String::is_empty) => {
                refuse("method.command", "a program and its arguments", format!("{argv:?}"))
            }
            UpdateMethod::Http(url) => match url::Url::parse(url) {
                Ok(parsed) if parsed.scheme() == "http" && parsed.host().is_some() => Ok(()),
                _ => refuse("method.http", "a URL like http://host:port/path", format!("{url:?}")),
            },
            _ => Ok(()),
        }
    }

    /// Whether a server that begins a life lacks what was announced.
    pub(super) fn gives_weights(&self) -> bool {
        self.method != UpdateMethod::None
    }

    /// How one server gets the announced weights that it lacks, if it can without the trainer.
    pub(super) fn method_of_one(&self, announcement: &Announcement) -> Option<UpdateMethod> {
        match (&self.method, &announcement.path) {
            // Whoever begins a life has weights of which only the trainer knows.
            (UpdateMethod::None, _) => None,
            // What its trainer sends to all at once it cannot send to one again.
            (UpdateMethod::Transfer, Some(_)) => Some(UpdateMethod::Reload(Reload::default())),
            (UpdateMethod::Transfer, None) => None,
            (method, _) => Some(method.clone()),
        }
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval.clamp(0.001, DEADLINE_SECONDS_MAX))
    }

    /// Servers that are asked at a time in a phase.
    pub(super) fn concurrency_in(&self, phase: Phase) -> usize {
        match (&self.method, phase) {
            (UpdateMethod::Transfer, Phase::Update) => usize::MAX,
            _ => self.concurrency.max(1),
        }
    }
}
