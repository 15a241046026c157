//! Workers that one caller holds for several questions: the processes of environments.
//!
//! # Invariants
//! A leased worker that is dropped while it owes an answer is killed, because its late answer would be read
//! as the answer to the next question. All other bounds are those of the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::worker::{Ended, Worker};
use super::{Death, Pool, PoolSpec, ProcessPool, Start};
use crate::RewardError;
use crate::external::RewardRunner;
use crate::external::answer::{nonsense, read_json};

/// A pool of worker processes whose workers are leased.
pub struct WorkerPool(ProcessPool);

impl WorkerPool {
    /// A pool whose processes start when they are leased. Its tasks run on `tracker` and end when `token` is
    /// cancelled.
    pub(in crate::external) fn new(spec: PoolSpec, tracker: TaskTracker, token: &CancellationToken) -> Self {
        Self(ProcessPool::new(spec, tracker, token))
    }

    /// Starts a worker, to check that workers can start. Cancel-safe.
    ///
    /// # Errors
    /// No worker could be started.
    pub async fn check(&self) -> Result<(), RewardError> {
        self.0.check().await
    }

    /// Leases a worker as soon as one is available. Cancel-safe.
    ///
    /// # Errors
    /// No worker could be started, or the pool was closed.
    pub async fn lease(&self) -> Result<LeasedWorker, RewardError> {
        let pool = &self.0.0;
        let worker = pool.until_closed(pool.worker(Start::Paced)).await?;
        Ok(LeasedWorker { pool: Arc::clone(pool), worker: Some(worker) })
    }
}

/// A worker process that one caller holds until it gives the worker back. If this value is dropped instead,
/// the process is killed.
pub struct LeasedWorker {
    pool: Arc<Pool>,
    /// Absent while the worker owes an answer, and after its end.
    worker: Option<Worker>,
}

impl LeasedWorker {
    /// Asks the worker, and returns the `result` of its answer. `question` is an object without an `id`. If
    /// the future is dropped, the process is killed.
    ///
    /// # Errors
    /// The worker has answered with an error or with nonsense, or it has died.
    pub async fn ask(&mut self, mut question: Value) -> Result<Value, RewardError> {
        let pool = Arc::clone(&self.pool);
        let id = pool.next_id.fetch_add(1, Ordering::Relaxed);
        question["id"] = id.into();
        let Some(mut worker) = self.worker.take() else {
            return Err(pool.worker_died(&Death { how: "in an earlier question".into(), ..Death::default() }));
        };
        let line = format!("{question}\n");
        let what = pool.spec.what.clone();
        let bytes = match pool.until_closed(async { Ok(worker.ask(line.as_bytes()).await) }).await? {
            Ok(bytes) => bytes,
            Err(Ended::TooLong(start)) => {
                pool.died(&Death { how: "killed for an answer that is too long".into(), ..Death::default() });
                return Err(nonsense(&what, "expected an answer line of at most 1 MiB".to_owned(), &start));
            }
            Err(Ended::Died) => {
                let death = worker.death().await;
                pool.died(&death);
                return Err(pool.worker_died(&death));
            }
        };
        let answer = read_json(&what, &bytes)?;
        if answer.get("id") != Some(&Value::from(id)) {
            return Err(nonsense(&what, format!("expected the answer to id={id}"), &bytes));
        }
        pool.health.lock().answered();
        self.worker = Some(worker);
        result_of(what, answer, &bytes)
    }

    /// Gives the worker back to its pool, for the next caller.
    pub fn give_back(mut self) {
        if let Some(worker) = self.worker.take() {
            self.pool.give_back(worker);
        }
    }
}

fn result_of(what: String, mut answer: Value, bytes: &[u8]) -> Result<Value, RewardError> {
    if let Some(reason) = answer.get("error").and_then(Value::as_str) {
        return Err(RewardError::Raised { what, reason: reason.to_owned() });
    }
    match answer.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(nonsense(&what, "expected \"result\" or \"error\"".to_owned(), bytes)),
    }
}
