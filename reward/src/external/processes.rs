//! A pool of worker processes that speak JSON lines.
//!
//! # The protocol
//! A worker reads one question a line from its standard input and writes one answer a line to its standard output,
//! one job at a time, in UTF-8. A question is
//! `{"id": 7, "data_source": "..", "solution_str": "..", "ground_truth": "..", "extra_info": .., "prompt": ".."}`. An
//! answer is a number or bool, or `{"id": 7, "score": x, "acc": y, "pred": "z"}` where all but `score` may be left out,
//! or `{"id": 7, "error": "why"}`, which costs no worker. Empty lines are skipped. Standard error is free: its last
//! lines go into errors. With a handshake a worker first says `{"ready": true}`, or `{"fatal": "why"}` when no worker
//! will ever be able to score. At the end of its input a worker should exit.
//!
//! # How it works
//! A slot is the right to a living process; there are `workers` of them. A job waits for an idle worker or for a free
//! slot, whichever comes first. A start runs in a task of its own and ends in the idle queue, so a slow start is not
//! lost with the job that asked for it. A worker belongs to the job it works for: when that is dropped, so is the
//! worker, because its answer would be taken for the next job's.
//!
//! # Invariants
//! - At most `workers` processes of the pool live at a time, each with what it has started in a process group of its
//!   own. A slot is free again only after its process was killed and waited for.
//! - A job is given to at most two workers. Starts in a row without an answer are spaced by doubling pauses, and after
//!   [`DEATHS_IN_A_ROW_MAX`] of them (or two rounds of the pool) jobs are refused, but for one start at a time.
//! - When the pool is dropped, or its token ends, every process group is killed; the tracker's end waits for that.
//!
//! # Deliberately absent
//! Several jobs in a worker at a time; memory limits away from Linux; hunting for processes that have left the group.

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
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{nonsense, question, read_json, score_of};
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};
use worker::{Death, Ended, StartError, Worker};

/// Deaths without an answer after which jobs are refused.
const DEATHS_IN_A_ROW_MAX: u32 = 8;
/// Workers that a job is given to before it fails.
const WORKERS_PER_JOB_MAX: usize = 2;
/// Before the start that follows the first death.
const START_PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest pause that doubling leads to.
const START_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Doublings until the longest pause is certainly reached.
const DOUBLINGS_MAX: u32 = 16;

/// What a pool runs.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSpec {
    /// As errors call it.
    pub what: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Where it runs; where this process runs when absent.
    pub directory: Option<PathBuf>,
    /// Added to this process's environment.
    pub env: BTreeMap<String, String>,
    /// Processes at a time, at least 1.
    pub workers: usize,
    /// The limit for a start that ends in a handshake; no handshake when absent.
    pub handshake: Option<Duration>,
    /// Answers after which a worker is replaced, against leaks.
    pub jobs_per_worker: Option<NonZeroU64>,
    /// Address space of a worker (`RLIMIT_AS`), bytes; set right after its start. Linux only.
    pub memory_bytes: Option<u64>,
}

/// See the module's documentation.
pub struct ProcessPool(Arc<Pool>);

struct Pool {
    spec: PoolSpec,
    slots: Arc<Semaphore>,
    idle: async_channel::Receiver<Worker>,
    /// Never full: a worker has a slot, and there are as many places as slots.
    idle_sender: async_channel::Sender<Worker>,
    health: Mutex<Health>,
    next_id: AtomicU64,
    is_watched: AtomicBool,
    tracker: TaskTracker,
    closing: CancellationToken,
}

#[derive(Default)]
struct Health {
    deaths: u32,
    next_start: Option<Instant>,
    last: Death,
    /// Why no worker will ever start.
    unloadable: Option<RewardError>,
}

/// What a waiting job got.
enum Found {
    Idle(Box<Worker>),
    Slot(OwnedSemaphorePermit),
    /// The start it asked for has failed, or has ended in the idle queue.
    Started(Option<RewardError>),
    Closed,
}

/// What an answer line means for the worker that wrote it.
enum Line {
    Answer(Result<Score, RewardError>),
    /// Nobody can know what its next line will answer.
    OutOfStep(RewardError),
}

impl ProcessPool {
    /// A pool without processes: they start when jobs come. Tasks run on `tracker`, and `token` ends them.
    pub fn new(spec: PoolSpec, tracker: TaskTracker, token: &CancellationToken) -> Self {
        let workers = spec.workers.clamp(1, Semaphore::MAX_PERMITS);
        let (idle_sender, idle) = async_channel::bounded(workers);
        Self(Arc::new(Pool {
            spec,
            slots: Arc::new(Semaphore::new(workers)),
            idle,
            idle_sender,
            health: Mutex::default(),
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
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.0.closing.cancelled() => Err(RewardError::Cancelled),
                result = self.0.score(job) => result,
            }
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.0.closing.cancelled() => Err(RewardError::Cancelled),
                worker = self.0.worker() => worker.map(|worker| self.0.give_back(worker)),
            }
        })
    }
}

impl Pool {
    /// Cancel-safe: a dropped job takes its worker with it.
    async fn score(self: &Arc<Self>, job: &RewardJob) -> Result<Score, RewardError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let line = format!("{}\n", question(id, job));
        let mut last = Death::default();
        for _ in 0..WORKERS_PER_JOB_MAX {
            let mut worker = self.worker().await?;
            let error = match worker.ask(line.as_bytes()).await {
                Ok(bytes) => match self.read(id, &bytes) {
                    Line::Answer(result) => {
                        self.health.lock().answered();
                        self.give_back(worker);
                        return result;
                    }
                    Line::OutOfStep(error) => error,
                },
                Err(Ended::TooLong(start)) => {
                    nonsense(&self.spec.what, "the answer is too long".into(), &start)
                }
                Err(Ended::Died) => {
                    last = worker.death().await;
                    self.died(&last);
                    continue;
                }
            };
            self.died(&Death { how: "killed for an answer out of step".into(), ..Death::default() });
            return Err(error);
        }
        Err(self.worker_died(last))
    }

    fn worker_died(&self, death: Death) -> RewardError {
        RewardError::WorkerDied { what: self.spec.what.clone(), how: death.how, stderr: death.stderr }
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

    /// An idle worker, or one that is started for this. Cancel-safe: a start that has begun goes on for others.
    async fn worker(self: &Arc<Self>) -> Result<Worker, RewardError> {
        let mut starting: Option<oneshot::Receiver<RewardError>> = None;
        loop {
            match self.find(&mut starting).await {
                Found::Idle(worker) if worker.lives() => return Ok(*worker),
                // It died of itself between two jobs; dropping it frees its slot.
                Found::Idle(_) => {}
                Found::Slot(slot) => starting = Some(self.start(slot)),
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

    /// Starts a worker in a task; what is returned speaks only of failure.
    fn start(self: &Arc<Self>, slot: OwnedSemaphorePermit) -> oneshot::Receiver<RewardError> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            let pool = Arc::clone(self);
            self.tracker.spawn(async move {
                pool.closing.cancelled().await;
                pool.kill_idle();
            });
        }
        let (failed, failure) = oneshot::channel();
        let pool = Arc::clone(self);
        self.tracker.spawn(async move {
            let started = tokio::select! {
                biased;
                () = pool.closing.cancelled() => return,
                started = pool.started(slot) => started,
            };
            match started {
                Ok(worker) => pool.give_back(worker),
                // The job may be gone; the next one will find out for itself.
                Err(error) => drop(failed.send(error)),
            }
        });
        failure
    }

    /// Cancel-safe: a process that was started is killed.
    async fn started(&self, slot: OwnedSemaphorePermit) -> Result<Worker, RewardError> {
        loop {
            let may_start_at = self.health.lock().may_start(&self.spec)?;
            if let Some(instant) = may_start_at {
                sleep_until(instant).await;
            }
            match Worker::start(&self.spec, &self.tracker).await {
                Ok(worker) => return Ok(worker.with_slot(slot)),
                Err(StartError::Died(death)) => self.died(&death),
                Err(StartError::Slow(death)) => {
                    self.died(&death);
                    return Err(self.worker_died(death));
                }
                Err(StartError::Never(reason)) => {
                    let error = RewardError::Unloadable { what: self.spec.what.clone(), reason };
                    self.health.lock().unloadable = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// Makes a worker idle, or lets it go: when it has done its share, has said more than it was asked, or comes late.
    fn give_back(&self, worker: Worker) {
        let is_spent = self.spec.jobs_per_worker.is_some_and(|most| worker.answers() >= most.get());
        if is_spent || !worker.is_quiet() {
            return;
        }
        // Refused only when the pool is gone: then the worker is dropped here.
        drop(self.idle_sender.try_send(worker));
        // After the sending, so that either this or the one who closes sees the worker.
        if self.closing.is_cancelled() {
            self.kill_idle();
        }
    }

    fn kill_idle(&self) {
        while let Ok(worker) = self.idle.try_recv() {
            drop(worker);
        }
    }

    fn died(&self, death: &Death) {
        let mut health = self.health.lock();
        let doublings = health.deaths.min(DOUBLINGS_MAX);
        let pause = (START_PAUSE_FIRST * (1 << doublings)).min(START_PAUSE_MAX);
        health.deaths = health.deaths.saturating_add(1);
        health.next_start = Some(Instant::now() + pause);
        health.last = death.clone();
    }
}

impl Health {
    fn answered(&mut self) {
        self.deaths = 0;
        self.next_start = None;
    }

    /// When the next start may be, if not at once; an error when there is no sense in waiting for it.
    fn may_start(&mut self, spec: &PoolSpec) -> Result<Option<Instant>, RewardError> {
        if let Some(error) = &self.unloadable {
            return Err(error.clone());
        }
        // All workers of a pool can die of one cause at the same time, and that is not yet a row.
        let two_rounds = u32::try_from(spec.workers.saturating_mul(2)).unwrap_or(u32::MAX);
        if self.deaths < two_rounds.max(DEATHS_IN_A_ROW_MAX) {
            return Ok(self.next_start);
        }
        let now = Instant::now();
        if self.next_start.is_some_and(|instant| now < instant) {
            return Err(RewardError::WorkersKeepDying {
                what: spec.what.clone(),
                deaths: self.deaths,
                how: self.last.how.clone(),
                stderr: self.last.stderr.clone(),
            });
        }
        // This start is the one that finds out whether things are better; the others are refused until it has ended.
        self.next_start = Some(now + START_PAUSE_MAX);
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
