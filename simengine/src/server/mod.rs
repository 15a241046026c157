//! A simulated server in process: the engine, its clock and the task that follows it.
//!
//! One task per server sleeps until the engine's next event. Everybody else locks the engine for the moment
//! of a call, brings it up to date first, and wakes the task only if the next event has come nearer. The
//! lock is never held across an await.
//!
//! Time is `tokio`'s: on a paused clock the simulation runs as fast as its events can be computed. Timers
//! have a grain of a millisecond, so that an answer may arrive up to one late; the engine's own time does
//! not, and no error adds up.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::AnswerKey;
use crate::engine::{Admission, Core, Life, PauseMode, block_chain};
use crate::invariants::Census;
use crate::request::{SimRequest, SimResponse};
use crate::stats::SimStats;
use crate::workload::Workload;
use crate::{Fault, ServerConfig, SimError};

mod clock;
mod rules;
mod samples;

use clock::SimClock;

/// Whether anybody is there to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The server works, or is paused, or asleep.
    Serving,
    /// The engine is dead and the process is about to go.
    EngineDead,
    /// Nobody listens.
    Gone,
}

struct Inner {
    core: Mutex<Core>,
    /// Told when the next event has come nearer than what the task sleeps for.
    nearer: Notify,
    phase: watch::Sender<Phase>,
    clock: SimClock,
    config: ServerConfig,
    workload: Arc<Workload>,
    key: Arc<dyn AnswerKey>,
}

/// A handle to a simulated server; clones are of the same server.
#[derive(Clone)]
pub struct SimServer {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for SimServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SimServer").field("name", &self.inner.config.name).finish_non_exhaustive()
    }
}

impl SimServer {
    /// Starts the server's task on `tracker`; it ends, and fails every request, when `cancel` is cancelled.
    ///
    /// Must be called within a `tokio` runtime.
    ///
    /// # Errors
    /// [`SimError::Config`].
    pub fn start(
        config: ServerConfig,
        workload: Arc<Workload>,
        key: Arc<dyn AnswerKey>,
        tracker: &TaskTracker,
        cancel: CancellationToken,
    ) -> Result<Self, SimError> {
        config.validate()?;
        let inner = Arc::new(Inner {
            core: Mutex::new(Core::new(config.clone())),
            nearer: Notify::new(),
            phase: watch::Sender::new(Phase::Serving),
            clock: SimClock::start(config.time_scale),
            config,
            workload,
            key,
        });
        let server = Self { inner };
        tracker.spawn(server.clone().follow(cancel));
        Ok(server)
    }

    /// What it was started with.
    pub fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    /// The model it simulates.
    pub fn workload(&self) -> &Arc<Workload> {
        &self.inner.workload
    }

    /// Runs one request to its end.
    ///
    /// Cancel-safe: dropping the future frees its places and blocks at once, as a closed connection does.
    ///
    /// # Errors
    /// Every [`SimError`] but `Config`, `Tokenizer` and `Listen`.
    pub async fn generate(&self, request: SimRequest) -> Result<SimResponse, SimError> {
        let config = &self.inner.config;
        let max_tokens = rules::check(&request, config, self.inner.workload.config().vocab_size)?;
        let prompt_tokens = u32::try_from(request.prompt_ids.len()).unwrap_or(u32::MAX);
        let plans = samples::plans(&self.inner.workload, self.inner.key.as_ref(), &request, max_tokens)?;
        let chain = match config.prefix_caching {
            true => block_chain(&request.prompt_ids, config.block_tokens),
            false => Arc::from([]),
        };
        let (reply, outcome) = oneshot::channel();
        let admission = Admission {
            request_id: request.request_id,
            prompt_tokens,
            chain,
            plans,
            stream: request.stream,
            reply,
        };
        let number = self.with_core(|core, now_ns| core.submit(admission, now_ns))?;
        let mut presence = Presence { server: self, number: Some(number) };
        let received = outcome.await;
        presence.number = None;
        let completion = received.unwrap_or_else(|_| Err(self.stopped()))?;
        Ok(samples::respond(completion, prompt_tokens))
    }

    /// Ends the requests of these ids with [`FinishReason::Abort`](crate::request::FinishReason::Abort) and the tokens they have. Unknown
    /// ids are nothing, and requests younger than `abort_race_ms` are missed: both as in the real server.
    pub fn abort<Id: AsRef<str>>(&self, request_ids: &[Id]) {
        self.with_core(|core, now_ns| {
            for request_id in request_ids {
                core.abort(&Arc::from(request_id.as_ref()), now_ns);
            }
        });
    }

    /// Whether a request of this id is there and has not been answered.
    pub fn is_known(&self, request_id: &str) -> bool {
        self.with_core(|core, now_ns| core.is_known(&Arc::from(request_id), now_ns))
    }

    /// [`SimServer::abort`] of every request; says how many there were.
    pub fn abort_all(&self) -> usize {
        self.with_core(|core, now_ns| core.abort_all(now_ns))
    }

    /// Pauses. With [`PauseMode::Wait`] returns when the requests that are there have ended, else at once.
    ///
    /// Cancel-safe: the pause stands if the future is dropped.
    pub async fn pause(&self, mode: PauseMode) {
        let drained = self.with_core(|core, now_ns| core.pause(mode, now_ns));
        // An error means that the server has stopped, and then there is nothing to wait for.
        let _ = drained.await;
    }

    /// Ends a pause; nothing if there is none.
    pub fn resume(&self) {
        self.with_core(Core::resume);
    }

    /// Whether a pause is in force.
    pub fn is_paused(&self) -> bool {
        self.with_core(|core, _| core.is_paused())
    }

    /// Sets the label of the tokens from now on.
    pub fn update_weight_version(&self, version: impl Into<Arc<str>>) {
        let label = version.into();
        self.with_core(|core, now_ns| core.update_version(label, now_ns));
    }

    /// The label of the tokens generated now: `default` until it is set.
    pub fn weight_version(&self) -> Arc<str> {
        self.with_core(|core, _| core.version())
    }

    /// Empties the prefix cache; with `recompute`, running requests compute theirs again. False if blocks
    /// are still held.
    pub fn reset_prefix_cache(&self, recompute: bool) -> bool {
        self.with_core(|core, now_ns| core.reset_prefix_cache(recompute, now_ns))
    }

    /// Pauses in this mode and sleeps.
    ///
    /// Cancel-safe: the sleep stands if the future is dropped.
    pub async fn sleep(&self, level: u8, mode: PauseMode) {
        let drained = self.with_core(|core, now_ns| core.sleep(level, mode, now_ns));
        // As in `pause`.
        let _ = drained.await;
    }

    /// Wakes up and resumes.
    pub fn wake(&self) {
        self.with_core(Core::wake);
    }

    /// Whether it sleeps.
    pub fn is_sleeping(&self) -> bool {
        self.with_core(|core, _| core.sleep_level() > 0)
    }

    /// A reading as of now.
    pub fn stats(&self) -> SimStats {
        self.with_core(Core::stats)
    }

    /// Counts everything anew, for [`crate::invariants::check`].
    pub fn census(&self) -> Census {
        self.with_core(|core, _| core.census())
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        tracing::info!(server = %self.inner.config.name, ?fault, "fault injected");
        self.with_core(|core, now_ns| core.inject(fault, now_ns));
    }

    /// Ends every fault; a server that had died starts anew, with fresh counters.
    pub fn heal(&self) {
        tracing::info!(server = %self.inner.config.name, "healed");
        self.with_core(Core::heal);
    }

    /// Whether anybody is there.
    pub fn phase(&self) -> Phase {
        self.with_core(|core, _| phase_of(core.life()))
    }

    /// Follows [`SimServer::phase`].
    pub fn phase_changes(&self) -> watch::Receiver<Phase> {
        self.inner.phase.subscribe()
    }

    /// Follows the engine's events until `cancel`.
    async fn follow(self, cancel: CancellationToken) {
        loop {
            let (wake_at, life) = {
                let mut core = self.inner.core.lock();
                core.advance(self.inner.clock.now_ns());
                let next_ns = core.next_event_ns();
                core.armed_for(next_ns);
                (next_ns.map(|event_ns| self.inner.clock.instant_of(event_ns)), core.life())
            };
            self.publish(phase_of(life));
            let timer = async {
                match wake_at {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                () = self.inner.nearer.notified() => {}
                () = timer => {}
            }
        }
        self.inner.core.lock().stop();
        self.publish(Phase::Gone);
    }

    /// Calls the engine at the present time, and wakes its task if that has to act sooner than it knows.
    fn with_core<T>(&self, call: impl FnOnce(&mut Core, u64) -> T) -> T {
        let (result, is_nearer, life) = {
            let mut core = self.inner.core.lock();
            let now_ns = self.inner.clock.now_ns();
            let result = call(&mut core, now_ns);
            (result, core.rearm_if_nearer(), core.life())
        };
        if is_nearer {
            self.inner.nearer.notify_one();
        }
        self.publish(phase_of(life));
        result
    }

    fn publish(&self, phase: Phase) {
        self.inner.phase.send_if_modified(|published| std::mem::replace(published, phase) != phase);
    }

    fn stopped(&self) -> SimError {
        SimError::Stopped { server: self.inner.config.name.clone() }
    }
}

/// A request's hold on the engine while its caller waits.
struct Presence<'a> {
    server: &'a SimServer,
    number: Option<u64>,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.server.with_core(|core, now_ns| core.cancel(number, now_ns));
        }
    }
}

fn phase_of(life: Life) -> Phase {
    match life {
        Life::Serving => Phase::Serving,
        Life::EngineDead { .. } => Phase::EngineDead,
        Life::Gone | Life::Stopped => Phase::Gone,
    }
}

#[cfg(test)]
mod tests;
