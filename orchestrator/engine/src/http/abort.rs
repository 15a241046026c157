//! Aborts by id. They end requests whose connection is already closed, and requests that have to end with the
//! tokens generated so far.
//!
//! A request ends when its connection is closed: the engine notices this and frees the slots within about 50
//! ms. A proxy in between may keep its own connection to the engine open, however. Then only an abort by id
//! ends the request. An abort within 10 ms of its request is usually lost, although the engine answers
//! "aborted". Each abort is therefore sent [`SENDS_PER_ID`] times, [`SEND_INTERVAL`] apart. An early stop
//! cancels hundreds of requests of a server together, so their ids are sent in one request per interval.
//!
//! An interrupted request still has its connection, on which the engine answers with the partial sample. The
//! id of the request is sent until that answer has arrived, at most [`SENDS_PER_INTERRUPT`] times.
//!
//! Aborts use the connections of engine control. No generation uses these connections, so an abort never
//! waits behind data.
//!
//! # Invariants
//! - A server has at most one task and at most [`IDS_WAITING_MAX`] waiting ids. An id beyond this limit is
//!   dropped and counted.
//! - The task ends when no ids are left, when the scope ends, or when an answer shows that the endpoint does
//!   not exist.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_loadbalancer::control::vllm::VllmControl;
use rolldock_loadbalancer::{ControlError, EngineControl, ServerRef};
use rolldock_scope::Scope;
use tokio::sync::watch;

use super::facts::Dialect;
use super::server::ProbedServer;

/// Number of times that each id is sent.
const SENDS_PER_ID: u8 = 3;

/// Maximum number of times that the id of an interrupted request is sent. It is sent until the request is
/// answered.
const SENDS_PER_INTERRUPT: u8 = 5;

/// The time between two sends. It is much longer than the 10 ms in which aborts get lost.
const SEND_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait for the answer to an abort.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Maximum number of ids of one server that wait for their sends.
const IDS_WAITING_MAX: usize = 65_536;

/// Maximum number of ids in one request.
const IDS_PER_SEND_MAX: usize = 4_096;

/// Sends the aborts of one server.
#[derive(Debug)]
pub(super) struct Aborter {
    server: ServerRef,
    dialect: Dialect,
    control: VllmControl,
    waiting: Mutex<Waiting>,
    /// Whether the server is known to have neither of the two endpoints for aborts.
    unsupported: AtomicBool,
    /// Whether the task runs. Receivers wait for its end.
    running: watch::Sender<bool>,
    /// Notifies its receivers whenever ids have left `waiting`.
    left: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    ids: BTreeMap<Arc<str>, Sends>,
    task_runs: bool,
}

/// The remaining sends of an id.
#[derive(Debug, Clone, Copy, Default)]
struct Sends {
    left: u8,
    /// Whether the id has been sent at least once.
    begun: bool,
    /// Whether the remaining sends are dropped once the request has been answered.
    interrupts: bool,
}

/// A guard of a running request. When it is dropped, the remaining interrupts of the request are dropped,
/// too.
#[derive(Debug)]
pub(super) struct Interruptible<'a> {
    aborter: &'a Aborter,
    request_id: Arc<str>,
}

impl Drop for Interruptible<'_> {
    fn drop(&mut self) {
        self.aborter.forget_interrupt(&self.request_id);
    }
}

impl Aborter {
    pub(super) fn new(target: &ProbedServer, control: VllmControl) -> Self {
        Self {
            server: target.server.for_control(),
            dialect: target.facts.dialect,
            control,
            waiting: Mutex::default(),
            unsupported: AtomicBool::new(false),
            running: watch::Sender::new(false),
            left: watch::Sender::new(()),
        }
    }

    /// Aborts `request_id` in the background, in a task of `scope`.
    pub(super) fn abort(self: &Arc<Self>, request_id: &Arc<str>, scope: &Scope) {
        self.enqueue(request_id, Sends { left: SENDS_PER_ID, ..Sends::default() }, scope);
    }

    /// Sends aborts of `request_id`, and waits until its [`Interruptible`] is dropped or no sends are left.
    ///
    /// Cancel-safe: the remaining sends are made in the background.
    pub(super) async fn interrupt(self: &Arc<Self>, request_id: &Arc<str>, scope: &Scope) {
        let mut left = self.left.subscribe();
        let sends = Sends { left: SENDS_PER_INTERRUPT, interrupts: true, ..Sends::default() };
        if !self.enqueue(request_id, sends, scope) {
            return;
        }
        // The sender lives as long as `self`.
        let _closed = left.wait_for(|()| !self.waiting.lock().ids.contains_key(request_id)).await;
    }

    /// Returns a guard. The caller holds the guard while an interruptible request runs.
    pub(super) fn watch(&self, request_id: &Arc<str>) -> Interruptible<'_> {
        Interruptible { aborter: self, request_id: Arc::clone(request_id) }
    }

    fn forget_interrupt(&self, request_id: &Arc<str>) {
        let mut waiting = self.waiting.lock();
        let Some(sends) = waiting.ids.get(request_id).copied().filter(|sends| sends.interrupts) else {
            return;
        };
        waiting.ids.remove(request_id);
        drop(waiting);
        if sends.begun {
            rolldock_loadbalancer::aborts_confirmed(&self.server.name, 1);
        }
        self.left.send_replace(());
    }

    /// Queues `request_id` for the task. Returns whether it will be sent.
    fn enqueue(self: &Arc<Self>, request_id: &Arc<str>, sends: Sends, scope: &Scope) -> bool {
        // A plain server offers no aborts.
        let hopeless = self.dialect == Dialect::TextOnly || self.unsupported.load(Ordering::Relaxed);
        if hopeless || scope.token().is_cancelled() {
            return false;
        }
        let mut waiting = self.waiting.lock();
        if waiting.ids.len() >= IDS_WAITING_MAX {
            metrics::counter!("rolldock_aborts_dropped_total").increment(1);
            return false;
        }
        rolldock_loadbalancer::aborts_sent(&self.server.name, 1);
        waiting.ids.insert(Arc::clone(request_id), sends);
        if waiting.task_runs {
            return true;
        }
        waiting.task_runs = true;
        self.running.send_replace(true);
        let aborter = Arc::clone(self);
        let token = scope.token().clone();
        scope.spawn_detached("engine aborts", async move {
            if token.run_until_cancelled(aborter.run()).await.is_none() {
                aborter.stop();
            }
        });
        true
    }

    /// Waits until no abort is in progress.
    ///
    /// Cancel-safe.
    pub(super) async fn settle(&self) {
        let mut running = self.running.subscribe();
        // The sender lives as long as `self`.
        let _closed = running.wait_for(|running| !running).await;
    }

    /// Sends until no ids are left. Cancel-safe when followed by [`Aborter::stop`].
    async fn run(&self) {
        while let Some(batch) = self.next_batch() {
            for ids in batch.chunks(IDS_PER_SEND_MAX) {
                let is_answered = self.send(ids.iter().map(|(id, _)| id)).await;
                let is_last = |sends: &Sends| sends.left == 0 && !sends.interrupts;
                let last = ids.iter().filter(|(_, sends)| is_last(sends)).count();
                if is_answered {
                    rolldock_loadbalancer::aborts_confirmed(&self.server.name, last as u64);
                }
            }
            if self.unsupported.load(Ordering::Relaxed) {
                return self.stop();
            }
            tokio::time::sleep(SEND_INTERVAL).await;
        }
    }

    /// Returns all ids that have to be sent now, each with the sends that remain after this send. Returns
    /// `None` if no ids are left, which ends the task. The end is stored while the ids are locked, so an id
    /// that arrives later starts another task.
    fn next_batch(&self) -> Option<Vec<(Arc<str>, Sends)>> {
        let mut waiting = self.waiting.lock();
        let before = waiting.ids.len();
        waiting.ids.retain(|_, sends| sends.left > 0);
        let some_left = waiting.ids.len() < before;
        for sends in waiting.ids.values_mut() {
            sends.left -= 1;
            sends.begun = true;
        }
        let batch: Vec<_> = waiting.ids.iter().map(|(id, sends)| (Arc::clone(id), *sends)).collect();
        if batch.is_empty() {
            waiting.task_runs = false;
            self.running.send_replace(false);
        }
        drop(waiting);
        // The receivers take the lock, so they are notified outside the lock.
        if some_left {
            self.left.send_replace(());
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Gives up all ids.
    fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.ids.clear();
        waiting.task_runs = false;
        self.running.send_replace(false);
        drop(waiting);
        self.left.send_replace(());
    }

    /// Sends all `ids` in one request. Returns whether the engine accepted it. After a failure other than a
    /// missing endpoint, the next send tries again.
    async fn send(&self, ids: impl Iterator<Item = &Arc<str>>) -> bool {
        let ids: Vec<String> = ids.map(|id| engine_id(self.dialect, id)).collect();
        match self.control.abort_many(&self.server, &ids).await {
            Ok(()) => return true,
            Err(ControlError::Unsupported { .. }) => {
                self.unsupported.store(true, Ordering::Relaxed);
                tracing::info!(
                    server = %self.server.name,
                    "server does not offer aborts by id; requests are cancelled by closing their connections"
                );
            }
            Err(error) => tracing::debug!(%error, "abort was not answered"),
        }
        false
    }
}

/// The id under which an engine stores a request. It has a prefix. For completions it ends in the prompt's
/// index, which `VllmControl` adds. Aborting a request with `n > 1` ends all of its samples.
fn engine_id(dialect: Dialect, id: &str) -> String {
    match dialect {
        Dialect::Generate => format!("generate-tokens-{id}"),
        Dialect::Completions | Dialect::TextOnly => format!("cmpl-{id}"),
    }
}
