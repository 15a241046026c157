//! Finds servers that died or stall, and puts those that came back on trial.
//!
//! A request that is not streamed has no bytes until it is whole, so silence on a connection says nothing. A stall is
//! judged per server: it owes answers, it is not paused, and its count of generated tokens stands still. A server
//! that got SIGTERM neither answers nor closes its connections: only this rule, together with its health, finds it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adaptive::Adaptive;
use crate::control::{ControlError, EngineControl, EngineLoad, ServerRef};
use crate::{AdaptiveConfig, Hold, LoadBalancer, ServerId, ServerSnapshot, ServerState};

/// Health failures in a row that make a server dead; a single one may be a lost packet.
const HEALTH_FAILURES_MAX: u32 = 2;

/// How a server has to show that it lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Probe {
    /// It says so.
    #[default]
    Health,
    /// One that has nothing to do, or was dead, also generates a token.
    Generate,
}

/// See the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorConfig {
    /// Between two looks at the fleet.
    pub probe_interval: Duration,
    /// A server that owes answers and generates nothing for so long is dead.
    pub stall: Duration,
    /// See [`Probe`].
    pub probe: Probe,
    /// Finds out how many places servers should have; they keep theirs if absent.
    pub adaptive: Option<AdaptiveConfig>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            probe_interval: Duration::from_secs(1),
            stall: Duration::from_secs(60),
            probe: Probe::Health,
            adaptive: None,
        }
    }
}

/// What the monitor remembers of a server.
#[derive(Debug, Default)]
struct Watched {
    health_failures: u32,
    tokens: u64,
    /// Since when it owes answers and its count stands still.
    still_since: Option<Instant>,
    adaptive: Adaptive,
}

/// See the module's documentation.
pub struct Monitor {
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    config: MonitorConfig,
    watched: BTreeMap<ServerId, Watched>,
}

impl Monitor {
    /// A monitor of `balancer`'s fleet.
    pub fn new(balancer: LoadBalancer, control: Arc<dyn EngineControl>, config: MonitorConfig) -> Self {
        Self { balancer, control, config, watched: BTreeMap::new() }
    }

    /// Looks at the fleet until `end` is cancelled. Cancel-safe.
    pub async fn run(mut self, end: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = tokio::time::sleep(self.config.probe_interval) => {}
            }
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = self.look() => {}
            }
        }
    }

    /// One look at every server, all at the same time. Cancel-safe.
    pub async fn look(&mut self) {
        let fleet = self.balancer.snapshot();
        let looks =
            fleet.servers.iter().map(|server| look_at(self.control.as_ref(), server, self.config.probe));
        let seen = join_all(looks).await;
        self.watched.retain(|id, _| fleet.servers.iter().any(|server| server.id == *id));
        for (server, (health, load)) in fleet.servers.iter().zip(seen) {
            self.judge(server, &health, &load);
        }
    }

    fn judge(
        &mut self,
        server: &ServerSnapshot,
        health: &Result<(), ControlError>,
        load: &Result<EngineLoad, ControlError>,
    ) {
        let watched = self.watched.entry(server.id).or_default();
        // A plain server without that endpoint lives until its requests say otherwise.
        if let Err(error @ ControlError::Failed { .. }) = health {
            watched.health_failures += 1;
            watched.still_since = None;
            if server.state != ServerState::Dead && watched.health_failures >= HEALTH_FAILURES_MAX {
                self.declare_dead(server, &format!("health: {error}"));
            }
            return;
        }
        watched.health_failures = 0;
        if server.state == ServerState::Dead {
            watched.still_since = None;
            // The server may have left since; then there is nothing to revive.
            let _ = self.balancer.revive(server.id);
            return;
        }
        if let Ok(load) = load {
            self.adapt(server, load);
        }
        let watched = self.watched.entry(server.id).or_default();
        // One that is only outdated takes no more, but what it has runs on and can stall.
        let paused = server.state == ServerState::Paused && server.hold != Some(Hold::Outdated);
        let standing = match load {
            Ok(EngineLoad { generation_tokens_total: Some(tokens), paused, .. }) => {
                let still = *tokens == watched.tokens && *paused != Some(true);
                watched.tokens = *tokens;
                still
            }
            // Without the count nothing can be said; the sample's own deadline is left.
            Ok(_) | Err(ControlError::Unsupported { .. }) => false,
            Err(ControlError::Failed { .. }) => true,
        };
        if !standing || paused || server.in_use == 0 {
            watched.still_since = None;
            return;
        }
        let since = *watched.still_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.config.stall {
            watched.still_since = None;
            self.declare_dead(server, &format!("stalled for {} s", self.config.stall.as_secs_f64()));
        }
    }

    fn adapt(&mut self, server: &ServerSnapshot, load: &EngineLoad) {
        // The server may have left since; then there is nothing to keep.
        let _ = self.balancer.observe(server.id, load);
        let watched = self.watched.entry(server.id).or_default();
        let Some(config) = self.config.adaptive.filter(|_| server.state == ServerState::Active) else {
            return;
        };
        let ServerSnapshot { capacity, in_use, .. } = *server;
        let next = watched.adaptive.next(&config, capacity, in_use, load, Instant::now());
        if next != capacity {
            let EngineLoad { waiting, kv_cache_usage, .. } = *load;
            tracing::debug!(server = %server.name, capacity, next, waiting, kv_cache_usage, "other places");
            let _ = self.balancer.set_capacity(server.id, next);
        }
    }

    fn declare_dead(&self, server: &ServerSnapshot, reason: &str) {
        // The server may have left since; then there is nothing to end.
        let _ = self.balancer.declare_dead(server.id, reason);
    }
}

async fn look_at(
    control: &dyn EngineControl,
    server: &ServerSnapshot,
    probe: Probe,
) -> (Result<(), ControlError>, Result<EngineLoad, ControlError>) {
    let target = ServerRef { name: Arc::clone(&server.name), url: server.url.clone() };
    let mut health = control.health(&target).await;
    let proves = server.in_use == 0 && !matches!(server.state, ServerState::Paused | ServerState::Draining);
    if probe == Probe::Generate && proves && health.is_ok() {
        health = match control.probe(&target).await {
            // Then its word has to do.
            Err(ControlError::Unsupported { .. }) => Ok(()),
            proved => proved,
        };
    }
    let is_alive = !matches!(health, Err(ControlError::Failed { .. }));
    let load = if is_alive && server.state != ServerState::Dead {
        control.load(&target).await
    } else {
        Err(ControlError::Unsupported { server: Arc::clone(&server.name), what: "load" })
    };
    (health, load)
}

#[cfg(test)]
mod tests;
