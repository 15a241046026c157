//! A simulated server in process: an engine, its clock and a task that advances it.
//!
//! One task per server sleeps until the engine's next event. Every call locks the engine for a moment. Most
//! calls first advance the engine to the present time. Calls that only read a setting do not advance it. A
//! call wakes the task only if the next event has moved to an earlier time. The lock is never held across an
//! await.
//!
//! The server uses `tokio`'s time: on a paused clock the simulation runs as fast as its events can be
//! computed. Timers have a resolution of a millisecond, so a response may arrive up to a millisecond late.
//! These errors do not add up, because the engine's own time is exact.

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
use crate::tasks;
use crate::workload::Workload;
use crate::{Fault, ServerConfig, SimError};

mod clock;
mod rules;
mod samples;

use clock::SimClock;

/// Whether the server can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The server works, is paused, or is asleep.
    Serving,
    /// The engine is dead, and the process is about to end.
    EngineDead,
    /// The process has ended, and its port is closed.
    Gone,
}

struct Inner {
    core: Mutex<Core>,
    /// Notified when the next event is now due before the end of the task's sleep.
    nearer: Notify,
    phase: watch::Sender<Phase>,
    clock: SimClock,
    config: ServerConfig,
    workload: Arc<Workload>,
    key: Arc<dyn AnswerKey>,
}

/// A handle to a simulated server. Clones share the server.
///
/// ```
/// use std::sync::Arc;
///
/// use rolldock_simengine::{NoAnswers, ServerConfig, SimRequest, SimServer, Workload, WorkloadConfig};
/// use tokio_util::sync::CancellationToken;
/// use tokio_util::task::TaskTracker;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let workload = Arc::new(Workload::new(WorkloadConfig::default()));
/// let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
/// let server =
///     SimServer::start(ServerConfig::default(), workload, Arc::new(NoAnswers), &tracker, cancel.clone())?;
///
/// // Two samples of a prompt of three tokens, with the seeds 7 and 8.
/// let request = SimRequest { n: 2, max_tokens: Some(100), ..SimRequest::new("request-0", [1, 2, 3], 7) };
/// let response = server.generate(request).await?;
/// assert_eq!(response.choices.len(), 2);
/// assert!(response.choices.iter().all(|choice| (1..=100).contains(&choice.token_ids.len())));
///
/// // A sample depends on its prompt and seed only.
/// let again = SimRequest { max_tokens: Some(100), ..SimRequest::new("request-1", [1, 2, 3], 8) };
/// assert_eq!(server.generate(again).await?.choices[0].token_ids, response.choices[1].token_ids);
/// cancel.cancel();
/// # Ok::<(), rolldock_simengine::SimError>(())
/// # }).unwrap();
/// ```
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
    /// Starts the server's task on `tracker`. When `cancel` is cancelled, the task ends and every request
    /// fails with [`SimError::Stopped`].
    ///
    /// Must be called within a `tokio` runtime.
    ///
    /// # Errors
    /// [`SimError::Config`] if the configuration is invalid.
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
        tasks::spawn(tracker, "simulated engine", server.clone().follow(cancel));
        Ok(server)
    }

    /// The configuration that the server was started with.
    pub fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    /// The simulated model.
    pub fn workload(&self) -> &Arc<Workload> {
        &self.inner.workload
    }

    /// Checks a request without running it. Returns the maximum number of tokens of each of its samples.
    ///
    /// # Errors
    /// [`SimError::BadRequest`] with the rule that the request breaks.
    pub fn check(&self, request: &SimRequest) -> Result<u32, SimError> {
        rules::check(request, &self.inner.config, self.inner.workload.config().vocab_size)
    }

    /// Runs one request to its end.
    ///
    /// Cancel-safe: when the future is dropped, the engine drops the request immediately, as it does when a
    /// connection is closed.
    ///
    /// # Errors
    /// Every [`SimError`] except for `Config`, `Tokenizer` and `Listen`.
    pub async fn generate(&self, request: SimRequest) -> Result<SimResponse, SimError> {
        let config = &self.inner.config;
        let max_tokens = self.check(&request)?;
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
            generated: request.generated,
            reply,
        };
        let number = self.with_core(|core, now_ns| core.submit(admission, now_ns))?;
        let mut presence = Presence { server: self, number: Some(number) };
        let received = outcome.await;
        presence.number = None;
        let completion = received.unwrap_or_else(|_| Err(self.stopped()))?;
        Ok(samples::respond(completion, prompt_tokens))
    }

    /// Ends the requests with these ids. Their responses have the tokens generated so far, and
    /// [`FinishReason::Abort`](crate::request::FinishReason::Abort). As on the real server, unknown ids are
    /// ignored, and requests younger than `abort_race_ms` are not aborted.
    pub fn abort<Id: AsRef<str>>(&self, request_ids: &[Id]) {
        self.with_core(|core, now_ns| {
            for request_id in request_ids {
                core.abort(&Arc::from(request_id.as_ref()), now_ns);
            }
        });
    }

    /// Whether the server has a request of this id that has not been answered.
    pub fn is_known(&self, request_id: &str) -> bool {
        self.with_core(|core, now_ns| core.is_known(&Arc::from(request_id), now_ns))
    }

    /// Aborts every request as [`SimServer::abort`] does. Returns the number of requests on the server.
    pub fn abort_all(&self) -> usize {
        self.with_core(|core, now_ns| core.abort_all(now_ns))
    }

    /// Pauses the engine. With [`PauseMode::Wait`], returns when the running and the queued requests have
    /// ended. With the other modes, returns immediately.
    ///
    /// Cancel-safe: the engine stays paused if the future is dropped.
    pub async fn pause(&self, mode: PauseMode) {
        let drained = self.with_core(|core, now_ns| core.pause(mode, now_ns));
        // An error means that the server has stopped.
        let _ = drained.await;
    }

    /// Ends a pause. Does nothing if the engine is not paused.
    pub fn resume(&self) {
        self.with_core(Core::resume);
    }

    /// Whether the engine is paused.
    pub fn is_paused(&self) -> bool {
        self.with_core(|core, _| core.is_paused())
    }

    /// Sets the weight version of the tokens that are generated from now on.
    pub fn update_weight_version(&self, version: impl Into<Arc<str>>) {
        let label = version.into();
        self.with_core(|core, now_ns| core.update_version(label, now_ns));
    }

    /// The present weight version: `default` until it is set.
    pub fn weight_version(&self) -> Arc<str> {
        self.with_core(|core, _| core.version())
    }

    /// Empties the prefix cache. With `recompute`, the blocks of running requests are computed again. Returns
    /// false if requests still hold blocks of the cache.
    pub fn reset_prefix_cache(&self, recompute: bool) -> bool {
        self.with_core(|core, now_ns| core.reset_prefix_cache(recompute, now_ns))
    }

    /// Pauses the engine in this mode and puts it to sleep.
    ///
    /// Cancel-safe: the engine stays asleep if the future is dropped.
    pub async fn sleep(&self, level: u8, mode: PauseMode) {
        let drained = self.with_core(|core, now_ns| core.sleep(level, mode, now_ns));
        // An error means that the server has stopped.
        let _ = drained.await;
    }

    /// Wakes the engine up and resumes it.
    pub fn wake(&self) {
        self.with_core(Core::wake);
    }

    /// Whether the engine sleeps.
    pub fn is_sleeping(&self) -> bool {
        self.with_core(|core, _| core.sleep_level() > 0)
    }

    /// The present statistics.
    pub fn stats(&self) -> SimStats {
        self.with_core(Core::stats)
    }

    /// Counts sequences, blocks and tokens from scratch, for [`invariants::check`](crate::invariants::check).
    pub fn census(&self) -> Census {
        self.with_core(|core, _| core.census())
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        tracing::info!(server = %self.inner.config.name, ?fault, "fault injected");
        self.with_core(|core, now_ns| core.inject(fault, now_ns));
    }

    /// Ends every fault. A server that had died starts again, with fresh counters.
    pub fn heal(&self) {
        tracing::info!(server = %self.inner.config.name, "healed");
        self.with_core(Core::heal);
    }

    /// Whether the server can be reached.
    pub fn phase(&self) -> Phase {
        self.with_core(|core, _| phase_of(core.life()))
    }

    /// A receiver that is notified when [`SimServer::phase`] changes.
    pub fn phase_changes(&self) -> watch::Receiver<Phase> {
        self.inner.phase.subscribe()
    }

    /// The server's task: advances the engine at each of its events until `cancel` is cancelled.
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

    /// Calls the engine at the present time. Wakes the server's task if the next event is now due before the
    /// task's timer.
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

/// Cancels a request on the engine when the future of its caller is dropped.
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
