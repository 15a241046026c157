//! What is known of the health of servers, and where their lives begin and end.

use tokio::time::Instant;

use super::LoadBalancer;
use crate::server::Server;
use crate::{BalancerError, Epoch, ServerId, ServerState};

impl LoadBalancer {
    /// Declares a server dead: its permits are revoked and it takes no more until it is revived.
    pub fn declare_dead(&self, id: ServerId, reason: &str) -> Result<(), BalancerError> {
        self.change(id, |server| self.end_life(server, reason))
    }

    fn end_life(&self, server: &mut Server, reason: &str) {
        if server.state() != ServerState::Dead {
            tracing::warn!(server = %server.name(), reason, in_use = server.in_use, "server is dead");
            server.die(reason.into(), &self.shared.config);
        }
    }

    /// Puts a dead server on trial.
    pub fn revive(&self, id: ServerId) -> Result<(), BalancerError> {
        self.change(id, |server| {
            if server.state() == ServerState::Dead {
                tracing::info!(server = %server.name(), "server is on trial");
                server.revive();
            }
        })
    }

    /// Changes a server unless this life of it is over.
    fn change_life(&self, id: ServerId, epoch: Epoch, change: impl FnOnce(&mut Server)) {
        // It may have left.
        let _ = self.change(id, |server| {
            if server.epoch() == epoch {
                change(server);
            }
        });
    }

    /// Ends this life of a server.
    pub(crate) fn declare_life_over(&self, id: ServerId, epoch: Epoch, reason: &str) {
        self.change_life(id, epoch, |server| self.end_life(server, reason));
    }

    /// Puts a dead server on trial, if it has been left alone for long enough.
    pub(crate) fn revive_in_time(&self, id: ServerId, epoch: Epoch) {
        let now = Instant::now();
        self.change_life(id, epoch, |server| {
            server.breaker.settle(now);
            if server.state() == ServerState::Dead && !server.breaker.is_cooling() {
                tracing::info!(server = %server.name(), "server is on trial");
                server.revive();
            }
        });
    }

    /// Its engine has generated something since `since`.
    pub(crate) fn has_generated(&self, id: ServerId, epoch: Epoch, since: Instant) {
        self.change_life(id, epoch, |server| server.heed(|breaker| breaker.has_generated(since)));
    }

    /// Its engine was asked for a token, and generated it.
    pub(crate) fn has_proved(&self, id: ServerId, epoch: Epoch) {
        self.change_life(id, epoch, |server| server.heed(|breaker| breaker.has_proved()));
    }

    /// Its life and places taken now, if it is in the fleet.
    pub(crate) fn glance(&self, id: ServerId) -> Option<(Epoch, u32)> {
        let state = self.shared.state.lock();
        let server = &state.servers[state.index(id)?];
        Some((server.epoch(), server.in_use))
    }
}
