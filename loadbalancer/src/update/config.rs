//! The configuration of weight updates.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Announcement, Phase};
use crate::PauseMode;

/// Longest deadline in seconds. Control calls give up after an hour in any case.
const DEADLINE_SECONDS_MAX: f64 = 3600.0;

/// Why an updater cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// A key of [`UpdateConfig`] has a value that is not allowed.
    #[error("{key}: expected {expected}, found {found}")]
    Config {
        /// The key as it is written.
        key: String,
        /// The values that are allowed.
        expected: &'static str,
        /// The value in the configuration.
        found: String,
    },
    /// The HTTP client for the user's hook did not start.
    #[error("the client of the update hook did not start: {reason}")]
    Client {
        /// What happened.
        reason: String,
    },
}

/// How the servers get their weights.
///
/// Written as `"none"`, `"reload"` or `"transfer"`, or as a table with options: `{ reload = { rpc = "..." }
/// }`, `{ command = ["./push-weights.sh"] }`, `{ http = "http://trainer:9000/push" }`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMethod {
    /// The trainer updates the servers by itself, so the updater passes no weights. The updater still tells a
    /// server the name of its weights, if the server offers this call.
    #[default]
    None,
    /// Each server loads the weights from the announced path.
    Reload(Reload),
    /// The trainer sends the weights, and the updater tells each server to receive the weights that the
    /// announcement's payload describes.
    Transfer,
    /// A program is run once for all servers. It gets `ROLLDOCK_VERSION`, `ROLLDOCK_PATH` (unless none was
    /// announced) and `ROLLDOCK_SERVERS` (URLs, separated by spaces) in its environment.
    Command(Vec<String>),
    /// A JSON object with `version`, `label`, `path`, `payload` and `servers` is posted to this URL, once for
    /// all servers.
    Http(String),
}

/// The call that loads weights in every worker of a server. The defaults are vLLM's own.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// The method of the workers.
    pub rpc: String,
    /// The argument that takes the announced path. It is not sent if no path was announced.
    pub path_argument: String,
    /// Further arguments.
    pub kwargs: Map<String, Value>,
}

impl Default for Reload {
    fn default() -> Self {
        Self { rpc: "reload_weights".into(), path_argument: "weights_path".into(), kwargs: Map::new() }
    }
}

/// The methods that are written as a table.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum WithOptions {
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
                let method = WithOptions::deserialize(MapAccessDeserializer::new(&mut map))?;
                if let Some(second) = map.next_key::<String>()? {
                    return Err(de::Error::custom(format!("expected one method, found a second: {second}")));
                }
                Ok(match method {
                    WithOptions::Reload(reload) => UpdateMethod::Reload(reload),
                    WithOptions::Command(argv) => UpdateMethod::Command(argv),
                    WithOptions::Http(url) => UpdateMethod::Http(url),
                })
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// The longest time of each phase over all servers, in seconds. An update never takes longer than the sum of
/// these times.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// Pausing the engines. With `pause = "wait"` this time has to be longer than the generation of the
    /// longest answer.
    pub pause: f64,
    /// Passing the weights to the servers.
    pub update: f64,
    /// Resetting the prefix caches.
    pub reset: f64,
    /// Naming the weights.
    pub label: f64,
    /// Resuming the engines. An engine that has not answered by then is asked again later.
    pub resume: f64,
    /// Generating the tokens of the check. The generation may have to wait for the prefill of requests that
    /// continue.
    pub check: f64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { pause: 60.0, update: 600.0, reset: 30.0, label: 10.0, resume: 30.0, check: 60.0 }
    }
}

impl Deadlines {
    /// The longest time of a phase.
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
            Phase::Check => self.check,
        }
    }
}

/// How weights are updated.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateConfig {
    /// How the servers get their weights.
    pub method: UpdateMethod,
    /// How the engines are paused during an update. If absent, they are not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseMode>,
    /// Whether prefix cache blocks that the old weights computed are dropped.
    pub reset_prefix_cache: bool,
    /// Whether a server that has received weights must generate a few tokens before permits are granted on
    /// it.
    pub check_generation: bool,
    /// The longest time of each phase.
    pub deadlines: Deadlines,
    /// Number of servers that are called concurrently. A transfer calls all servers together, since they wait
    /// for each other.
    pub concurrency: usize,
    /// Time between two searches for servers that lack the weights, in seconds.
    pub interval: f64,
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self {
            method: UpdateMethod::None,
            pause: None,
            reset_prefix_cache: false,
            check_generation: true,
            deadlines: Deadlines::default(),
            concurrency: 64,
            interval: 2.0,
        }
    }
}

impl UpdateConfig {
    /// Checks every field. The error names the first field whose value is not allowed.
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

    /// Whether the updater passes weights to servers. If it does, a server that begins a new life lacks the
    /// announced weights.
    pub(super) fn gives_weights(&self) -> bool {
        self.method != UpdateMethod::None
    }

    /// Whether a server has to generate before permits are granted on it. The trainer is responsible for
    /// weights that the updater does not pass.
    pub(super) fn checks_generation(&self) -> bool {
        self.check_generation && self.gives_weights()
    }

    /// How a single server can get the announced weights without the trainer; `None` if it cannot.
    pub(super) fn method_of_one(&self, announcement: &Announcement) -> Option<UpdateMethod> {
        match (&self.method, &announcement.path) {
            // Only the trainer knows which weights a server has at the beginning of a life.
            (UpdateMethod::None, _) => None,
            // The trainer sends to all servers together, and cannot repeat this for one of them.
            (UpdateMethod::Transfer, Some(_)) => Some(UpdateMethod::Reload(Reload::default())),
            (UpdateMethod::Transfer, None) => None,
            (method, _) => Some(method.clone()),
        }
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval.clamp(0.001, DEADLINE_SECONDS_MAX))
    }

    /// Number of servers that are called concurrently in a phase.
    pub(super) fn concurrency_in(&self, phase: Phase) -> usize {
        match (&self.method, phase) {
            (UpdateMethod::Transfer, Phase::Update) => usize::MAX,
            _ => self.concurrency.max(1),
        }
    }
}
