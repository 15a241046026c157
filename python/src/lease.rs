//! Rows under a lease. A task renews the lease while the rows are used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use rolldock_queue::{ErrorClass, Lease as Taken, Queue, QueueError};
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::buffer::Buffer;
use crate::errors;
use crate::options::packed;
use crate::pending::Pending;
use crate::rows::Rows;
use crate::runtime::{self, Own};
use crate::tasks::spawn_on;

/// The time before the first renewal of a lease. A fast consumer finishes most batches before this time.
const SOON: Duration = Duration::from_millis(50);
/// The time that a renewed lease is assumed to have left, if the queue does not report it.
const LEFT_UNKNOWN: Duration = Duration::from_secs(3);
/// The limits of the pause between two renewals.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause between two renewals of a lease, for each partition whose pause is known.
pub(crate) type Pauses = Arc<Mutex<HashMap<String, Duration>>>;

struct Held {
    queue: Arc<dyn Queue>,
    partition: String,
    id: u64,
    pauses: Pauses,
    /// Locked while the lease is renewed. `None` after its end.
    lease: tokio::sync::Mutex<Option<Taken>>,
    /// Ends the renewals.
    stop: CancellationToken,
    is_lost: Mutex<bool>,
}

impl Held {
    /// Renews the lease until it ends. The first renewal is early, because the lease may have been held for a
    /// while before. Later renewals are regular.
    async fn keep(&self) {
        let mut pause = SOON;
        loop {
            sleep(pause).await;
            if !self.renew().await {
                return;
            }
            let known = self.pauses.lock().get(&self.partition).copied();
            pause = match known {
                Some(pause) => pause,
                None => self.learned_pause().await,
            };
        }
    }

    /// Renews the lease once, and returns whether it is still held. If the server does not answer, the next
    /// renewal tries again.
    async fn renew(&self) -> bool {
        let lease = self.lease.lock().await;
        let Some(lease) = lease.as_ref() else { return false };
        match lease.renew().await {
            Ok(()) => true,
            Err(QueueError::LeaseGone { .. }) => {
                *self.is_lost.lock() = true;
                // The partition may have been declared again, with a shorter term.
                self.pauses.lock().remove(&self.partition);
                false
            }
            Err(error) => matches!(error.class(), ErrorClass::Retryable | ErrorClass::Backpressure),
        }
    }

    /// The pause between renewals in the partition: a third of the time that a renewed lease has left.
    async fn learned_pause(&self) -> Duration {
        let Ok(inspection) = self.queue.inspect().await else { return LEFT_UNKNOWN / 3 };
        let partition = inspection.partitions.into_iter().find(|found| found.name == self.partition);
        let leases = partition.map(|partition| partition.leases).unwrap_or_default();
        let lease = leases.into_iter().find(|lease| lease.lease == self.id);
        let left = lease.map_or(LEFT_UNKNOWN, |lease| Duration::from_millis(lease.expires_in_ms));
        let pause = (left / 3).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pauses.lock().insert(self.partition.clone(), pause);
        pause
    }

    /// Ends the renewals, and consumes the rows or gives them back. After an error that may pass, such as an unreachable
    /// server, the lease is kept, so that the call can be repeated.
    async fn end(&self, consumes: bool) -> Result<(), QueueError> {
        self.stop.cancel();
        let mut kept = self.lease.lock().await;
        let lease = kept.as_mut().ok_or(QueueError::LeaseGone { lease: self.id })?;
        let ended = if consumes { lease.try_ack().await } else { lease.try_nack().await };
        if !ended.as_ref().is_err_and(|error| error.class() == ErrorClass::Retryable) {
            *kept = None;
        }
        ended
    }
}

/// Rows that this process holds for a task. Dropping this value gives the rows back.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Lease {
    held: Own<Arc<Held>>,
    #[pyo3(get)]
    id: u64,
    rows: Py<Rows>,
    /// The handles of the rows, packed.
    handles: Vec<u64>,
    policy_versions: Vec<u64>,
    groups: Vec<String>,
    keys: Vec<Option<String>>,
    tags: Vec<Value>,
    #[pyo3(get)]
    fresh_from: u64,
}

impl Lease {
    pub(crate) fn new(
        py: Python<'_>,
        lease: Taken,
        queue: Arc<dyn Queue>,
        partition: String,
        pauses: Pauses,
    ) -> PyResult<Self> {
        let rows = Py::new(py, Rows::new(py, lease.batches().to_vec())?)?;
        let (id, fresh_from) = (lease.id(), lease.fresh_from());
        let handles = lease.rows().iter().copied().map(packed).collect();
        let policy_versions = lease.policy_versions().to_vec();
        let (groups, keys, tags) = (lease.groups().to_vec(), lease.keys().to_vec(), lease.tags().to_vec());
        let (stop, is_lost) = (CancellationToken::new(), Mutex::new(false));
        let lease = tokio::sync::Mutex::new(Some(lease));
        let held = Own::new(Arc::new(Held { queue, partition, id, pauses, lease, stop, is_lost }));
        Ok(Self { held, id, rows, handles, policy_versions, groups, keys, tags, fresh_from })
    }

    fn held(&self, py: Python<'_>) -> PyResult<Arc<Held>> {
        self.held.get().cloned().ok_or_else(|| errors::forked(py, "this lease"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(held) = self.held.get() {
            held.stop.cancel();
        }
    }
}

#[pymethods]
impl Lease {
    /// The rows.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<Rows> {
        self.rows.clone_ref(py)
    }

    /// The handle of each row, `generation << 32 | slot`.
    #[getter]
    fn handles(&self) -> PyResult<Buffer> {
        Buffer::of_u64(self.handles.clone())
    }

    /// The oldest policy version of each row's group.
    #[getter]
    fn policy_versions(&self) -> PyResult<Buffer> {
        Buffer::of_u64(self.policy_versions.clone())
    }

    /// The group of each row.
    #[getter]
    fn groups(&self) -> Vec<String> {
        self.groups.clone()
    }

    /// The key of each row. Empty if no row has one.
    #[getter]
    fn keys(&self) -> Vec<Option<String>> {
        self.keys.clone()
    }

    /// The tags of each row as JSON. Empty if no row has any.
    #[getter]
    fn tags(&self) -> Vec<String> {
        self.tags.iter().map(Value::to_string).collect()
    }

    /// Whether a renewal found that the lease had expired. Its rows may then be leased again.
    #[getter]
    fn is_lost(&self) -> bool {
        self.held.get().is_some_and(|held| *held.is_lost.lock())
    }

    /// Starts to renew the lease in the background, until it ends.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held(py)?;
        let task = async move {
            let stop = held.stop.clone();
            // Dropping a renewal is harmless: the lease ends next, or is given back.
            stop.run_until_cancelled(held.keep()).await;
        };
        drop(spawn_on(runtime::driver()?.handle(), "lease renewal", task));
        Ok(())
    }

    /// Consumes the rows.
    fn ack(&self, py: Python<'_>) -> PyResult<Pending> {
        let held = self.held(py)?;
        Pending::done(async move { held.end(true).await })
    }

    /// Gives the rows back.
    fn nack(&self, py: Python<'_>) -> PyResult<Pending> {
        let held = self.held(py)?;
        Pending::done(async move { held.end(false).await })
    }

    /// Renews the lease, which then has its full term again.
    fn renew(&self, py: Python<'_>) -> PyResult<Pending> {
        let held = self.held(py)?;
        Pending::done(async move {
            match held.lease.lock().await.as_ref() {
                Some(lease) => lease.renew().await,
                None => Err(QueueError::LeaseGone { lease: held.id }),
            }
        })
    }
}
