//! What a weight update does to the fleet, in steps that are whole under the lock.

use std::sync::Arc;

use super::LoadBalancer;
use crate::{Epoch, ServerId, ServerSnapshot, ServerState};

impl LoadBalancer {
    /// Begins an update: from this moment on, no server takes a permit before it has `required`, and if it `holds`, none of
    /// those that `wants` chooses takes any before it is [released](Self::release). Says which those are; the dead are not
    /// asked for.
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
                // Whoever is on the list is there: the lock is held.
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

    /// Writes down which weights this life of a server has been given, if any, and what is wrong with it. A later life is
    /// not touched.
    pub(crate) fn set_weights(&self, id: ServerId, epoch: Epoch, weights: Option<u64>, reason: Option<&str>) {
        // It may have left.
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

    /// The update is over for this server, and its engine runs.
    pub(crate) fn release(&self, id: ServerId) {
        // It may have left.
        let _ = self.change(id, |server| server.set_gate(|gate| gate.is_updating = false));
    }

    /// Begins a new life of a server that lives but whose weights cannot be trusted: its permits are revoked, and it comes
    /// back on trial, with the weights of nobody. `None` if that life is over anyway.
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
