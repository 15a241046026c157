//! The gate keeps a server out of rotation while its weights are outdated or being updated.
//!
//! The gate is separate from the operator's state. The end of a weight update therefore does not undo an
//! operator's pause, and the end of a pause does not admit a server whose weights are outdated. A new life
//! begins with the weights that the server's process was started with. Therefore the gate forgets the weights
//! of the earlier life before the new life can take a permit.

use std::sync::Arc;

use crate::server::Hold;

/// The gate of one server: it is closed while no permits are granted on the server because of its weights.
#[derive(Debug, Clone, Default)]
pub(in crate::balancer) struct Gate {
    /// The weight version that the server needs; `None` if any version will do.
    pub(in crate::balancer) required: Option<u64>,
    /// The weight version that the server was given in this life; `None` for the weights that it was started
    /// with.
    pub(in crate::balancer) weights: Option<u64>,
    pub(in crate::balancer) is_updating: bool,
    /// Why the server does not have the required weights yet.
    pub(in crate::balancer) reason: Option<Arc<str>>,
}

impl Gate {
    pub(in crate::balancer) fn hold(&self) -> Option<Hold> {
        if self.is_updating {
            return Some(Hold::Updating);
        }
        (self.weights < self.required).then_some(Hold::Outdated)
    }

    /// Called when a new life begins, because a new life has the weights of a new process.
    pub(in crate::balancer) fn forget_weights(&mut self) {
        self.weights = None;
    }

    /// Why the gate is closed, in words for the operator; `None` while it is open.
    pub(in crate::balancer) fn description(&self) -> Option<Arc<str>> {
        let awaited = match (self.hold()?, self.required) {
            (Hold::Updating, None) => "its weights are being updated".to_owned(),
            (Hold::Updating, Some(version)) if self.weights >= Some(version) => {
                format!("weights version={version}, not resumed yet")
            }
            (Hold::Updating, Some(version)) => format!("is being updated to weights version={version}"),
            (Hold::Outdated, version) => format!("awaits weights version={}", version.unwrap_or_default()),
        };
        Some(match &self.reason {
            Some(reason) => format!("{awaited}: {reason}").into(),
            None => awaited.into(),
        })
    }
}
