//! Finds servers that have died or stalled, and puts servers that have returned on trial.
//!
//! A server sends no byte of an unstreamed answer until the answer is complete, so a silent connection does
//! not show that a server has stalled. Instead, the monitor watches each server's count of generated tokens.
//! A server has stalled if it owes answers, it is not paused, and its count does not rise. A server that got
//! SIGTERM neither answers nor closes its connections; only its count and its health check show that it is
//! lost.
//!
//! # Invariants
//! - A silent server does not delay the decisions on other servers.
//! - Observations of one life of a server do not count for its next life.
//! - An engine that reports a pause is not probed, and its lack of progress does not count as a stall.
//! - Delays of this process do not count against a server. The time limits of looks and stalls do not count
//!   the time for which this process was late, because answers that arrived during this time may be unread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adaptive::Adaptive;
use crate::control::{ControlError, EngineControl, EngineLoad, ServerRef};
use crate::server::{AdminState, Epoch, Hold, ServerId, ServerState};
use crate::snapshot::ServerSnapshot;
use crate::{AdaptiveConfig, LoadBalancer, within};

/// Maximum number of servers that are looked at concurrently.
const LOOKS_MAX: usize = 128;
/// Time limit of one look at a server, in addition to the deadlines of its calls.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// Lower limit of [`MonitorConfig::stall`]. In a shorter time, a healthy server's count of generated tokens
/// may stay the same.
const STALL_MIN: Duration = Duration::from_secs(1);
/// Number of failed health checks in a row after which a server is dead. A single failure may be a lost
/// packet.
const HEALTH_FAILURES_MAX: u32 = 2;

/// How a server has to prove that it is alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A server has to answer its health check.
    #[default]
    Health,
    /// A server has to answer its health check. An idle or a dead server also has to generate a token.
    Generate,
}

/// The configuration of the monitor.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorConfig {
    /// Time between two looks at the fleet.
    pub probe_interval: Duration,
    /// Time after which a server that owes answers and generates no tokens is declared dead.
    pub stall: Duration,
    /// How a server has to prove that it is alive.
    pub probe: Probe,
    /// Bounds and steps for finding the servers' capacities by trying. If absent, the servers keep their
    /// configured capacities.
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

/// The monitor's data about a server.
#[derive(Debug, Default)]
struct Watched {
    is_looked_at: bool,
    epoch: Option<Epoch>,
    health_failures: u32,
    /// The count of generated tokens at the last look.
    tokens: Option<u64>,
    /// The time at which that count was asked for.
    asked_at: Option<Instant>,
    /// The time since which the server has owed answers while its count did not rise.
    still_since: Option<Instant>,
    capacity: Capacity,
}

impl Watched {
    /// Notes the count. If it has risen since the last reading, returns the time of that reading.
    fn count(&mut self, tokens: u64, asked_at: Instant) -> Option<Instant> {
        let (before, since) = (self.tokens.replace(tokens), self.asked_at.replace(asked_at));
        // A count that falls belongs to a new process.
        since.filter(|_| before.is_some_and(|before| tokens > before))
    }
}

/// The observations of one look at a server.
struct Look {
    /// The server as it was when the look began.
    server: ServerSnapshot,
    health: Result<(), ControlError>,
    load: Result<EngineLoad, ControlError>,
    /// Number of this balancer's samples on the server when its load was asked for.
    ours: u32,
    /// The time at which the load was asked for.
    asked_at: Instant,
    /// Whether the server was asked for a token and generated it.
    has_proved: bool,
}

type Looks = FuturesUnordered<BoxFuture<'static, Look>>;

/// Looks at the servers of a fleet, and reports to the balancer which of them are dead, have stalled or have
/// returned.
pub struct Monitor {
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    config: MonitorConfig,
    watched: BTreeMap<ServerId, Watched>,
}

impl Monitor {
    /// A monitor of `balancer`'s fleet. If capacities are found by trying, the balancer may raise them to
    /// their maximum from now on.
    pub fn new(balancer: LoadBalancer, control: Arc<dyn EngineControl>, config: MonitorConfig) -> Self {
        if let Some(adaptive) = &config.adaptive {
            balancer.set_capacity_ceiling(adaptive.max);
        }
        Self { balancer, control, config, watched: BTreeMap::new() }
    }

    /// Looks at the fleet until `end` is cancelled. Cancel-safe.
    pub async fn run(mut self, end: CancellationToken) {
        let interval = self.config.probe_interval.max(Duration::from_millis(1));
        let mut next = Instant::now() + interval;
        let (mut looks, mut queue) = (Looks::new(), VecDeque::new());
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                Some(look) = looks.next() => self.judge(&look),
                () = tokio::time::sleep_until(next) => {
                    self.excuse(next.elapsed());
                    next = Instant::now() + interval;
                    self.take_turns(&mut queue);
                }
            }
            self.begin(&mut looks, &mut queue);
        }
    }

    /// Looks once at every server, and judges each server as soon as it has answered. Cancel-safe.
    pub async fn look(&mut self) {
        let (mut looks, mut queue) = (Looks::new(), VecDeque::new());
        self.watched.values_mut().for_each(|watched| watched.is_looked_at = false);
        self.take_turns(&mut queue);
        self.begin(&mut looks, &mut queue);
        while let Some(look) = looks.next().await {
            self.judge(&look);
            self.begin(&mut looks, &mut queue);
        }
    }

    /// Moves every server's `still_since` by the time for which this process was late. This time therefore
    /// does not count towards a stall.
    fn excuse(&mut self, late: Duration) {
        let now = Instant::now();
        for since in self.watched.values_mut().filter_map(|watched| watched.still_since.as_mut()) {
            *since = (*since + late).min(now);
        }
    }

    /// Queues every server that is not being looked at.
    fn take_turns(&mut self, queue: &mut VecDeque<ServerSnapshot>) {
        let fleet = self.balancer.snapshot().servers;
        self.watched.retain(|id, _| fleet.iter().any(|server| server.id == *id));
        queue.retain(|server| self.watched.contains_key(&server.id));
        for server in fleet {
            let watched = self.watched.entry(server.id).or_default();
            if !std::mem::replace(&mut watched.is_looked_at, true) {
                queue.push_back(server);
            }
        }
    }

    fn begin(&self, looks: &mut Looks, queue: &mut VecDeque<ServerSnapshot>) {
        while looks.len() < LOOKS_MAX
            && let Some(server) = queue.pop_front()
        {
            let (balancer, control) = (self.balancer.clone(), Arc::clone(&self.control));
            looks.push(look_at(balancer, control, server, self.config.probe).boxed());
        }
    }

    fn judge(&mut self, look: &Look) {
        let Look { server, health, load, .. } = look;
        let Some(watched) = self.watched.get_mut(&server.id) else { return };
        watched.is_looked_at = false;
        if watched.epoch.replace(server.epoch) != Some(server.epoch) {
            (watched.health_failures, watched.still_since) = (0, None);
            watched.capacity = Capacity::default();
        }
        // A server without a health endpoint counts as alive until its requests fail.
        if let Err(error @ ControlError::Failed { .. }) = health {
            watched.health_failures += 1;
            watched.still_since = None;
            if watched.health_failures >= HEALTH_FAILURES_MAX {
                self.balancer.declare_life_over(server.id, server.epoch, &format!("health: {error}"));
            }
            return;
        }
        if matches!(health, Err(ControlError::Unasked { .. })) {
            // The server was not asked, so this look shows nothing about it.
            return;
        }
        watched.health_failures = 0;
        if server.state == ServerState::Dead {
            watched.still_since = None;
            self.balancer.revive_in_time(server.id, server.epoch);
        } else {
            match load {
                Ok(load) => self.adapt(server, load, look.ours),
                Err(ControlError::Unsupported { .. }) => self.give_up_measuring(server),
                Err(ControlError::Failed { .. } | ControlError::Unasked { .. }) => {}
            }
        }
        if look.has_proved {
            self.balancer.has_proved(server.id, server.epoch);
        }
        self.judge_progress(look);
    }

    /// Judges whether the server generates the tokens that it owes.
    fn judge_progress(&mut self, look: &Look) {
        let Look { server, load, .. } = look;
        let Some(watched) = self.watched.get_mut(&server.id) else { return };
        if server.state == ServerState::Dead {
            return;
        }
        // A server that is only outdated gets no permits, but its running requests continue and can stall.
        let paused = server.state == ServerState::Paused && server.hold != Some(Hold::Outdated);
        let standing = match load {
            Ok(EngineLoad { generation_tokens_total: Some(tokens), paused, .. }) => {
                let has_changed = watched.tokens != Some(*tokens);
                let before = watched.tokens.unwrap_or(0);
                self.balancer.has_counted(server.id, server.epoch, look.asked_at, has_changed);
                if let Some(since) = watched.count(*tokens, look.asked_at) {
                    self.balancer.has_generated(server.id, server.epoch, since);
                }
                before == *tokens && *paused != Some(true)
            }
            // Without the count, the monitor cannot notice a stall. Only the deadlines of samples end such a
            // stall.
            Ok(_) | Err(ControlError::Unsupported { .. } | ControlError::Unasked { .. }) => false,
            Err(ControlError::Failed { .. }) => true,
        };
        if !standing || paused || look.ours == 0 {
            watched.still_since = None;
            return;
        }
        let since = *watched.still_since.get_or_insert_with(Instant::now);
        let stall = self.config.stall.max(STALL_MIN);
        if since.elapsed() >= stall {
            watched.still_since = None;
            let reason = format!("stalled for {} s", stall.as_secs_f64());
            self.balancer.declare_life_over(server.id, server.epoch, &reason);
        }
    }

    fn adapt(&mut self, server: &ServerSnapshot, load: &EngineLoad, ours: u32) {
        // The server may have left the fleet.
        let _ = self.balancer.observe(server.id, load, ours);
        let is_at_work = server.state == ServerState::Active && load.paused != Some(true);
        let Some(config) = self.config.adaptive.filter(|_| is_at_work) else { return };
        let Some(watched) = self.watched.get_mut(&server.id) else { return };
        let capacity = server.capacity;
        let Capacity::Measured(adaptive) = &mut watched.capacity else { return };
        let next = adaptive.next(&config, capacity, ours, load, Instant::now());
        if next != capacity {
            let EngineLoad { waiting, kv_cache_usage, .. } = *load;
            tracing::debug!(server = %server.name, capacity, next, waiting, kv_cache_usage, "capacity changes");
            let _ = self.balancer.set_capacity(server.id, next);
        }
    }

    /// Sets the capacity of a server that reports no load, once in its life.
    fn give_up_measuring(&mut self, server: &ServerSnapshot) {
        let Some(config) = self.config.adaptive else { return };
        let Some(watched) = self.watched.get_mut(&server.id) else { return };
        if let Capacity::Measured(_) = std::mem::replace(&mut watched.capacity, Capacity::Unmeasured) {
            let capacity = config.unreported;
            tracing::info!(server = %server.name, capacity, "reports no load, so its capacity is not measured");
            let _ = self.balancer.set_capacity(server.id, capacity);
        }
    }
}

/// How a server's capacity is found in its present life.
#[derive(Debug)]
enum Capacity {
    Measured(Adaptive),
    /// The server reports no load.
    Unmeasured,
}

impl Default for Capacity {
    fn default() -> Self {
        Self::Measured(Adaptive::default())
    }
}

async fn look_at(
    balancer: LoadBalancer,
    control: Arc<dyn EngineControl>,
    server: ServerSnapshot,
    probe: Probe,
) -> Look {
    let name = Arc::clone(&server.name);
    let target = ServerRef { name: Arc::clone(&name), url: server.url.clone() };
    let unknown = || ControlError::Unsupported { server: Arc::clone(&name), what: "load" };
    let mut look = Look {
        health: Ok(()),
        load: Err(unknown()),
        ours: 0,
        asked_at: Instant::now(),
        has_proved: false,
        server,
    };
    let asking = ask(&mut look, &balancer, control.as_ref(), &target, probe);
    if within(LOOK_LIMIT, asking).await.is_err() {
        let reason = format!("no answer within {} s", LOOK_LIMIT.as_secs());
        look.health = Err(ControlError::Failed { server: name, what: "health", reason });
    }
    look
}

async fn ask(
    look: &mut Look,
    balancer: &LoadBalancer,
    control: &dyn EngineControl,
    target: &ServerRef,
    probe: Probe,
) {
    look.health = control.health(target).await;
    if matches!(look.health, Err(ControlError::Failed { .. } | ControlError::Unasked { .. })) {
        return;
    }
    let is_dead = look.server.state == ServerState::Dead;
    let Some((_, ours)) = balancer.life_and_places(look.server.id) else { return };
    (look.ours, look.asked_at) = (ours, Instant::now());
    // The load of a dead server matters only for its probe.
    if !is_dead || probe == Probe::Generate {
        look.load = control.load(target).await;
    }
    let is_paused = matches!(look.load, Ok(EngineLoad { paused: Some(true), .. }));
    let is_wanted = look.server.admin_state == AdminState::Active && look.server.hold.is_none();
    if probe == Probe::Health || is_paused || !is_wanted || ours > 0 || look.health.is_err() {
        return;
    }
    match control.probe(target).await {
        // For a server that cannot be probed, only the health check counts.
        Err(ControlError::Unsupported { .. }) => {}
        Ok(()) => {
            balancer.count_probe(1);
            look.has_proved = true;
        }
        failed => look.health = failed,
    }
}

#[cfg(test)]
mod tests;
