//! What is announced, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

/// New weights. Where it is written, `version` is all that it needs.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "Written")]
pub struct Announcement {
    /// The policy version; above all that were announced before.
    pub version: u64,
    /// What servers are to call them.
    pub label: Arc<str>,
    /// Where they are, for those that load them from somewhere.
    pub path: Option<String>,
    /// What the trainer has to say to the engines; for [`Transfer`](super::UpdateMethod::Transfer) the body of
    /// `/update_weights`.
    pub payload: Option<Value>,
}

impl Announcement {
    /// Of a version that is called by its number.
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

/// What an update does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The engines stand still.
    Pause,
    /// They get the weights.
    Update,
    /// They forget what they have cached.
    Reset,
    /// They are told what the weights are called.
    Label,
    /// They go on.
    Resume,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 5] = [Self::Pause, Self::Update, Self::Reset, Self::Label, Self::Resume];

    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Update => "update",
            Self::Reset => "reset",
            Self::Label => "label",
            Self::Resume => "resume",
        }
    }
}

/// What an updater is doing, for a watchdog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdatePhase {
    /// See [`Phase`].
    pub phase: Phase,
    /// What is being given to the servers; `None` when they are only resumed.
    pub version: Option<u64>,
    /// When the phase began.
    pub since: Instant,
    /// How long it may take.
    pub deadline: Duration,
    /// Servers that have not finished it, in order of their numbers.
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

/// One server's part of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerUpdate {
    /// Its name.
    pub server: Arc<str>,
    /// `None` if all went well.
    pub failure: Option<Failure>,
}

/// How an update ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOutcome {
    /// Every server that lived has the weights.
    Complete,
    /// Some have not, and are kept out until they have.
    Partial,
    /// It was not begun: a newer version had been announced.
    Superseded {
        /// That one.
        by: u64,
    },
    /// It was not begun, because it lacks what the method needs: nothing has changed.
    Refused {
        /// What it lacks.
        reason: String,
    },
    /// It was not finished, or not begun: the updater's scope has ended.
    Ended,
}

impl UpdateOutcome {
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

/// What became of an announcement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UpdateReport {
    /// The version.
    pub version: u64,
    /// See [`UpdateOutcome`].
    pub outcome: UpdateOutcome,
    /// The servers that were asked, in order of their numbers.
    pub servers: Vec<ServerUpdate>,
    /// From the first pause to the last resume.
    pub took: Duration,
}

impl UpdateReport {
    pub(super) fn without_work(version: u64, outcome: UpdateOutcome) -> Self {
        Self { version, outcome, servers: Vec::new(), took: Duration::ZERO }
    }
}
