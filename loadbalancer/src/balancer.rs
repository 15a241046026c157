//! Granting and returning permits.
//!
//! All state is behind one lock that is held for a pick, never across an await. Who has to wait leaves a one-shot
//! sender in an ordered list; whoever makes room serves the list before anybody else can take the place, so waiting
//! is fair within a priority and costs nothing.

mod grants;
mod state;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, oneshot};

use crate::policy::{self, Ask, RoutingPolicy};
use crate::server::Server;
use crate::{
    BalancerConfig, BalancerError, EngineLoad, FleetSnapshot, Permit, PermitRequest, Priority, ServerId,
    ServerSpec, ServerState,
};

pub(crate) use grants::Shared;
use state::{Means, State, Waiter, unknown};

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
            weights_required: None,
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
        // In a fleet without servers it waits for one to join.
        if weight > largest && !state.servers.is_empty() {
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

    /// Adds a server, active at once unless weights have been announced that it cannot have yet.
    pub fn add(&self, spec: ServerSpec) -> Result<ServerId, BalancerError> {
        self.shared.update(|state| {
            if state.servers.iter().any(|server| **server.name() == *spec.name) {
                return Err(BalancerError::DuplicateServer { server: spec.name });
            }
            let id = ServerId(state.next_server);
            state.next_server += 1;
            let server = Server::new(id, spec, state.weights_required);
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
#[cfg(test)]
mod tests;
