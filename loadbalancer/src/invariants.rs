//! Conditions that a snapshot of the fleet must fulfil. Debug assertions, property tests and simulations call
//! these functions.

use crate::server::{Hold, ServerId, ServerState};
use crate::snapshot::FleetSnapshot;

/// A broken invariant. The message contains the numbers that break it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("broken invariant: {0}")]
pub struct Violation(pub String);

/// No server has more taken places than its capacity, except for places that were taken when its capacity was
/// lowered.
pub fn within_capacity(fleet: &FleetSnapshot) -> Result<(), Violation> {
    for server in &fleet.servers {
        if server.in_use > server.capacity + server.overhang {
            return Err(Violation(format!(
                "server={} has permits={} out of capacity={}",
                server.name, server.in_use, server.capacity
            )));
        }
    }
    Ok(())
}

/// The waiting list is bounded.
pub fn waiting_bounded(fleet: &FleetSnapshot, waiting_max: usize) -> Result<(), Violation> {
    if fleet.waiting <= waiting_max {
        return Ok(());
    }
    Err(Violation(format!("waiting={} above waiting_max={waiting_max}", fleet.waiting)))
}

/// No permit is outstanding. This must hold once every holder has dropped its permits.
pub fn all_returned(fleet: &FleetSnapshot) -> Result<(), Violation> {
    match fleet.servers.iter().find(|server| server.in_use > 0) {
        None => Ok(()),
        Some(server) => {
            Err(Violation(format!("server={} still has permits={} out", server.name, server.in_use)))
        }
    }
}

/// Every server on which permits are granted has the required weights.
pub fn weights_current(fleet: &FleetSnapshot) -> Result<(), Violation> {
    let is_open = |state| matches!(state, ServerState::Active | ServerState::Probing);
    match fleet
        .servers
        .iter()
        .find(|server| is_open(server.state) && server.weights_version < fleet.weights_required)
    {
        None => Ok(()),
        Some(server) => Err(Violation(format!(
            "permits are granted on server={} with weights={:?}, required={:?}",
            server.name, server.weights_version, fleet.weights_required
        ))),
    }
}

/// No permits are granted on the servers of `owed`: their engines still have to be resumed.
pub fn owed_are_held(fleet: &FleetSnapshot, owed: &[ServerId]) -> Result<(), Violation> {
    let is_owed = |id: &ServerId| owed.contains(id);
    match fleet.servers.iter().find(|server| is_owed(&server.id) && server.hold != Some(Hold::Updating)) {
        None => Ok(()),
        Some(server) => {
            Err(Violation(format!("permits are granted on server={} before it is resumed", server.name)))
        }
    }
}
