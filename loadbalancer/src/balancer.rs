//! The balancer: it grants permits, takes them back, and keeps the state of each server.
//!
//! All state is behind one lock. The lock is held while a server is chosen, and never across an await. A
//! request that has to wait leaves a one-shot sender in an ordered list. Every change that makes room serves
//! the list before a new request can take this room. Waiting is therefore fair within a priority, apart from the bounded
//! preference of a server for its own groups (module `waiting`), and it needs no polling.

mod grant;
mod lives;
mod permit;
mod serve;
mod server;
mod shared;
mod state;
mod waiting;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::metered;
use crate::policy::{self, Ask, RoutingPolicy};
use crate::server::{AdminState, ServerId};
use crate::snapshot::FleetSnapshot;
use crate::{BalancerConfig, BalancerError, EngineLoad, PermitRequest, Priority, ServerSpec};

use grant::Grant;
use server::Server;
use shared::Shared;
use state::{State, unknown};
use waiting::{Decision, Waiter, WaiterKey};

pub(crate) use grant::Life;
pub use permit::Permit;

/// The handle of a task to its request on the waiting list. When the handle is dropped, the request leaves
/// the list, and the places of a grant that was not received are returned.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    key: WaiterKey,
    answer: oneshot::Receiver<Decision>,
}

impl Waiting<'_> {
    fn leave_list(&self) {
        let is_waiting = self.shared.state.lock().waiters.contains(&self.key);
        if is_waiting {
            // This request may have reserved a server. The requests behind it can use the server now.
            self.shared.update(|state| drop(state.waiters.remove(&self.key)));
        }
    }

    /// Takes the request off the list. Returns the decision on the request, if there is one already.
    fn last_answer(&mut self) -> Option<Result<Permit, BalancerError>> {
        self.leave_list();
        let decision = self.answer.try_recv().ok()?;
        Some(decision.map(|grant| Permit::new(self.shared, grant)))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A permit that is dropped here returns its places.
        drop(self.last_answer());
    }
}

/// The immediate result of a request for a permit.
enum Begun {
    Granted(Grant),
    Waits(oneshot::Receiver<Decision>, WaiterKey),
}

/// A load balancer over a fleet of servers. The crate's documentation describes it. Clones share one fleet.
///
/// ```
/// use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, Outcome, PermitRequest, ServerSpec};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let fleet = vec![
///     ServerSpec::new("a", "http://10.0.0.1:8000", 4),
///     ServerSpec::new("b", "http://10.0.0.2:8000", 8),
/// ];
/// let balancer = LoadBalancer::new(BalancerConfig::default(), fleet)?;
///
/// // Six samples fit on one server only. Until the permit is dropped, six of its places are taken.
/// let permit = balancer.acquire(PermitRequest::new(6)).await?;
/// assert_eq!(permit.url(), Some("http://10.0.0.2:8000"));
/// assert_eq!(balancer.snapshot().in_use(), 6);
///
/// // The caller sends its request to this server, and reports the outcome.
/// permit.finish(Outcome::Success { tokens: 6 * 300 });
/// assert_eq!(balancer.snapshot().in_use(), 0);
///
/// // No server could ever hold nine samples, so the request fails instead of waiting.
/// assert!(balancer.acquire(PermitRequest::new(9)).await.is_err());
/// # Ok::<(), rolldock_loadbalancer::BalancerError>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct LoadBalancer {
    shared: Arc<Shared>,
}

impl LoadBalancer {
    /// A balancer over `servers`.
    pub fn new(config: BalancerConfig, servers: Vec<ServerSpec>) -> Result<Self, BalancerError> {
        let policy = policy::of(config.policy, config.affinity);
        Self::with_policy(config, policy, servers)
    }

    /// A balancer that chooses servers by the caller's own `policy`; [`BalancerConfig::policy`] is ignored.
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
            probe_tokens: AtomicU64::new(0),
        };
        let balancer = Self { shared: Arc::new(shared) };
        for server in servers {
            balancer.add(server)?;
        }
        Ok(balancer)
    }

    /// Waits for a permit.
    ///
    /// Cancel-safe: when the future is dropped, the request leaves the list, and the places of a grant that
    /// was not received are returned.
    pub async fn acquire(&self, request: PermitRequest) -> Result<Permit, BalancerError> {
        let PermitRequest { weight, priority, deadline, .. } = request;
        let mut waiting = match self.begin(request)? {
            Begun::Granted(grant) => return Ok(Permit::new(&self.shared, grant)),
            Begun::Waits(answer, key) => Waiting { shared: &self.shared, key, answer },
        };
        // The new request may be granted before older requests: it may have a higher priority, or exclude
        // other servers.
        self.shared.update(|_| ());
        match deadline {
            None => self.wait(&mut waiting.answer).await,
            Some(deadline) => match tokio::time::timeout_at(deadline, self.wait(&mut waiting.answer)).await {
                Ok(outcome) => outcome,
                // The permit may have been granted just before the deadline.
                Err(_) => waiting.last_answer().unwrap_or_else(|| Err(self.too_late(weight))),
            },
        }
        .inspect_err(|_| tracing::debug!(weight, ?priority, "no permit"))
    }

    /// Grants a permit immediately if no request waits and there is room, which is the common case. Otherwise
    /// puts the request on the waiting list.
    fn begin(&self, request: PermitRequest) -> Result<Begun, BalancerError> {
        let PermitRequest { weight, expected_tokens, group, shared_tokens, priority, exclude, .. } = request;
        let config = &self.shared.config;
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(BalancerError::Closed);
        }
        if weight == 0 {
            return Err(BalancerError::Weightless);
        }
        let tokens = state.tokens_of(weight, expected_tokens);
        let in_a_row = state.in_a_row(shared_tokens);
        if state.waiters.is_empty() {
            state.settle(config);
            let avoid: &[ServerId] = if state.honours(&exclude, weight) { &exclude } else { &[] };
            let home = state.waiters.server_of(group);
            if let Some(grant) =
                state.try_grant(config, &Ask { weight, tokens, group, home, in_a_row, avoid })
            {
                return Ok(Begun::Granted(grant));
            }
        }
        let largest = state.heaviest(config);
        // In a fleet without servers the request waits for one to join.
        if weight > largest && !state.servers.is_empty() {
            return Err(BalancerError::TooHeavy { weight, largest });
        }
        let waiting_max = config.waiting_max;
        if state.waiters.len() >= waiting_max {
            return Err(BalancerError::QueueFull { waiting_max });
        }
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { weight, tokens, group, in_a_row, exclude, answer };
        let key = state.waiters.push(priority, waiter);
        Ok(Begun::Waits(answered, key))
    }

    /// Waits for the decision on a request. Cancel-safe: a decision that has not been taken stays in the
    /// channel.
    async fn wait(&self, answer: &mut oneshot::Receiver<Decision>) -> Result<Permit, BalancerError> {
        let decision = tokio::select! {
            biased;
            decision = answer => decision.unwrap_or(Err(BalancerError::Closed)),
            () = self.keep_time() => Err(BalancerError::Closed),
        };
        decision.map(|grant| Permit::new(&self.shared, grant))
    }

    /// Serves the waiting requests each time a server opens because a cooldown, a trial or a `Retry-After`
    /// has ended. Every waiting task calls this function. One of them does the work for all, and the others
    /// wait for the semaphore. Ends only if the semaphore is closed, which does not happen.
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
        let mut parts: Vec<String> =
            by_state.iter().map(|(state, count)| format!("{count} {state}")).collect();
        parts.push(format!("{} permits out, {} waiting", fleet.in_use(), fleet.waiting));
        BalancerError::Deadline { weight, fleet: parts.join(", ") }
    }

    /// Adds a server. The server is active immediately, unless weights have been announced. In that case no
    /// permits are granted on it before it has these weights. Fails if the fleet has a server of this name.
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

    /// Stops granting permits on a server and waits until its last permit has been returned. Fails if the
    /// server is resumed before that. Cancel-safe: the server stays draining.
    pub async fn drain(&self, id: ServerId) -> Result<(), BalancerError> {
        self.set_draining(id)?;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.shared.state.lock();
                // A server that has left the fleet is not waited for.
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

    /// Takes a server out of the fleet and revokes its permits.
    pub fn remove(&self, id: ServerId) -> Result<(), BalancerError> {
        self.take_out(id).map(drop)
    }

    /// Takes a server out of the fleet and revokes its permits. Returns the server's last life. Each of these
    /// permits holds a reference to this life until the permit is returned.
    pub(crate) fn take_out(&self, id: ServerId) -> Result<Arc<Life>, BalancerError> {
        self.shared.update(|state| {
            let index = state.index(id).ok_or_else(|| unknown(id))?;
            let server = state.take_out(index);
            state.dismiss_hopeless(&self.shared.config);
            Ok(server.leave())
        })
    }

    /// The server of this name.
    pub fn find(&self, name: &str) -> Option<ServerId> {
        let state = self.shared.state.lock();
        state.servers.iter().find(|server| **server.name() == *name).map(|server| server.id)
    }

    /// Pauses a server or resumes it. Resuming also ends draining. A dead server keeps the setting for its
    /// next life, and a server on trial stays on trial.
    pub fn set_paused(&self, id: ServerId, paused: bool) -> Result<(), BalancerError> {
        let admin = if paused { AdminState::Paused } else { AdminState::Active };
        self.change(id, |server| server.set_admin(admin))
    }

    /// Stops granting permits on a server until the server is resumed. A death and a revival in between do
    /// not change this.
    pub fn set_draining(&self, id: ServerId) -> Result<(), BalancerError> {
        self.change(id, |server| server.set_admin(AdminState::Draining))
    }

    /// Changes a server's number of places. Permits beyond the new number stay valid until they are returned.
    /// Waiting requests that no server can hold any more fail with [`BalancerError::TooHeavy`].
    pub fn set_capacity(&self, id: ServerId, capacity: u32) -> Result<(), BalancerError> {
        self.shared.update(|state| {
            state.change(&self.shared.config, id, |server| server.set_capacity(capacity))?;
            state.dismiss_hopeless(&self.shared.config);
            Ok(())
        })
    }

    /// Lets the balancer raise a server's capacity to the weight of a waiting request, up to `ceiling`. This
    /// is for fleets whose capacities are found by trying.
    pub(crate) fn set_capacity_ceiling(&self, ceiling: u32) {
        self.shared.update(|state| state.capacity_ceiling = ceiling);
    }

    /// Notes an engine's load. `ours` is the number of samples of this balancer's permits when the load was
    /// asked for. All other samples on the engine belong to other clients. They count for
    /// [`Policy::LeastWork`](crate::Policy::LeastWork).
    pub fn observe(&self, id: ServerId, load: &EngineLoad, ours: u32) -> Result<(), BalancerError> {
        self.change(id, |server| server.observe(load, ours))
    }

    fn change(&self, id: ServerId, change: impl FnOnce(&mut Server)) -> Result<(), BalancerError> {
        self.shared.update(|state| state.change(&self.shared.config, id, change))
    }

    /// Refuses new requests and fails all waiting ones with [`BalancerError::Closed`].
    pub fn close(&self) {
        let waiters = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.waiters.clear()
        };
        self.shared.waiting.set(0.0);
        waiters.for_each(drop);
    }

    /// Notes that a server has generated tokens for a probe.
    pub(crate) fn count_probe(&self, tokens: u32) {
        self.shared.probe_tokens.fetch_add(u64::from(tokens), Ordering::Relaxed);
    }

    /// Number of tokens that servers have generated for probes since the balancer was made.
    pub fn probe_tokens(&self) -> u64 {
        self.shared.probe_tokens.load(Ordering::Relaxed)
    }

    /// The present state of the fleet.
    pub fn snapshot(&self) -> FleetSnapshot {
        self.shared.state.lock().snapshot()
    }

    /// Whether a further request of this priority would wait: for a permit, or on every server that could take it. A
    /// server is full if requests wait on it or if its KV cache is nearly full, as it reported at the monitor's last look.
    pub fn is_full(&self, priority: Priority) -> bool {
        self.shared.state.lock().is_full(priority)
    }

    /// Capacity of the largest live server, or of the largest server if none is live, but at most the bound
    /// on the whole fleet ([`BalancerConfig::capacity_total`]).
    pub fn largest_capacity(&self) -> u32 {
        self.shared.state.lock().largest_capacity(&self.shared.config)
    }

    /// Number of places of all live servers together.
    pub fn capacity_total(&self) -> u64 {
        let state = self.shared.state.lock();
        state.servers.iter().filter(|server| server.is_live()).map(|server| u64::from(server.capacity)).sum()
    }

    /// Returns an exporter's text without the series of servers that have left the fleet. An exporter keeps
    /// such series forever. If a server joins again, its counters continue from their last values.
    pub fn series_of_members(&self, text: &str) -> String {
        let departed = self.shared.state.lock().departed().clone();
        metered::without_series_of(text, &departed)
    }

    /// Completes when a server joins, leaves, changes its state or its number of places, or finishes its last
    /// request while draining or paused. Completes after `limit` at the latest. Cancel-safe.
    pub async fn changed(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.shared.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests;
