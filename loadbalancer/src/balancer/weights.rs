//! The steps of a weight update in the fleet's state. Each step is one change under the lock.

use std::sync::Arc;

use super::LoadBalancer;
use crate::server::{Epoch, ServerId, ServerState};
use crate::snapshot::ServerSnapshot;

impl LoadBalancer {
    /// Begins an update: from now on, no permit is granted on a server before it has the weights of
    /// `required`. Returns the servers that are not dead and that `wants` selects. If `holds` is true, no
    /// permits are granted on these servers before they are [released](Self::release).
    pub(crate) fn begin_update(
        &self,
        required: Option<u64>,
        holds: bool,
        mut wants: impl FnMut(&ServerSnapshot) -> bool,
    ) -> Vec<ServerSnapshot> {
        self.shared.update(|state| {
            state.weights_required = state.weights_required.max(required);
            let required = state.weights_required;
            let ids: Vec<ServerId> = state.servers.iter().map(|server| server.id).collect();
            let mut chosen = Vec::new();
            for id in ids {
                // The server is still in the fleet, since the lock is held.
                let _ = state.change(&self.shared.config, id, |server| {
                    server.set_gate(|gate| gate.required = required);
                    let seen = server.snapshot();
                    if seen.state != ServerState::Dead && wants(&seen) {
                        server.set_gate(|gate| (gate.is_updating, gate.reason) = (holds, None));
                        chosen.push(seen);
                    }
                });
            }
            chosen
        })
    }

    /// Notes the weights that a server was given in its life `epoch`, if any, and the reason why the server
    /// lacks the required weights. Does not change a later life.
    pub(crate) fn set_weights(&self, id: ServerId, epoch: Epoch, weights: Option<u64>, reason: Option<&str>) {
        // The server may have left the fleet.
        let _ = self.change(id, |server| {
            if server.epoch() != epoch {
                return;
            }
            server.set_gate(|gate| {
                gate.reason = reason.map(Into::into);
                gate.weights = weights.or(gate.weights);
            });
        });
    }

    /// Ends the update of this server, whose engine runs again.
    pub(crate) fn release(&self, id: ServerId) {
        // The server may have left the fleet.
        let _ = self.change(id, |server| server.set_gate(|gate| gate.is_updating = false));
    }

    /// Begins a new life of a live server whose weights cannot be trusted: its permits are revoked, and it
    /// starts on trial, without known weights. Returns `None` if the life `epoch` is over already.
    pub(crate) fn restart(&self, id: ServerId, epoch: Epoch, reason: &str) -> Option<Epoch> {
        let restarted = self.shared.update(|state| {
            state.change(&self.shared.config, id, |server| {
                if server.epoch() != epoch || server.state() == ServerState::Dead {
                    return None;
                }
                tracing::warn!(
                    server = %server.name(),
                    reason,
                    in_use = server.in_use,
                    "a new life of the server begins"
                );
                server.die(Arc::from(reason), &self.shared.config);
                server.revive();
                Some(server.epoch())
            })
        });
        restarted.ok().flatten()
    }
}
