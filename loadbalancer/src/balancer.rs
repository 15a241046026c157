//! Granting and returning permits.
//!
//! All state is behind one lock that is held for a pick, never across an await. Who has to wait leaves a one-shot
//! sender in an ordered list; whoever makes room serves the list before anybody else can take the place, so waiting
//! is fair within a priority and costs nothing.

mod grants;
mod lives;
mod serving;
mod state;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::metered;
use crate::permit::Life;
use crate::policy::{self, Ask, RoutingPolicy};
use crate::server::{AdminState, Server};
use crate::{
    BalancerConfig, BalancerError, EngineLoad, FleetSnapshot, Permit, PermitRequest, ServerId, ServerSpec,
};

use grants::Answer;
pub(crate) use grants::Shared;
use state::{State, Waiter, WaiterKey, unknown};

/// Takes the waiter off the list when the waiting future is dropped.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    key: WaiterKey,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_waiting = self.shared.state.lock().waiters.contains_key(&self.key);
        if is_waiting {
            // It may have kept a server from those behind it.
            self.shared.update(|state| drop(state.waiters.remove(&self.key)));
        }
    }
}

/// What became of a request at first.
enum Begun {
    Granted(Permit),
    Waits(oneshot::Receiver<Answer>, WaiterKey),
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
        let state = State::new(policy, ChaCha8Rng::seed_from_u64(config.seed));
        let shared = Shared {
            config,
            state: Mutex::new(state),
            changed: Notify::new(),
            openings: Notify::new(),
            timekeeper: Semaphore::new(1),
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
                        granted.try_recv().unwrap_or_else(|_| Err(self.too_late(weight)))
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
            state.settle(config);
            let avoid: &[ServerId] = if state.honours(&exclude, weight) { &exclude } else { &[] };
            if let Some(permit) = self.shared.try_grant(&mut state, &Ask { weight, tokens, group, avoid }) {
                return Ok(Begun::Granted(permit));
            }
        }
        let largest = state.heaviest(config);
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

    /// Waits for what it was promised.
    async fn wait(
        &self,
        mut granted: impl Future<Output = Result<Answer, oneshot::error::RecvError>> + Unpin,
    ) -> Answer {
        tokio::select! {
            biased;
            answer = &mut granted => answer.unwrap_or(Err(BalancerError::Closed)),
            () = self.keep_time() => Err(BalancerError::Closed),
        }
    }

    /// Looks when servers open that were left alone for a while: one of those who wait does so for all. Ends only if the
    /// semaphore is closed, which nobody does.
    async fn keep_time(&self) {
        let Ok(_turn) = self.shared.timekeeper.acquire().await else { return };
        loop {
            let changed = self.shared.openings.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let opening = self.shared.state.lock().next_opening();
            let opened = async {
                match opening {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = opened => self.shared.update(|_| ()),
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
            state.insert(server);
            Ok(id)
        })
    }

    /// Takes no more permits on a server and waits until the last one is back; an error if it is resumed before. Cancel-safe:
    /// it stays draining.
    pub async fn drain(&self, id: ServerId) -> Result<(), BalancerError> {
        self.set_draining(id)?;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.shared.state.lock();
                // One that has left has nothing any more.
                let Some(server) = state.index(id).map(|index| &state.servers[index]) else { return Ok(()) };
                if server.admin != AdminState::Draining {
                    return Err(BalancerError::Resumed { server: server.name().to_string() });
                }
                if server.in_use == 0 {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Takes a server out of the fleet; its permits are revoked.
    pub fn remove(&self, id: ServerId) -> Result<(), BalancerError> {
        self.take_out(id).map(drop)
    }

    /// The same; the last life of the server is shared with its permits for as long as they are out.
    pub(crate) fn take_out(&self, id: ServerId) -> Result<Arc<Life>, BalancerError> {
        self.shared.update(|state| {
            let index = state.index(id).ok_or_else(|| unknown(id))?;
            let server = state.take_out(index);
            state.dismiss_hopeless(&self.shared.config);
            Ok(server.leave())
        })
    }

    /// The server of a name.
    pub fn find(&self, name: &str) -> Option<ServerId> {
        let state = self.shared.state.lock();
        state.servers.iter().find(|server| **server.name() == *name).map(|server| server.id)
    }

    /// Pauses a server for its operator, or resumes it, which also ends draining. A dead one remembers it for its next life,
    /// and one on trial stays on trial.
    pub fn set_paused(&self, id: ServerId, paused: bool) -> Result<(), BalancerError> {
        let admin = if paused { AdminState::Paused } else { AdminState::Active };
        self.change(id, |server| server.set_admin(admin))
    }

    /// Gives a server no more requests, in its next life neither.
    pub fn set_draining(&self, id: ServerId) -> Result<(), BalancerError> {
        self.change(id, |server| server.set_admin(AdminState::Draining))
    }

    /// Gives a server other places. Permits that are out above them stay until they are returned; who waits for more than
    /// any server has is told so.
    pub fn set_capacity(&self, id: ServerId, capacity: u32) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            state.change(&self.shared.config, id, |server| server.set_capacity(capacity))?;
            state.dismiss_hopeless(&self.shared.config);
            Ok(())
        })
    }

    /// Where somebody finds out how many places servers should have, a server that has fewer than a waiting request needs is
    /// given as many, up to `ceiling`.
    pub(crate) fn set_capacity_ceiling(&self, ceiling: u32) {
        self.shared.update(|state| state.capacity_ceiling = ceiling);
    }

    /// What a server said of itself, when `ours` samples of our permits were there: samples of others count for
    /// [`Policy::LeastWork`](crate::Policy::LeastWork).
    pub fn observe(&self, id: ServerId, load: &EngineLoad, ours: u32) -> Result<(), BalancerError> {
        self.change(id, |server| server.observe(load, ours))
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
        self.shared.waiting.set(0.0);
        drop(waiters);
    }

    /// The fleet now.
    pub fn snapshot(&self) -> FleetSnapshot {
        self.shared.state.lock().snapshot()
    }

    /// Places of the largest server that lives; of the largest of all if none does.
    pub fn largest_capacity(&self) -> u32 {
        self.shared.state.lock().largest_capacity(&self.shared.config)
    }

    /// Places over all servers that are not dead.
    pub fn capacity_total(&self) -> u64 {
        let state = self.shared.state.lock();
        state.servers.iter().filter(|server| server.is_live()).map(|server| u64::from(server.capacity)).sum()
    }

    /// An exporter's text without the series of servers that have left the fleet, which would stand there for ever. One that
    /// joins again goes on from where it was.
    pub fn series_of_members(&self, text: &str) -> String {
        let departed = self.shared.state.lock().departed().clone();
        metered::without_series_of(text, &departed)
    }

    /// Completes when a server has another state or other places, joins, leaves or has nothing left to finish, or after
    /// `limit`. Cancel-safe.
    pub async fn changed(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.shared.changed.notified()).await;
    }
}
#[cfg(test)]
mod tests;
