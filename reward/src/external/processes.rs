//! A pool of worker processes that read and write JSON lines.
//!
//! # The protocol
//! A worker reads one question per line from its standard input and writes one answer per line to its
//! standard output, in UTF-8. It scores one job at a time. A question is `{"id": 7, "data_source": "..",
//! "solution_str": "..", "ground_truth": "..", "extra_info": .., "prompt": ".."}`. An answer is a number, a
//! bool, or `{"id": 7, "score": x, "acc": y, "pred": "z"}` where only `score` is required. After a failure
//! the answer is `{"id": 7, "error": "why"}`, with `"unavailable": true` if the reason is outside of the
//! sample; the worker then continues. Empty lines are skipped. Errors quote the last lines of standard error.
//! With a handshake, a worker first prints `{"ready": true}`, or `{"fatal": "why"}` when no worker could
//! score. A worker should exit at the end of its input.
//!
//! A worker of environments is asked `{"id": 7, "reset": {..}}` or `{"id": 7, "step": {..}}`, and answers
//! with `{"id": 7, "result": ..}` or an error. One caller holds the worker for a whole trajectory
//! ([`LeasedWorker`]).
//!
//! # How it works
//! A slot is the right to one process; there are `workers` slots. A job waits for an idle worker or for a
//! free slot, whichever comes first. A separate task starts each worker and puts it into the idle queue, so a
//! start continues even when the job that requested it is dropped. A busy worker belongs to its job. When the
//! job is dropped, the worker is dropped too, because its late answer would be read as the answer to the next
//! job.
//!
//! # Invariants
//! - At most `workers` worker processes run at a time. Each worker has its own process group, which contains
//!   the processes that the worker starts. A slot is free again only after its process was killed and waited
//!   for.
//! - An attempt at a job uses at most two workers. With each death in a row without an answer, the pause
//!   before the next start doubles. After eight such deaths (or two per worker, if that is more), jobs are
//!   refused, and only one start at a time tests whether workers survive again (`processes/health.rs`).
//! - A refused job was given to no worker ([`RewardError::is_refusal`]), so the refusal shows nothing about
//!   the job or the reward. A probe is never refused: its worker starts immediately.
//! - When the pool is dropped or its token is cancelled, every process group is killed. The tracker has tasks
//!   that wait for these processes to end.
//!
//! # Deliberately absent
//! No worker scores several jobs at a time. Memory limits exist on Linux only. Processes that have left their
//! group are not searched for.

mod health;
mod lease;
mod worker;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{nonsense, question, read_json, score_of};
use super::{RewardJob, RewardRunner, answers};
use crate::tasks;
use crate::{RewardError, Score};
use worker::{Ended, LINE_BYTES_MAX, StartError, Worker};

pub(super) use health::{Health, Start};
pub use lease::{LeasedWorker, WorkerPool};
pub(super) use worker::Death;

/// Maximum number of workers that get the same job before it fails.
const WORKERS_PER_JOB_MAX: usize = 2;

/// The settings of a pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PoolSpec {
    /// The name of the pool in errors.
    pub what: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// Variables that are added to this process's environment.
    pub env: BTreeMap<String, String>,
    /// The number of processes, at least 1.
    pub workers: usize,
    /// The time limit of a start with a handshake; when absent, workers have no handshake.
    pub handshake: Option<Duration>,
    /// A worker is replaced after this many answers, which limits leaks.
    pub jobs_per_worker: Option<NonZeroU64>,
    /// Maximum address space of a worker (`RLIMIT_AS`), in bytes. It is set right after the start, on Linux
    /// only.
    pub memory_bytes: Option<u64>,
}

/// A pool of worker processes.
pub(crate) struct ProcessPool(Arc<Pool>);

struct Pool {
    spec: PoolSpec,
    slots: Arc<Semaphore>,
    idle: async_channel::Receiver<Worker>,
    /// Never full: each worker holds a slot, and the capacity is the number of slots.
    idle_sender: async_channel::Sender<Worker>,
    health: Mutex<Health>,
    next_id: AtomicU64,
    is_watched: AtomicBool,
    tracker: TaskTracker,
    closing: CancellationToken,
}

/// The result of a job's wait for a worker.
enum Found {
    Idle(Box<Worker>),
    Slot(OwnedSemaphorePermit),
    /// The start that the job requested has ended: with an error, or (`None`) with a worker in the idle
    /// queue.
    Started(Option<RewardError>),
    Closed,
}

/// An answer line that was read.
enum Line {
    Answer(Result<Score, RewardError>),
    /// The line is not JSON or answers another question, so the next lines of this worker cannot be assigned
    /// to their jobs.
    OutOfStep(RewardError),
}

impl ProcessPool {
    /// A pool whose processes start when jobs arrive. Its tasks run on `tracker` and end when `token` is
    /// cancelled.
    pub(crate) fn new(spec: PoolSpec, tracker: TaskTracker, token: &CancellationToken) -> Self {
        let workers = spec.workers.clamp(1, Semaphore::MAX_PERMITS);
        let (idle_sender, idle) = async_channel::bounded(workers);
        Self(Arc::new(Pool {
            health: Mutex::new(Health::new(spec.what.clone(), spec.workers)),
            spec,
            slots: Arc::new(Semaphore::new(workers)),
            idle,
            idle_sender,
            next_id: AtomicU64::new(1),
            is_watched: AtomicBool::new(false),
            tracker,
            closing: token.child_token(),
        }))
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        self.0.closing.cancel();
        self.0.kill_idle();
    }
}

impl RewardRunner for ProcessPool {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(self.0.until_closed(self.0.ask(job, Start::Paced)))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(self.0.until_closed(async move {
            let worker = self.0.worker(Start::Paced).await?;
            self.0.give_back(worker);
            Ok(())
        }))
    }

    fn probe<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<(), RewardError>> {
        Box::pin(async move { answers(self.0.until_closed(self.0.ask(job, Start::AtOnce)).await) })
    }
}

impl Pool {
    /// Does `work` until the pool is closed. Cancel-safe if `work` is.
    async fn until_closed<T>(
        &self,
        work: impl Future<Output = Result<T, RewardError>>,
    ) -> Result<T, RewardError> {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(RewardError::Cancelled),
            result = work => result,
        }
    }

    /// Cancel-safe: dropping a job also drops its worker.
    async fn ask(self: &Arc<Self>, job: &RewardJob, start: Start) -> Result<Score, RewardError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let line = format!("{}\n", question(id, job));
        let mut last: Option<Death> = None;
        for _ in 0..WORKERS_PER_JOB_MAX {
            let mut worker = match (self.worker(start).await, &last) {
                (Ok(worker), _) => worker,
                // The job was given to a worker, and that worker died.
                (Err(error), Some(death)) if error.is_refusal() => return Err(self.worker_died(death)),
                (Err(error), _) => return Err(error),
            };
            let error = match worker.ask(line.as_bytes()).await {
                Ok(bytes) => match self.read(id, &bytes) {
                    Line::Answer(result) => {
                        self.health.lock().answered();
                        self.give_back(worker);
                        return result;
                    }
                    Line::OutOfStep(error) => error,
                },
                Err(Ended::TooLong(start)) => nonsense(
                    &self.spec.what,
                    format!("expected an answer line of at most {LINE_BYTES_MAX} bytes"),
                    &start,
                ),
                Err(Ended::Died) => {
                    let death = worker.death().await;
                    self.died(&death);
                    last = Some(death);
                    continue;
                }
            };
            self.died(&Death { how: "killed for an answer out of step".into(), ..Death::default() });
            return Err(error);
        }
        Err(self.worker_died(&last.unwrap_or_default()))
    }

    fn died(&self, death: &Death) {
        self.health.lock().died(death);
    }

    fn worker_died(&self, death: &Death) -> RewardError {
        let Death { how, stderr } = death.clone();
        RewardError::WorkerDied { what: self.spec.what.clone(), how, stderr }
    }

    fn read(&self, id: u64, bytes: &[u8]) -> Line {
        let what = &self.spec.what;
        let value = match read_json(what, bytes) {
            Ok(value) => value,
            Err(error) => return Line::OutOfStep(error),
        };
        match value.get("id") {
            Some(other) if *other != id => {
                Line::OutOfStep(nonsense(what, format!("expected the answer to id={id}"), bytes))
            }
            _ => Line::Answer(score_of(what, &value)),
        }
    }

    /// Gets an idle worker, or starts one. Cancel-safe: a start that has begun continues for other jobs.
    async fn worker(self: &Arc<Self>, start: Start) -> Result<Worker, RewardError> {
        let mut starting: Option<oneshot::Receiver<RewardError>> = None;
        loop {
            match self.find(&mut starting).await {
                Found::Idle(worker) if worker.lives() => return Ok(*worker),
                // The worker died between two jobs; dropping it frees its slot.
                Found::Idle(_) => {}
                Found::Slot(slot) => starting = Some(self.start(slot, start)),
                Found::Started(None) => starting = None,
                Found::Started(Some(error)) => return Err(error),
                Found::Closed => return Err(RewardError::Cancelled),
            }
        }
    }

    /// Cancel-safe.
    async fn find(&self, starting: &mut Option<oneshot::Receiver<RewardError>>) -> Found {
        let is_starting = starting.is_some();
        let failure = async {
            match starting {
                Some(failure) => failure.await.ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            worker = self.idle.recv() => worker.map_or(Found::Closed, |worker| Found::Idle(Box::new(worker))),
            failure = failure => Found::Started(failure),
            slot = Arc::clone(&self.slots).acquire_owned(), if !is_starting => {
                slot.map_or(Found::Closed, Found::Slot)
            }
        }
    }

    /// Starts a worker in a task. The receiver gets only an error; a worker that has started goes to the idle
    /// queue.
    fn start(self: &Arc<Self>, slot: OwnedSemaphorePermit, start: Start) -> oneshot::Receiver<RewardError> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            let pool = Arc::clone(self);
            tasks::spawn(&self.tracker, "reward workers", async move {
                pool.closing.cancelled().await;
                pool.kill_idle();
            });
        }
        let (failed, failure) = oneshot::channel();
        let pool = Arc::clone(self);
        tasks::spawn(&self.tracker, "reward worker start", async move {
            let started = tokio::select! {
                biased;
                () = pool.closing.cancelled() => return,
                started = pool.started(slot, start) => started,
            };
            match started {
                Ok(worker) => pool.give_back(worker),
                // Sending fails only when the job was dropped; the next job will meet the error itself.
                Err(error) => drop(failed.send(error)),
            }
        });
        failure
    }

    /// Starts workers until one is ready. With [`Start::AtOnce`], starts only one. Cancel-safe: a process
    /// that was started is killed.
    async fn started(&self, slot: OwnedSemaphorePermit, start: Start) -> Result<Worker, RewardError> {
        loop {
            let may_start_at = self.health.lock().may_start(start)?;
            if let Some(instant) = may_start_at {
                sleep_until(instant).await;
            }
            let (death, is_last) = match Worker::start(&self.spec, &self.tracker).await {
                Ok(worker) => {
                    self.health.lock().started();
                    return Ok(worker.with_slot(slot));
                }
                Err(StartError::Died(death)) => (death, start == Start::AtOnce),
                Err(StartError::Slow(death)) => (death, true),
                Err(StartError::Never(reason)) => return Err(self.health.lock().is_unloadable(reason)),
            };
            self.died(&death);
            if is_last {
                return Err(self.worker_died(&death));
            }
        }
    }

    /// Makes a worker idle. Drops the worker instead if it has reached its number of answers, has printed
    /// anything besides answers, or returns after the end of the pool.
    fn give_back(&self, worker: Worker) {
        let is_spent = self.spec.jobs_per_worker.is_some_and(|most| worker.answers() >= most.get());
        if is_spent || !worker.is_quiet() {
            return;
        }
        // Sending fails only when the pool was dropped. The worker is then dropped here.
        drop(self.idle_sender.try_send(worker));
        // The check follows the sending, so either this call or the call that closes the pool drops the
        // worker.
        if self.closing.is_cancelled() {
            self.kill_idle();
        }
    }

    fn kill_idle(&self) {
        while let Ok(worker) = self.idle.try_recv() {
            drop(worker);
        }
    }
}

#[cfg(test)]
mod tests;
