//! The calls of a queue: of this process, or of a server.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rolldock_queue::{
    Durability, LocalConfig, LocalQueue, PartitionSpec, Queue as Calls, QueueClient, QueueConfig, QueueError,
    RemoteConfig, TransferQueue, Transport, TransportChoice, Unfinished,
};
use serde::Serialize;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::driver::Driver;
use crate::dtype::Dtype;
use crate::errors::{self, bad, raised};
use crate::lease::{Lease, Pauses};
use crate::options::{self, PutOptions, TakeOptions, handle, handles, packed};
use crate::pending::Pending;
use crate::rows::Rows;
use crate::runtime::{self, Own};

/// The address of a server, and the time for which calls are repeated while it does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    url: String,
    token: Option<String>,
    patience: Duration,
    choice: TransportChoice,
}

impl Server {
    /// Makes a client. Nothing is sent yet.
    fn open(&self, give_backs: TaskTracker) -> Result<Arc<dyn Calls>, QueueError> {
        let patience = self.patience;
        if let Some(path) = self.url.strip_prefix("unix:") {
            return Ok(Arc::new(LocalQueue::new(LocalConfig { patience, ..LocalConfig::new(path) })?));
        }
        let token = self.token.clone();
        let config = RemoteConfig { token, patience, tasks: give_backs, ..RemoteConfig::new(&self.url) };
        Ok(Arc::new(QueueClient::new(config, self.choice)?))
    }
}

/// The connections to a server. They are open as long as a client uses them.
struct Pool {
    server: Server,
    calls: Own<Weak<dyn Calls>>,
}

/// The connections of this process, one pool for each server. A thread locks the pools only while it holds
/// the GIL, and runs no code of Python until it unlocks them. This prevents a deadlock of the lock and the
/// GIL, and a forked child finds the pools unlocked.
static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

/// Returns the process's client of a server.
fn connect(
    (driver, give_backs): (Arc<Driver>, TaskTracker),
    server: &Server,
) -> Result<Arc<dyn Calls>, QueueError> {
    let mut pools = POOLS.lock();
    pools.retain(|pool| pool.calls.get().is_some_and(|calls| calls.strong_count() > 0));
    let known = pools.iter().find(|pool| pool.server == *server);
    if let Some(queue) = known.and_then(|pool| pool.calls.get()).and_then(Weak::upgrade) {
        return Ok(queue);
    }
    let _entered = driver.handle().enter();
    let queue = server.open(give_backs)?;
    pools.push(Pool { server: server.clone(), calls: Own::new(Arc::downgrade(&queue)) });
    Ok(queue)
}

/// The queue that a client uses in one process.
struct Opened {
    calls: Arc<dyn Calls>,
    /// The queue as an embedded queue, if it is one.
    embedded: Option<TransferQueue>,
}

/// A queue. `rolldock.Client` and `rolldock.AsyncClient` wrap it.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Queue {
    /// The server. `None` if the queue is in this process.
    server: Option<Server>,
    /// `None` after `close`. Locked like [`POOLS`].
    opened: Mutex<Option<Own<Opened>>>,
    pauses: Pauses,
}

impl Queue {
    fn new(server: Option<Server>, calls: Arc<dyn Calls>, embedded: Option<TransferQueue>) -> Self {
        let opened = Mutex::new(Some(Own::new(Opened { calls, embedded })));
        Self { server, opened, pauses: Pauses::default() }
    }

    /// The queue for calls in this process. A forked child gets new connections.
    fn calls(&self, py: Python<'_>) -> PyResult<Arc<dyn Calls>> {
        match self.opened.lock().as_ref().map(Own::get) {
            None => return Err(PyRuntimeError::new_err("the client is closed")),
            Some(Some(opened)) => return Ok(Arc::clone(&opened.calls)),
            Some(None) => {}
        }
        let Some(server) = &self.server else { return Err(errors::forked(py, "an embedded queue")) };
        let calls = raised(py, connect(runtime::with_give_backs()?, server))?;
        *self.opened.lock() = Some(Own::new(Opened { calls: Arc::clone(&calls), embedded: None }));
        Ok(calls)
    }

    /// Makes a call that answers with JSON.
    fn json<T: Serialize + Send + 'static>(
        call: impl Future<Output = Result<T, QueueError>> + Send + 'static,
    ) -> PyResult<Pending> {
        Pending::new(call, |py, answer| {
            let text = serde_json::to_string(&answer).map_err(|error| bad(error.to_string()))?;
            Ok(text.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Makes a call that answers with a number of rows.
    fn count(call: impl Future<Output = Result<usize, QueueError>> + Send + 'static) -> PyResult<Pending> {
        Pending::new(call, |py, count| Ok(count.into_pyobject(py)?.into_any().unbind()))
    }
}

#[pymethods]
impl Queue {
    /// Makes a client of the server at `http://HOST:PORT`, or at `unix:PATH` through shared memory. Nothing
    /// is sent yet. By default, a client on the server's host uses shared memory.
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        url: String,
        token: Option<String>,
        patience_s: f64,
        shared_memory: Option<bool>,
    ) -> PyResult<Self> {
        let is_socket = url.starts_with("unix:");
        if token.is_some() && is_socket {
            return Err(bad("expected no token for a socket: its file's permissions decide who may open it"));
        }
        let choice = match shared_memory {
            None => TransportChoice::Auto,
            Some(true) => TransportChoice::SharedMemory,
            Some(false) if is_socket => {
                return Err(bad("expected http://HOST:PORT without shared memory, found a socket"));
            }
            Some(false) => TransportChoice::Http,
        };
        let patience = options::wait(patience_s)?.ok_or_else(|| bad("expected a patience with an end"))?;
        let server = Server { url, token, patience, choice };
        let calls = raised(py, connect(runtime::with_give_backs()?, &server))?;
        Ok(Self::new(Some(server), calls, None))
    }

    /// Opens a queue in this process: in memory, or in a directory, which the call reads.
    #[staticmethod]
    fn open(py: Python<'_>, dir: Option<PathBuf>, durability: &str) -> PyResult<Self> {
        let durability: Durability = options::read(&Value::from(durability).to_string())?;
        let driver = runtime::driver()?;
        let opened = py.detach(|| {
            let _entered = driver.handle().enter();
            TransferQueue::open(QueueConfig { dir, durability, ..QueueConfig::default() })
        });
        let queue = raised(py, opened)?;
        Ok(Self::new(None, Arc::new(queue.clone()), Some(queue)))
    }

    /// Whether the queue is in this process.
    #[getter]
    fn is_embedded(&self) -> bool {
        self.server.is_none()
    }

    /// How calls reach the queue: `"embedded"`, `"http"` or `"shared_memory"`. `None` before the first call
    /// to a server.
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.calls(py)?.transport().map(|transport| match transport {
            Transport::InProcess => "embedded",
            Transport::Http => "http",
            Transport::SharedMemory => "shared_memory",
        }))
    }

    /// Closes an embedded queue, which makes its puts durable, and forgets the connections to a server.
    fn close(&self, py: Python<'_>) {
        let opened = self.opened.lock().take();
        py.detach(|| {
            let embedded = opened.as_ref().and_then(Own::get).and_then(|opened| opened.embedded.as_ref());
            if let Some(queue) = embedded {
                queue.close();
            }
            drop(opened);
        });
    }

    /// Declares a partition. `columns` are the columns of the declaration, which is JSON without them.
    fn declare(
        &self,
        py: Python<'_>,
        spec: &str,
        columns: Vec<(String, PyRef<'_, Dtype>)>,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let mut spec: PartitionSpec = options::read(spec)?;
        spec.columns = columns.into_iter().map(|(name, dtype)| dtype.column(name)).collect();
        Pending::done(async move { queue.declare(spec).await })
    }

    /// Puts rows; the value is the list of their handles.
    fn put(
        &self,
        py: Python<'_>,
        partition: String,
        rows: &Rows,
        options: &str,
        wait_s: f64,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let put = options::read::<PutOptions>(options)?.put(rows);
        let wait = options::wait(wait_s)?;
        let call = async move { queue.put(&partition, put, wait).await };
        Pending::new(call, |py, rows| {
            let rows: Vec<u64> = rows.into_iter().map(packed).collect();
            Ok(rows.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Writes columns of rows.
    fn write(
        &self,
        py: Python<'_>,
        partition: String,
        rows: Vec<u64>,
        columns: &Rows,
        overwrite: bool,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let (rows, batch) = (handles(&rows), columns.joined(py)?);
        Pending::done(async move {
            match overwrite {
                true => queue.overwrite_columns(&partition, &rows, batch).await,
                false => queue.write_columns(&partition, &rows, batch).await,
            }
        })
    }

    /// Takes rows; the value is a lease, or `None` if no row can become ready any more.
    fn take(&self, py: Python<'_>, partition: String, options: &str, wait_s: f64) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let take = options::read::<TakeOptions>(options)?.take(options::wait(wait_s)?)?;
        let (calls, name, pauses) = (Arc::clone(&queue), partition.clone(), Arc::clone(&self.pauses));
        let call = async move { queue.take(&partition, &take).await };
        Pending::new(call, move |py, lease| {
            let lease = lease.map(|lease| Lease::new(py, lease, calls, name, pauses)).transpose()?;
            Ok(lease.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Reads columns of rows; the value is the rows.
    fn get(
        &self,
        py: Python<'_>,
        partition: String,
        rows: Vec<u64>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let rows = handles(&rows);
        let call = async move { queue.get(&partition, &rows, columns.as_deref()).await };
        Pending::new(call, |py, batches| Ok(Py::new(py, Rows::new(py, batches)?)?.into_any()))
    }

    /// Finds rows by key; the value is a list of key, handle, group and tags as JSON.
    fn find(&self, py: Python<'_>, partition: String, keys: Option<Vec<String>>) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let call = async move { queue.find(&partition, keys.as_deref()).await };
        Pending::new(call, |py, rows| {
            let rows: Vec<(String, u64, String, String)> = rows
                .into_iter()
                .map(|found| (found.key, packed(found.row), found.group, found.tags.to_string()))
                .collect();
            Ok(rows.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Replaces the tags of rows, each as JSON.
    fn set_tags(&self, py: Python<'_>, partition: String, tags: Vec<(u64, String)>) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let read = |(row, tags): &(u64, String)| Ok((handle(*row), options::read::<Value>(tags)?));
        let tags = tags.iter().map(read).collect::<PyResult<Vec<_>>>()?;
        Pending::done(async move { queue.set_tags(&partition, tags).await })
    }

    /// Makes the rows that a task has acked ready again; the value is their number.
    fn reset(&self, py: Python<'_>, partition: String, task: String) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Self::count(async move { queue.reset(&partition, &task).await })
    }

    /// Announces a policy version to a partition.
    fn announce(&self, py: Python<'_>, partition: String, policy_version: u64) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Pending::done(async move { queue.announce(&partition, policy_version).await })
    }

    /// Frees rows.
    fn clear(&self, py: Python<'_>, partition: String, rows: Vec<u64>) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let rows = handles(&rows);
        Pending::done(async move { queue.clear(&partition, &rows).await })
    }

    /// Frees all rows; the value is their number.
    fn clear_all(&self, py: Python<'_>, partition: String) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Self::count(async move { queue.clear_all(&partition).await })
    }

    /// Ends a sample that may have rows in several puts.
    fn end_sample(&self, py: Python<'_>, partition: String, sample: String) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Pending::done(async move { queue.end_sample(&partition, &sample).await })
    }

    /// Closes incomplete groups; the value is JSON.
    fn close_groups(
        &self,
        py: Python<'_>,
        partition: String,
        older_than_s: f64,
        unfinished: &str,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let older_than = options::wait(older_than_s)?.ok_or_else(|| bad("expected an age with an end"))?;
        let unfinished: Unfinished = options::read(&Value::from(unfinished).to_string())?;
        Self::json(async move { queue.close_groups(&partition, older_than, unfinished).await })
    }

    /// Ends the puts.
    fn end_of_puts(&self, py: Python<'_>, partition: String) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Pending::done(async move { queue.end_of_puts(&partition).await })
    }

    /// The counts of a partition as JSON: now, or when it has changed after `revision`, at the latest after
    /// `wait_s`.
    fn status(
        &self,
        py: Python<'_>,
        partition: String,
        revision: Option<u64>,
        wait_s: f64,
    ) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        let wait = options::wait(wait_s)?.ok_or_else(|| bad("expected a wait with an end"))?;
        Self::json(async move {
            match revision {
                Some(revision) => queue.status_after(&partition, revision, wait).await,
                None => queue.status(&partition).await,
            }
        })
    }

    /// The names of the partitions as JSON.
    fn names(&self, py: Python<'_>) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Self::json(async move { queue.names().await })
    }

    /// A description of the queue as JSON.
    fn inspect(&self, py: Python<'_>) -> PyResult<Pending> {
        let queue = self.calls(py)?;
        Self::json(async move { queue.inspect().await })
    }
}
