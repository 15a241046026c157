//! The types that name a server, its lives and its states.

use serde::{Deserialize, Serialize};

/// The number of a server in its balancer. The number of a server that has left is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ServerId(pub u32);

/// The number of a server's life. It rises when the server dies, so that permits of an earlier life cannot
/// change the counts of a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Epoch(pub u64);

/// What a server can be used for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// Permits are granted on the server.
    Active,
    /// The server finishes the requests that it has and takes no more.
    Draining,
    /// The operator or a weight update has paused the server, or the server has older weights than are
    /// required. No permits are granted on it until it is resumed or has the weights.
    Paused,
    /// The server is suspect after failures, or has returned after its death. After a cooldown it takes one
    /// request at a time until one succeeds. Requests that are already running on it continue.
    Probing,
    /// No permits are granted on the server, and the permits of its last life are revoked.
    Dead,
}

impl ServerState {
    /// Whether the server is neither draining nor dead: requests may be sent to it, now or later.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Active | Self::Probing | Self::Paused)
    }

    /// The state's name in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Paused => "paused",
            Self::Probing => "probing",
            Self::Dead => "dead",
        }
    }
}

/// What the operator wants a server to do. A server that dies keeps this setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminState {
    /// Permits are granted on the server whenever its health allows it.
    #[default]
    Active,
    /// The server finishes the requests that it has and takes no more.
    Draining,
    /// No permits are granted on the server until it is resumed.
    Paused,
}

/// Why no permits are granted on a server, if the reason lies in its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The server's weights are being changed, or its engine has not been resumed yet. The engine may be
    /// paused and generate nothing.
    Updating,
    /// The server has older weights than are required. Requests that are already running on it continue.
    Outdated,
}
