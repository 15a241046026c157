//! The health of servers: where their lives begin and end.

use std::time::Duration;

use tokio::time::Instant;

use super::LoadBalancer;
use super::server::Server;
use crate::BalancerError;
use crate::server::{Epoch, ServerId, ServerState};

impl LoadBalancer {
    /// Declares a server dead: its permits are revoked, and it takes no more until it is revived.
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

    /// Changes a server, unless the life `epoch` is over.
    fn change_life(&self, id: ServerId, epoch: Epoch, change: impl FnOnce(&mut Server)) {
        // The server may have left the fleet.
        let _ = self.change(id, |server| {
            if server.epoch() == epoch {
                change(server);
            }
        });
    }

    /// Ends the life `epoch` of a server, unless a later life has begun. The server is taken to have generated
    /// nothing since its count last changed.
    pub(crate) fn declare_life_over(&self, id: ServerId, epoch: Epoch, reason: &str) {
        self.change_life(id, epoch, |server| {
            server.breaker.count_is_unchanged(Instant::now());
            self.end_life(server, reason);
        });
    }

    /// Puts a dead server on trial once its cooldown is over.
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

    /// Notes that the server's engine has generated tokens since `since`.
    pub(crate) fn has_generated(&self, id: ServerId, epoch: Epoch, since: Instant) {
        self.change_life(id, epoch, |server| server.change_breaker(|breaker| breaker.has_generated(since)));
    }

    /// Notes a reading of the count of tokens that the server's engine has generated. The count was asked for at
    /// `asked_at`. `has_changed` is also true for the first reading.
    pub(crate) fn has_counted(&self, id: ServerId, epoch: Epoch, asked_at: Instant, has_changed: bool) {
        self.change_life(id, epoch, |server| match has_changed {
            true => server.breaker.count_has_changed(Instant::now()),
            false => server.breaker.count_is_unchanged(asked_at),
        });
    }

    /// The part of the time since `since` in which a server is known to have generated nothing: between the last
    /// change of its engine's count and the last reading of the count, or the end of the server's life.
    pub fn stood_still(&self, id: ServerId, since: Instant) -> Duration {
        let state = self.shared.state.lock();
        state.index(id).map_or(Duration::ZERO, |index| state.servers[index].breaker.stood_still(since))
    }

    /// Notes that the server's engine was asked for a token, and generated it.
    pub(crate) fn has_proved(&self, id: ServerId, epoch: Epoch) {
        self.change_life(id, epoch, |server| server.change_breaker(|breaker| breaker.has_proved()));
    }

    /// The server's present life and its number of taken places; `None` if the server has left the fleet.
    pub(crate) fn life_and_places(&self, id: ServerId) -> Option<(Epoch, u32)> {
        let state = self.shared.state.lock();
        let server = &state.servers[state.index(id)?];
        Some((server.epoch(), server.in_use))
    }
}
