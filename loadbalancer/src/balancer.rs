//! Granting and returning permits.
//!
//! All state is behind one lock that is held for a pick, never across an await. Who has to wait leaves a one-shot
//! sender in an ordered list; whoever makes room serves the list before anybody else can take the place, so waiting
//! is fair within a priority and costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::Gauge;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::policy::{self, Ask, Candidate, RoutingPolicy};
use crate::server::Server;
use crate::{
    BalancerConfig, BalancerError, EngineLoad, FleetSnapshot, Outcome, Permit, PermitRequest, Priority,
    ServerId, ServerSpec, ServerState, invariants,
};

/// What is left of earlier measurements of the fleet at each new one.
const MEAN_MEMORY: f64 = 0.99;

#[derive(Debug)]
struct Waiter {
    weight: u32,
    tokens: u32,
    group: Option<u64>,
    exclude: Vec<ServerId>,
    grant: oneshot::Sender<Permit>,
}

/// What samples took lately, over all servers.
#[derive(Debug, Default)]
struct Means {
    samples: f64,
    tokens: f64,
    seconds: f64,
}

impl Means {
    fn record(&mut self, samples: u32, tokens: u64, took: Duration) {
        self.samples = self.samples * MEAN_MEMORY + f64::from(samples);
        self.tokens = self.tokens * MEAN_MEMORY + tokens as f64;
        self.seconds = self.seconds * MEAN_MEMORY + took.as_secs_f64() * f64::from(samples);
    }

    /// Tokens of a sample.
    fn tokens(&self) -> f64 {
        if self.samples > 0.0 { self.tokens / self.samples } else { 1.0 }
    }

    /// Tokens a second of a sample.
    fn speed(&self) -> f64 {
        if self.seconds > 0.0 && self.tokens > 0.0 { self.tokens / self.seconds } else { 1.0 }
    }
}

#[derive(Debug)]
struct State {
    /// In order of their ids.
    servers: Vec<Server>,
    /// What policies see of each of them.
    candidates: Vec<Candidate>,
    /// Whether a server has penalties, or asked to be left alone: what is seen of it changes with time.
    unsettled: bool,
    next_server: u32,
    /// Permits out of all servers.
    in_use: u32,
    waiters: BTreeMap<(Priority, u64), Waiter>,
    next_waiter: u64,
    policy: Box<dyn RoutingPolicy>,
    rng: ChaCha8Rng,
    means: Means,
    closed: bool,
}

impl State {
    fn index(&self, id: ServerId) -> Option<usize> {
        self.servers.binary_search_by_key(&id, |server| server.id).ok()
    }

    /// The one way to change a server: what policies see changes with it.
    fn change<T>(
        &mut self,
        config: &BalancerConfig,
        id: ServerId,
        change: impl FnOnce(&mut Server) -> T,
    ) -> Result<T, BalancerError> {
        let index = self.index(id).ok_or_else(|| unknown(id))?;
        let server = &mut self.servers[index];
        let before = server.in_use;
        let result = change(server);
        self.in_use = self.in_use - before + server.in_use;
        self.look_at(config, index, Instant::now());
        Ok(result)
    }

    fn look_at(&mut self, config: &BalancerConfig, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let penalty = server.penalty(now, config.penalty_half_life());
        self.unsettled |= server.opens_at(now).is_some() || penalty > 0.0;
        self.candidates[index] = server.candidate(penalty, self.means.speed(), self.means.tokens());
    }

    /// Brings what changes with time up to date.
    fn settle(&mut self, config: &BalancerConfig) {
        if std::mem::take(&mut self.unsettled) {
            let now = Instant::now();
            (0..self.servers.len()).for_each(|index| self.look_at(config, index, now));
        }
    }

    /// When the next server that asked to be left alone may be asked again.
    fn next_opening(&mut self) -> Option<Instant> {
        if !self.unsettled {
            return None;
        }
        let now = Instant::now();
        self.servers.iter_mut().filter_map(|server| server.opens_at(now)).min()
    }

    fn largest_capacity(&self, config: &BalancerConfig) -> u32 {
        let largest = self.servers.iter().map(|server| server.capacity).max().unwrap_or(0);
        largest.min(config.capacity_total.unwrap_or(u32::MAX))
    }

    /// Expected tokens of a request; one that no server could have whole is charged what the largest has.
    fn tokens_of(&self, weight: u32, expected: u32) -> u32 {
        let each = if expected > 0 { f64::from(expected) } else { self.means.tokens() };
        let tokens = (each * f64::from(weight)) as u32;
        if self.servers.iter().any(|server| server.tokens_max() >= tokens) {
            return tokens;
        }
        self.servers.iter().map(Server::tokens_max).max().unwrap_or(tokens)
    }

    /// Exclusion is a wish: it does not hold when nobody else is alive.
    fn honoured<'a>(&self, exclude: &'a [ServerId], weight: u32) -> &'a [ServerId] {
        let other =
            |server: &Server| server.is_live() && server.capacity >= weight && !exclude.contains(&server.id);
        if exclude.is_empty() || self.servers.iter().any(other) { exclude } else { &[] }
    }

    fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            servers: self.servers.iter().map(Server::snapshot).collect(),
            waiting: self.waiters.len(),
        }
    }
}

/// What the clones of a balancer and its permits share.
#[derive(Debug)]
pub(crate) struct Shared {
    config: BalancerConfig,
    state: Mutex<State>,
    /// A server has fewer permits out, or another state.
    changed: Notify,
    /// A server asked to be left alone for a while.
    closings: Notify,
    waiting: Gauge,
}

impl Shared {
    pub(crate) fn give_back(self: &Arc<Self>, permit: &Permit) {
        let Permit { life, weight, tokens, granted_at, outcome, .. } = permit;
        let now = Instant::now();
        let took = now.saturating_duration_since(*granted_at);
        let closes = matches!(outcome, Outcome::Backpressure { retry_after: Some(_) });
        self.update(|state| {
            if let Outcome::Success { tokens } = outcome {
                state.means.record(*weight, *tokens, took);
            }
            // It may have left.
            let _ = state.change(&self.config, life.server, |server| {
                if server.epoch() != life.epoch {
                    return;
                }
                server.give_back(*weight, *tokens);
                if let Some(reason) = server.record(outcome, *weight, took, now, &self.config) {
                    tracing::warn!(server = %server.name(), %reason, "server is dead");
                    server.die(reason);
                }
            });
        });
        if closes {
            self.closings.notify_waiters();
        }
    }

    /// Changes the state and serves who waits. Permits that nobody takes are dropped outside the lock.
    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, untaken) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            let untaken = if state.waiters.is_empty() { Vec::new() } else { self.serve(&mut state) };
            debug_assert_eq!(invariants::within_capacity(&state.snapshot()), Ok(()));
            (result, untaken)
        };
        drop(untaken);
        self.changed.notify_waiters();
        result
    }

    /// Grants what can be granted, in order. A waiter that fits nowhere keeps the servers that it could use: whoever
    /// comes after it may only have the others.
    fn serve(self: &Arc<Self>, state: &mut State) -> Vec<Permit> {
        let mut untaken = Vec::new();
        let mut kept: Vec<ServerId> = Vec::new();
        let mut cursor = None;
        loop {
            let next = match cursor {
                None => state.waiters.iter().next(),
                Some(after) => {
                    let later = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
                    state.waiters.range(later).next()
                }
            };
            let Some((key, waiter)) = next.map(|(key, waiter)| (*key, waiter)) else { break };
            cursor = Some(key);
            let (weight, tokens, group) = (waiter.weight, waiter.tokens, waiter.group);
            let exclude = state.honoured(&waiter.exclude, weight).to_vec();
            let avoid: Vec<ServerId> = exclude.iter().chain(&kept).copied().collect();
            match self.try_grant(state, &Ask { weight, tokens, group, avoid: &avoid }) {
                Some(permit) => {
                    let Some(waiter) = state.waiters.remove(&key) else { continue };
                    if let Err(permit) = waiter.grant.send(permit) {
                        untaken.push(permit);
                    }
                }
                None => {
                    let could_use = state.servers.iter().filter(|server| !exclude.contains(&server.id));
                    kept.extend(could_use.map(|server| server.id));
                    if state.servers.iter().all(|server| kept.contains(&server.id)) {
                        break;
                    }
                }
            }
        }
        self.waiting.set(state.waiters.len() as f64);
        untaken
    }

    fn try_grant(self: &Arc<Self>, state: &mut State, ask: &Ask<'_>) -> Option<Permit> {
        let room = self.config.capacity_total.unwrap_or(u32::MAX) - state.in_use;
        if ask.weight > room {
            return None;
        }
        state.settle(&self.config);
        let State { policy, candidates, rng, .. } = state;
        let index = policy.pick(ask, candidates, rng)?;
        // A policy of somebody else's may err.
        let id = candidates.get(index).filter(|candidate| ask.fits(candidate))?.server;
        let life = state.change(&self.config, id, |server| {
            server.grant(ask.weight, ask.tokens);
            Arc::clone(&server.life)
        });
        Some(Permit {
            shared: Arc::clone(self),
            life: life.ok()?,
            weight: ask.weight,
            tokens: ask.tokens,
            granted_at: Instant::now(),
            outcome: Outcome::Cancelled,
        })
    }
}

/// Takes the waiter off the list when the waiting future is dropped.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    key: (Priority, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let gone = self.shared.state.lock().waiters.remove(&self.key);
        if gone.is_some() {
            // It may have kept a server from those behind it.
            self.shared.update(|_| ());
        }
    }
}

/// What became of a request at first.
enum Begun {
    Granted(Permit),
    Waits(oneshot::Receiver<Permit>, (Priority, u64)),
}

/// See the crate's documentation. Clones share one fleet.
#[derive(Debug, Clone)]
pub struct LoadBalancer {
    shared: Arc<Shared>,
}

impl LoadBalancer {
    /// A balancer over `servers`.
    pub fn new(config: BalancerConfig, servers: Vec<ServerSpec>) -> Result<Self, BalancerError> {
        let policy = policy::of(&config);
        Self::with_policy(config, policy, servers)
    }

    /// A balancer that chooses in a way of its owner's; [`BalancerConfig::policy`] is not looked at.
    pub fn with_policy(
        config: BalancerConfig,
        policy: Box<dyn RoutingPolicy>,
        servers: Vec<ServerSpec>,
    ) -> Result<Self, BalancerError> {
        let state = State {
            servers: Vec::new(),
            candidates: Vec::new(),
            unsettled: false,
            next_server: 0,
            in_use: 0,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            policy,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            means: Means::default(),
            closed: false,
        };
        let shared = Shared {
            config,
            state: Mutex::new(state),
            changed: Notify::new(),
            closings: Notify::new(),
            waiting: metrics::gauge!("rolldock_permits_waiting"),
        };
        let balancer = Self { shared: Arc::new(shared) };
        for server in servers {
            balancer.add(server)?;
        }
        Ok(balancer)
    }

    /// Waits for a permit.
    ///
    /// Cancel-safe: dropping the future leaves the list, and a grant that was on its way returns by itself.
    pub async fn acquire(&self, request: PermitRequest) -> Result<Permit, BalancerError> {
        let PermitRequest { weight, priority, deadline, .. } = request;
        let (granted, key) = match self.begin(request)? {
            Begun::Granted(permit) => return Ok(permit),
            Begun::Waits(granted, key) => (granted, key),
        };
        let waiting = Waiting { shared: &self.shared, key };
        // A newcomer of higher priority, or with other exclusions, may fit at once.
        self.shared.update(|_| ());
        match deadline {
            None => self.wait(granted).await,
            Some(deadline) => {
                let mut granted = granted;
                match tokio::time::timeout_at(deadline, self.wait(&mut granted)).await {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        drop(waiting);
                        // Granted at the last moment: taken rather than returned.
                        granted.try_recv().map_err(|_| self.too_late(weight))
                    }
                }
            }
        }
        .inspect_err(|_| tracing::debug!(weight, ?priority, "no permit"))
    }

    /// Grants at once where nobody waits and there is room: the common case needs no list.
    fn begin(&self, request: PermitRequest) -> Result<Begun, BalancerError> {
        let PermitRequest { weight, expected_tokens, group, priority, exclude, .. } = request;
        let config = &self.shared.config;
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(BalancerError::Closed);
        }
        if weight == 0 {
            return Err(BalancerError::Weightless);
        }
        let tokens = state.tokens_of(weight, expected_tokens);
        if state.waiters.is_empty() {
            let avoid = state.honoured(&exclude, weight);
            if let Some(permit) = self.shared.try_grant(&mut state, &Ask { weight, tokens, group, avoid }) {
                return Ok(Begun::Granted(permit));
            }
        }
        let largest = state.largest_capacity(config);
        if weight > largest {
            return Err(BalancerError::TooHeavy { weight, largest });
        }
        let waiting_max = config.waiting_max;
        if state.waiters.len() >= waiting_max {
            return Err(BalancerError::QueueFull { waiting_max });
        }
        let key = (priority, state.next_waiter);
        state.next_waiter += 1;
        let (grant, granted) = oneshot::channel();
        state.waiters.insert(key, Waiter { weight, tokens, group, exclude, grant });
        Ok(Begun::Waits(granted, key))
    }

    /// Waits for what it was promised. Where servers asked to be left alone, somebody has to look when that is over.
    async fn wait(
        &self,
        mut granted: impl Future<Output = Result<Permit, oneshot::error::RecvError>> + Unpin,
    ) -> Result<Permit, BalancerError> {
        loop {
            let closing = self.shared.closings.notified();
            tokio::pin!(closing);
            closing.as_mut().enable();
            let opening = self.shared.state.lock().next_opening();
            let opened = async {
                match opening {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                permit = &mut granted => return permit.map_err(|_| BalancerError::Closed),
                () = opened => self.shared.update(|_| ()),
                () = closing => {}
            }
        }
    }

    fn too_late(&self, weight: u32) -> BalancerError {
        let fleet = self.snapshot();
        let mut by_state: BTreeMap<String, usize> = BTreeMap::new();
        for server in &fleet.servers {
            *by_state.entry(server.state.as_str().to_owned()).or_default() += 1;
        }
        let mut words: Vec<String> =
            by_state.iter().map(|(state, count)| format!("{count} {state}")).collect();
        words.push(format!("{} permits out, {} waiting", fleet.in_use(), fleet.waiting));
        BalancerError::Deadline { weight, fleet: words.join(", ") }
    }

    /// Adds a server, active at once.
    pub fn add(&self, spec: ServerSpec) -> Result<ServerId, BalancerError> {
        self.shared.update(|state| {
            if state.servers.iter().any(|server| **server.name() == *spec.name) {
                return Err(BalancerError::DuplicateServer { server: spec.name });
            }
            let id = ServerId(state.next_server);
            state.next_server += 1;
            let server = Server::new(id, spec);
            state.candidates.push(server.candidate(0.0, state.means.speed(), state.means.tokens()));
            state.servers.push(server);
            Ok(id)
        })
    }

    /// Takes no more permits on a server and waits until the last one is back. Cancel-safe: it stays draining.
    pub async fn drain(&self, id: ServerId) -> Result<(), BalancerError> {
        self.set_state(id, ServerState::Draining)?;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let in_use = {
                let state = self.shared.state.lock();
                state.index(id).map_or(0, |index| state.servers[index].in_use)
            };
            if in_use == 0 {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Takes a server out of the fleet; its permits are revoked.
    pub fn remove(&self, id: ServerId) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            let index = state.index(id).ok_or_else(|| unknown(id))?;
            let server = state.servers.remove(index);
            state.candidates.remove(index);
            state.in_use -= server.in_use;
            server.leave();
            Ok(())
        })
    }

    /// The server of a name.
    pub fn find(&self, name: &str) -> Option<ServerId> {
        let state = self.shared.state.lock();
        state.servers.iter().find(|server| **server.name() == *name).map(|server| server.id)
    }

    /// Pauses (for a weight update, say) or resumes a server; resuming also ends draining. A dead one stays dead.
    pub fn set_paused(&self, id: ServerId, paused: bool) -> Result<(), BalancerError> {
        self.set_state(id, if paused { ServerState::Paused } else { ServerState::Active })
    }

    /// Gives a server no more requests. A dead one stays dead.
    pub fn set_draining(&self, id: ServerId) -> Result<(), BalancerError> {
        self.set_state(id, ServerState::Draining)
    }

    /// Gives a server other places. Permits that are out above them stay until they are returned.
    pub fn set_capacity(&self, id: ServerId, capacity: u32) -> Result<(), BalancerError> {
        self.change(id, |server| server.set_capacity(capacity))
    }

    /// What a server said of itself: samples of others there count for [`Policy::LeastWork`](crate::Policy::LeastWork).
    pub fn observe(&self, id: ServerId, load: &EngineLoad) -> Result<(), BalancerError> {
        self.change(id, |server| server.observe(load))
    }

    fn set_state(&self, id: ServerId, to: ServerState) -> Result<(), BalancerError> {
        self.change(id, |server| {
            if server.state != ServerState::Dead {
                server.set_state(to);
            }
        })
    }

    /// Declares a server dead: its permits are revoked and it takes no more until it is revived.
    pub fn declare_dead(&self, id: ServerId, reason: &str) -> Result<(), BalancerError> {
        self.change(id, |server| {
            if server.state != ServerState::Dead {
                tracing::warn!(server = %server.name(), reason, in_use = server.in_use, "server is dead");
                server.die(reason.into());
            }
        })
    }

    /// Puts a dead server on trial.
    pub fn revive(&self, id: ServerId) -> Result<(), BalancerError> {
        self.change(id, |server| {
            if server.state == ServerState::Dead {
                tracing::info!(server = %server.name(), "server is on trial");
                server.revive();
            }
        })
    }

    fn change(&self, id: ServerId, change: impl FnOnce(&mut Server)) -> Result<(), BalancerError> {
        self.shared.update(|state| state.change(&self.shared.config, id, change))
    }

    /// Refuses new requests and ends all waiting.
    pub fn close(&self) {
        let waiters = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waiters)
        };
        drop(waiters);
    }

    /// The fleet now.
    pub fn snapshot(&self) -> FleetSnapshot {
        self.shared.state.lock().snapshot()
    }

    /// The heaviest request that could ever be granted.
    pub fn largest_capacity(&self) -> u32 {
        self.shared.state.lock().largest_capacity(&self.shared.config)
    }

    /// Places over all servers that are not dead.
    pub fn capacity_total(&self) -> u64 {
        let state = self.shared.state.lock();
        state.servers.iter().filter(|server| server.is_live()).map(|server| u64::from(server.capacity)).sum()
    }

    /// Completes at the next change of any server or permit, or after `limit`. Cancel-safe.
    pub async fn changed(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.shared.changed.notified()).await;
    }
}

fn unknown(id: ServerId) -> BalancerError {
    BalancerError::UnknownServer { server: id.0.to_string() }
}

#[cfg(test)]
mod tests;
