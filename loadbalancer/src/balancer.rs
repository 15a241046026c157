//! Granting and returning permits.
//!
//! All state is behind one lock that is held for a pick, never across an await. Who has to wait leaves a one-shot
//! sender in an ordered list; whoever makes room serves the list before anybody else can take the place, so waiting
//! is fair within a priority and costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, oneshot};

use crate::server::Server;
use crate::{
    BalancerConfig, BalancerError, Epoch, FleetSnapshot, Outcome, Permit, PermitRequest, Priority, ServerId,
    ServerSnapshot, ServerSpec, ServerState, invariants, policy,
};

#[derive(Debug)]
struct Waiter {
    weight: u32,
    exclude: Vec<ServerId>,
    grant: oneshot::Sender<Permit>,
}

#[derive(Debug)]
struct State {
    /// In order of their ids.
    servers: Vec<Server>,
    next_server: u32,
    waiters: BTreeMap<(Priority, u64), Waiter>,
    next_waiter: u64,
    turn: usize,
    rng: ChaCha8Rng,
    closed: bool,
}

impl State {
    fn find(&mut self, id: ServerId) -> Option<&mut Server> {
        let index = self.servers.binary_search_by_key(&id, |server| server.id).ok()?;
        Some(&mut self.servers[index])
    }

    fn largest_capacity(&self) -> u32 {
        self.servers.iter().map(|server| server.capacity).max().unwrap_or(0)
    }

    /// Exclusion is a wish: it does not hold when nobody else is alive.
    fn honoured<'a>(&self, exclude: &'a [ServerId], weight: u32) -> &'a [ServerId] {
        let other =
            |server: &Server| server.is_live() && server.capacity >= weight && !exclude.contains(&server.id);
        if exclude.is_empty() || self.servers.iter().any(other) { exclude } else { &[] }
    }
}

/// What the clones of a balancer and its permits share.
#[derive(Debug)]
pub(crate) struct Shared {
    config: BalancerConfig,
    state: Mutex<State>,
    /// A server has fewer permits out, or another state.
    changed: Notify,
}

impl Shared {
    pub(crate) fn give_back(self: &Arc<Self>, id: ServerId, epoch: Epoch, weight: u32, outcome: &Outcome) {
        self.update(|state| {
            let now = tokio::time::Instant::now();
            let Some(server) = state.find(id).filter(|server| server.epoch == epoch) else { return };
            server.in_use -= weight;
            let death = server.record(outcome, now, self.config.penalty_half_life(), self.config.faults_max);
            if let Some(reason) = death {
                tracing::warn!(server = %server.name, %reason, "server is dead");
                server.die(reason);
            }
        });
    }

    /// Changes the state and serves who waits. Permits that nobody takes are dropped outside the lock.
    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, untaken) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            let untaken = self.serve(&mut state);
            debug_assert_eq!(invariants::within_capacity(&snapshot(&state)), Ok(()));
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
            let exclude = state.honoured(&waiter.exclude, waiter.weight).to_vec();
            let weight = waiter.weight;
            match self.try_grant(state, weight, &exclude, &kept) {
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
        untaken
    }

    fn try_grant(
        self: &Arc<Self>,
        state: &mut State,
        weight: u32,
        exclude: &[ServerId],
        kept: &[ServerId],
    ) -> Option<Permit> {
        let eligible = |server: &Server| {
            server.has_room(weight) && !exclude.contains(&server.id) && !kept.contains(&server.id)
        };
        let State { servers, turn, rng, .. } = state;
        let half_life = self.config.penalty_half_life();
        let index = policy::pick(self.config.policy, servers, eligible, turn, rng, half_life)?;
        let server = &mut servers[index];
        server.in_use += weight;
        server.granted_total += 1;
        Some(Permit {
            shared: Arc::clone(self),
            server: server.id,
            epoch: server.epoch,
            weight,
            name: Arc::clone(&server.name),
            url: server.url.clone(),
            life: server.life.clone(),
            outcome: Outcome::Cancelled,
        })
    }
}

fn snapshot(state: &State) -> FleetSnapshot {
    let servers = state
        .servers
        .iter()
        .map(|server| ServerSnapshot {
            id: server.id,
            name: Arc::clone(&server.name),
            state: server.state,
            reason: server.reason.clone(),
            epoch: server.epoch,
            capacity: server.capacity,
            in_use: server.in_use,
            granted_total: server.granted_total,
            outcomes: server.outcomes.clone(),
        })
        .collect();
    FleetSnapshot { servers, waiting: state.waiters.len() }
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

/// See the crate's documentation. Clones share one fleet.
#[derive(Debug, Clone)]
pub struct LoadBalancer {
    shared: Arc<Shared>,
}

impl LoadBalancer {
    /// A balancer over `servers`.
    pub fn new(config: BalancerConfig, servers: Vec<ServerSpec>) -> Result<Self, BalancerError> {
        let state = State {
            servers: Vec::new(),
            next_server: 0,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            turn: 0,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            closed: false,
        };
        let balancer =
            Self { shared: Arc::new(Shared { config, state: Mutex::new(state), changed: Notify::new() }) };
        for server in servers {
            balancer.add(server)?;
        }
        Ok(balancer)
    }

    /// Waits for a permit.
    ///
    /// Cancel-safe: dropping the future leaves the list, and a grant that was on its way returns by itself.
    pub async fn acquire(&self, request: PermitRequest) -> Result<Permit, BalancerError> {
        let PermitRequest { weight, priority, exclude, deadline } = request;
        let (mut granted, key) = {
            let mut state = self.shared.state.lock();
            if state.closed {
                return Err(BalancerError::Closed);
            }
            if weight == 0 {
                return Err(BalancerError::Weightless);
            }
            let largest = state.largest_capacity();
            if weight > largest {
                return Err(BalancerError::TooHeavy { weight, largest });
            }
            // Nobody waits: the common case needs no list.
            if state.waiters.is_empty() {
                let honoured = state.honoured(&exclude, weight).to_vec();
                if let Some(permit) = self.shared.try_grant(&mut state, weight, &honoured, &[]) {
                    return Ok(permit);
                }
            }
            let waiting_max = self.shared.config.waiting_max;
            if state.waiters.len() >= waiting_max {
                return Err(BalancerError::QueueFull { waiting_max });
            }
            let key = (priority, state.next_waiter);
            state.next_waiter += 1;
            let (grant, granted) = oneshot::channel();
            state.waiters.insert(key, Waiter { weight, exclude, grant });
            (granted, key)
        };
        let waiting = Waiting { shared: &self.shared, key };
        // A newcomer of higher priority, or with other exclusions, may fit at once.
        self.shared.update(|_| ());
        let outcome = match deadline {
            None => (&mut granted).await,
            Some(deadline) => match tokio::time::timeout_at(deadline, &mut granted).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    drop(waiting);
                    // Granted at the last moment: taken rather than returned.
                    return granted.try_recv().map_err(|_| self.too_late(weight));
                }
            },
        };
        outcome.map_err(|_| BalancerError::Closed)
    }

    fn too_late(&self, weight: u32) -> BalancerError {
        let fleet = self.snapshot();
        let mut by_state: BTreeMap<String, usize> = BTreeMap::new();
        for server in &fleet.servers {
            *by_state.entry(format!("{:?}", server.state).to_lowercase()).or_default() += 1;
        }
        let mut words: Vec<String> =
            by_state.iter().map(|(state, count)| format!("{count} {state}")).collect();
        words.push(format!("{} permits out, {} waiting", fleet.in_use(), fleet.waiting));
        BalancerError::Deadline { weight, fleet: words.join(", ") }
    }

    /// Adds a server, active at once.
    pub fn add(&self, spec: ServerSpec) -> Result<ServerId, BalancerError> {
        self.shared.update(|state| {
            if state.servers.iter().any(|server| *server.name == *spec.name) {
                return Err(BalancerError::DuplicateServer { server: spec.name });
            }
            let id = ServerId(state.next_server);
            state.next_server += 1;
            state.servers.push(Server::new(id, spec));
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
            let in_use = self.shared.state.lock().find(id).map_or(0, |server| server.in_use);
            if in_use == 0 {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Takes a server out of the fleet; its permits are revoked.
    pub fn remove(&self, id: ServerId) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            let found = state.servers.binary_search_by_key(&id, |server| server.id);
            let Ok(index) = found else { return Err(unknown(id)) };
            state.servers.remove(index).life.cancel();
            Ok(())
        })
    }

    /// Pauses (for a weight update, say) or resumes a server. A dead one stays dead.
    pub fn set_paused(&self, id: ServerId, paused: bool) -> Result<(), BalancerError> {
        self.set_state(id, if paused { ServerState::Paused } else { ServerState::Active })
    }

    fn set_state(&self, id: ServerId, to: ServerState) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            let server = state.find(id).ok_or_else(|| unknown(id))?;
            if server.state != ServerState::Dead {
                server.state = to;
            }
            Ok(())
        })
    }

    /// Declares a server dead: its permits are revoked and it takes no more until it is revived.
    pub fn declare_dead(&self, id: ServerId, reason: &str) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            let server = state.find(id).ok_or_else(|| unknown(id))?;
            if server.state != ServerState::Dead {
                tracing::warn!(server = %server.name, reason, in_use = server.in_use, "server is dead");
                server.die(reason.into());
            }
            Ok(())
        })
    }

    /// Puts a dead server on trial.
    pub fn revive(&self, id: ServerId) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            let server = state.find(id).ok_or_else(|| unknown(id))?;
            if server.state == ServerState::Dead {
                tracing::info!(server = %server.name, "server is on trial");
                server.revive();
            }
            Ok(())
        })
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
        snapshot(&self.shared.state.lock())
    }

    /// The base URL of a server, if it has one.
    pub fn url(&self, id: ServerId) -> Option<Arc<str>> {
        self.shared.state.lock().find(id)?.url.clone()
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
