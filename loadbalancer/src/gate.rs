//! What keeps a server out of rotation for the sake of its weights, whatever its state is otherwise.
//!
//! It is apart from the state, so that the end of a weight update undoes nobody's pause, and the end of somebody's pause
//! lets no outdated server in. A life that begins has the weights that its process was started with: nothing that was
//! loaded before counts for it, from the same moment on in which it could take its first permit.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why a server that is well takes no permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Its weights are being changed, or its engine has still to be resumed: it may stand still.
    Updating,
    /// It has older weights than it should. What it has runs on.
    Outdated,
}

/// Closed while a server may not take permits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    /// Weights that it has to have; `None` as long as any will do.
    pub(crate) required: Option<u64>,
    /// Weights that it was given in this life; `None` are those that it was started with.
    pub(crate) weights: Option<u64>,
    pub(crate) is_updating: bool,
    /// Why it has not got them yet.
    pub(crate) reason: Option<Arc<str>>,
}

impl Gate {
    pub(crate) fn hold(&self) -> Option<Hold> {
        if self.is_updating {
            return Some(Hold::Updating);
        }
        (self.weights < self.required).then_some(Hold::Outdated)
    }

    /// A new life begins: its weights are those of a fresh process.
    pub(crate) fn forget_weights(&mut self) {
        self.weights = None;
    }

    /// For people, while it is closed.
    pub(crate) fn words(&self) -> Option<Arc<str>> {
        let awaited = match (self.hold()?, self.required) {
            (Hold::Updating, None) => "its weights are updated".to_owned(),
            (Hold::Updating, Some(version)) if self.weights >= Some(version) => {
                format!("weights version={version}, not resumed yet")
            }
            (Hold::Updating, Some(version)) => format!("updated to weights version={version}"),
            (Hold::Outdated, version) => format!("awaits weights version={}", version.unwrap_or_default()),
        };
        Some(match &self.reason {
            Some(reason) => format!("{awaited}: {reason}").into(),
            None => awaited.into(),
        })
    }
}
