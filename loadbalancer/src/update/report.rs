//! Announcements of new weights, and reports of their updates.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

/// The announcement of new weights. In JSON only `version` is required.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "Written")]
pub struct Announcement {
    /// The policy version; higher than every version that was announced before.
    pub version: u64,
    /// The name of the weights on the servers; the version's number if absent in JSON.
    pub label: Arc<str>,
    /// Where servers can load the weights from.
    pub path: Option<String>,
    /// The trainer's message to the engines. With [`Transfer`](super::UpdateMethod::Transfer) it is the body
    /// of `/update_weights`.
    pub payload: Option<Value>,
}

impl Announcement {
    /// The announcement of a version whose number is its name.
    pub fn new(version: u64) -> Self {
        Self { version, label: version.to_string().into(), path: None, payload: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u64,
    label: Option<Arc<str>>,
    path: Option<String>,
    payload: Option<Value>,
}

impl From<Written> for Announcement {
    fn from(Written { version, label, path, payload }: Written) -> Self {
        let label = label.unwrap_or_else(|| version.to_string().into());
        Self { version, label, path, payload }
    }
}

/// The phases of an update, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The engines are paused.
    Pause,
    /// The servers get the weights.
    Update,
    /// The prefix caches are emptied.
    Reset,
    /// The servers are told the name of the weights.
    Label,
    /// The engines are resumed.
    Resume,
    /// The servers generate a few tokens, whose log-probabilities are looked at.
    Check,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 6] =
        [Self::Pause, Self::Update, Self::Reset, Self::Label, Self::Resume, Self::Check];

    /// The phase's name in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Update => "update",
            Self::Reset => "reset",
            Self::Label => "label",
            Self::Resume => "resume",
            Self::Check => "check",
        }
    }
}

/// The phase that an updater is in. Watchdogs read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatePhase {
    /// The phase.
    pub phase: Phase,
    /// The version that the servers are given; `None` when engines are only resumed.
    pub version: Option<u64>,
    /// When the phase began.
    pub since: Instant,
    /// How long the phase may take.
    pub deadline: Duration,
    /// Servers that have not finished the phase, in order of their numbers.
    pub awaited: Vec<Arc<str>>,
}

/// Where and why a server failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The phase.
    pub phase: Phase,
    /// What happened.
    pub reason: String,
}

/// The result of an update on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerUpdate {
    /// The server's name.
    pub server: Arc<str>,
    /// `None` if every phase succeeded.
    pub failure: Option<Failure>,
}

/// How an update ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOutcome {
    /// Every server that is not dead has the weights.
    Complete,
    /// Some servers lack the weights. No permits are granted on them until they have the weights.
    Partial,
    /// The update was not begun, since a newer version had been announced.
    Superseded {
        /// The newer version.
        by: u64,
    },
    /// The update was not begun, since the announcement lacks a part that the method needs.
    Refused {
        /// What the announcement lacks.
        reason: String,
    },
    /// The update was not begun or not finished, since the updater's scope has ended.
    Ended,
}

impl UpdateOutcome {
    /// The names of all outcomes.
    pub(super) const NAMES: [&'static str; 5] = ["complete", "partial", "superseded", "refused", "ended"];

    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Superseded { .. } => "superseded",
            Self::Refused { .. } => "refused",
            Self::Ended => "ended",
        }
    }
}

/// The result of an announcement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UpdateReport {
    /// The version.
    pub version: u64,
    /// How the update ended.
    pub outcome: UpdateOutcome,
    /// The servers that took part, in order of their numbers.
    pub servers: Vec<ServerUpdate>,
    /// Time from the first pause to the last resume.
    pub took: Duration,
}

impl UpdateReport {
    pub(super) fn without_work(version: u64, outcome: UpdateOutcome) -> Self {
        Self { version, outcome, servers: Vec::new(), took: Duration::ZERO }
    }
}
