//! The writer of the ledger.
//!
//! [`LedgerWriter::append`] is called under the board's lock: it queues a record and returns. A thread takes
//! all queued records, writes them as one frame and, if configured, syncs the frame (group commit). The
//! writer is a thread and not a task: a caller of `append` that waits for the writer blocks its executor, and
//! a task on this executor could not run. The writer does not use the blocking pool, which is for short work.
//!
//! # Invariants
//! - Records are written in the order of the calls.
//! - A write that fails because the disk is full is repeated for the configured time.
//! - After a failed write, nothing more is written, and later records are dropped and never acknowledged.
//! - Waiting records are bounded by number and bytes. A caller of `append` waits only when this bound is
//!   reached, and not while the disk is full: a signal that ends the run must not wait for the disk. Until the disk has
//!   room no step ends, so the open groups of the run bound the records.

mod full_disk;
mod sink;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rolldock_dispatch::{DispatchId, Fate};
use tokio::sync::watch;

use super::{KeptGroup, LedgerError, LedgerState, Record};

use sink::Sink;

pub use sink::{check_unused, is_being_written};

/// Maximum number of records that wait for the writer's thread.
const RECORDS_MAX: usize = 8192;
/// Maximum bytes of tokens that wait for the writer's thread. A single group may have more.
const TOKENS_BYTES_MAX: usize = 256 << 20;
/// How long the thread waits for more records while no caller waits for a sync.
const GATHER: Duration = Duration::from_millis(20);

/// Configuration of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Whether a record survives a loss of power once [`LedgerWriter::sync`] has returned. If `false`, a
    /// record survives only the end of the process. A restart fails if the queue has a dispatch that is not
    /// in the ledger.
    pub fsync: bool,
    /// Whether records are written in the call that appends them, without a thread. Virtual time needs this,
    /// because the speed of a thread would change the results.
    pub inline: bool,
    /// How long the thread waits until a full disk has room. After this time, and in the inline writer at once, the
    /// full disk is an error like any other.
    pub full_disk_wait: Duration,
}

/// The position of a record in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(u64);

/// A ledger that is open for writing, and its state.
#[derive(Debug)]
pub struct Opened {
    /// The writer.
    pub writer: LedgerWriter,
    /// The state of the run. It has no [run](LedgerState::run) if the ledger is new.
    pub state: LedgerState,
    /// Bytes of an unfinished last write that were cut off.
    pub torn_bytes: u64,
}

/// Appends records to the ledger. Clones write to one ledger, which is closed with the last clone.
///
/// ```
/// use rolldock_dispatch::{DispatchId, Fate, PromptUid};
/// use rolldock_ledger::{
///     DispatchRecord, FORMAT, LedgerConfig, LedgerState, LedgerWriter, LifeRecord, Record, RunRecord,
///     StepRecord,
/// };
///
/// # use std::time::Duration;
/// # let folder = tempfile::tempdir()?;
/// let config = LedgerConfig { fsync: false, inline: false, full_disk_wait: Duration::ZERO };
/// let opened = LedgerWriter::open(folder.path(), config)?;
/// assert!(opened.state.run().is_none(), "the ledger is new");
/// let ledger = opened.writer;
/// ledger.append(Record::Run(RunRecord { run_id: "run-1".to_owned(), started_s: 0, format: FORMAT }));
/// ledger.append(Record::Life(LifeRecord { number: 1, pid: 1, started_s: 0 }));
/// ledger.append(Record::Step(StepRecord { step: 1, target: 2, policy_version: 0 }));
/// for number in 0..2 {
///     ledger.append(Record::Dispatch(DispatchRecord {
///         id: DispatchId(number),
///         number,
///         parent: None,
///         prompt_uid: PromptUid(number),
///         row: number,
///         visit: 0,
///         step: 1,
///         policy_version: 0,
///         first_attempt: 0,
///         returns: 0,
///         drawn_to: None,
///         chance: None,
///     }));
/// }
/// ledger.append(Record::end(DispatchId(0), Fate::Accepted));
/// ledger.close()?;
///
/// // After a restart, the fold of the records says where the run is.
/// let (state, _) = LedgerState::read(folder.path())?;
/// assert_eq!((state.totals().accepted, state.totals().in_flight), (1, 1));
/// assert_eq!(state.next_dispatch(), DispatchId(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LedgerWriter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The file, if records are written inline. It is `None` after the writer was closed.
    inline: Option<Mutex<Option<Sink>>>,
}

#[derive(Debug)]
struct Shared {
    gathered: Mutex<Gathered>,
    /// Wakes the thread when there are records to write, when a caller waits, or when the writer is closed.
    work: Condvar,
    /// Wakes callers when the thread has taken the waiting records.
    room: Condvar,
    progress: watch::Sender<Written>,
}

/// The records that wait for the thread.
#[derive(Debug, Default)]
struct Gathered {
    items: Vec<Item>,
    tokens_bytes: usize,
    /// Records appended so far.
    appended: u64,
    /// The last record that a caller waits for.
    wanted: u64,
    is_closed: bool,
    has_failed: bool,
    /// The error of the write that the thread repeats until the disk has room.
    full_disk: Option<LedgerError>,
    /// Whether the thread no longer waits for room on a full disk.
    is_hurried: bool,
}

/// A waiting record.
#[derive(Debug)]
enum Item {
    Record(Record),
    /// The end of a dispatch, with tokens whose place the record will name.
    Carried {
        id: DispatchId,
        fate: Fate,
        group: Box<KeptGroup>,
    },
}

#[derive(Debug, Clone, Default)]
struct Written {
    /// Number of records that are as durable as the configuration asks for.
    written: u64,
    failed: Option<LedgerError>,
}

impl LedgerWriter {
    /// Opens the ledger in a run's directory, or creates one. Blocks while it reads the existing ledger.
    ///
    /// # Errors
    /// [`LedgerError::InUse`] while another process has it open, [`LedgerError::Io`], and the errors of
    /// [`LedgerState::read`].
    pub fn open(dir: &Path, config: LedgerConfig) -> Result<Opened, LedgerError> {
        let (sink, state, torn_bytes) = Sink::open(dir, config.fsync)?;
        let shared = Arc::new(Shared {
            gathered: Mutex::new(Gathered::default()),
            work: Condvar::new(),
            room: Condvar::new(),
            progress: watch::Sender::new(Written::default()),
        });
        let (thread, inline) = if config.inline {
            (None, Some(Mutex::new(Some(sink))))
        } else {
            let of_thread = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("rolldock-ledger".to_owned())
                .spawn(move || of_thread.write(sink, config.full_disk_wait))
                .map_err(LedgerError::io("start the writer of", dir))?;
            (Some(thread), None)
        };
        let inner = Arc::new(Inner { shared, thread: Mutex::new(thread), inline });
        Ok(Opened { writer: Self { inner }, state, torn_bytes })
    }

    /// Appends a record. The call is cheap: it only queues the record. An inline writer also encodes and
    /// writes the record in this call.
    pub fn append(&self, record: Record) -> Sequence {
        self.push(Item::Record(record))
    }

    /// Ends a dispatch as carried or held and keeps its samples. They are written to the step's file of
    /// tokens, and the record of the end names their place.
    pub fn append_carried(&self, id: DispatchId, fate: Fate, group: Box<KeptGroup>) -> Sequence {
        self.push(Item::Carried { id, fate, group })
    }

    fn push(&self, item: Item) -> Sequence {
        let Some(sink) = &self.inner.inline else { return self.inner.shared.push(item) };
        let mut gathered = self.inner.shared.gathered.lock();
        gathered.appended += 1;
        let sequence = Sequence(gathered.appended);
        if !gathered.is_closed && !gathered.has_failed {
            let written = sink
                .lock()
                .as_mut()
                .map_or(Err(LedgerError::Closed), |sink| sink.commit(vec![item], |_| false));
            gathered.has_failed = written.is_err();
            self.inner.shared.report(sequence.0, written);
        }
        sequence
    }

    /// Waits until a record and all earlier ones are as durable as the configuration asks for. Cancel-safe.
    ///
    /// # Errors
    /// The error of the write of this record or of an earlier one. Calls for later records return it too.
    pub async fn sync(&self, up_to: Sequence) -> Result<(), LedgerError> {
        let shared = &self.inner.shared;
        let mut progress = shared.progress.subscribe();
        {
            let mut gathered = shared.gathered.lock();
            if gathered.wanted < up_to.0 {
                gathered.wanted = up_to.0;
                shared.work.notify_one();
            }
        }
        let is_there = |progress: &Written| progress.written >= up_to.0 || progress.failed.is_some();
        let reached = progress.wait_for(is_there).await.map_err(|_closed| LedgerError::Closed)?;
        if reached.written >= up_to.0 {
            return Ok(());
        }
        Err(reached.failed.clone().unwrap_or(LedgerError::Closed))
    }

    /// Waits until all appended records are as durable as the configuration asks for. Cancel-safe.
    pub async fn sync_all(&self) -> Result<(), LedgerError> {
        let last = Sequence(self.inner.shared.gathered.lock().appended);
        self.sync(last).await
    }

    /// Makes a full disk an error from now on, also for a write that waits for room.
    pub fn stop_waiting(&self) {
        self.inner.shared.gathered.lock().is_hurried = true;
        self.inner.shared.work.notify_one();
    }

    /// The error of the write that is repeated now, until its disk has room. `None` if the writer does not wait.
    pub fn full_disk(&self) -> Option<LedgerError> {
        self.inner.shared.gathered.lock().full_disk.clone()
    }

    /// The error that stopped the writer, if there is one.
    pub fn error(&self) -> Option<LedgerError> {
        self.inner.shared.progress.borrow().failed.clone()
    }

    /// Waits until a write fails or the writer is closed, and returns the error. Cancel-safe.
    pub async fn failed(&self) -> LedgerError {
        let mut progress = self.inner.shared.progress.subscribe();
        let failed = progress.wait_for(|progress| progress.failed.is_some()).await;
        failed.ok().and_then(|progress| progress.failed.clone()).unwrap_or(LedgerError::Closed)
    }

    /// Writes the waiting records and closes the writer for all clones. Blocks until this is done.
    ///
    /// # Errors
    /// The errors of [`LedgerWriter::sync`] for the last record.
    pub fn close(&self) -> Result<(), LedgerError> {
        self.inner.close();
        let appended = self.inner.shared.gathered.lock().appended;
        let progress = self.inner.shared.progress.borrow();
        if progress.written >= appended {
            return Ok(());
        }
        Err(progress.failed.clone().unwrap_or(LedgerError::Closed))
    }
}

impl Inner {
    fn close(&self) {
        self.shared.gathered.lock().is_closed = true;
        self.shared.work.notify_one();
        self.shared.room.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the ledger's writer died");
        }
        self.shared.end();
        if let Some(sink) = &self.inline {
            // This also releases the lock on the file.
            drop(sink.lock().take());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn push(&self, item: Item) -> Sequence {
        let bytes = match &item {
            Item::Record(_) => 0,
            Item::Carried { group, .. } => group.bytes(),
        };
        let mut gathered = self.gathered.lock();
        while !gathered.has_room(bytes) {
            self.room.wait(&mut gathered);
        }
        gathered.appended += 1;
        let sequence = Sequence(gathered.appended);
        if !gathered.is_closed && !gathered.has_failed {
            gathered.items.push(item);
            gathered.tokens_bytes += bytes;
            if gathered.items.len() == 1 || gathered.is_much() {
                self.work.notify_one();
            }
        }
        sequence
    }

    /// The loop of the thread.
    fn write(&self, mut sink: Sink, full_disk_wait: Duration) {
        // However the thread ends, this releases callers that wait for it.
        let _ended = Ended(self);
        while let Some((items, last)) = self.next_batch() {
            let written = self.commit(&mut sink, items, full_disk_wait);
            let has_failed = written.is_err();
            self.report(last, written);
            if has_failed {
                return;
            }
        }
    }

    /// Stops the writer: nothing more is written, and every wait ends.
    fn end(&self) {
        let mut gathered = self.gathered.lock();
        gathered.has_failed = true;
        gathered.items.clear();
        gathered.tokens_bytes = 0;
        self.room.notify_all();
        drop(gathered);
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert(LedgerError::Closed);
        });
    }

    fn report(&self, last: u64, written: Result<(), LedgerError>) {
        self.progress.send_modify(|progress| match written {
            Ok(()) => progress.written = last,
            Err(error) => {
                tracing::error!(%error, "the ledger cannot be written; no more groups are accepted");
                progress.failed = Some(error);
            }
        });
    }

    /// Waits for records to write; `None` once the writer is closed and all records are taken.
    fn next_batch(&self) -> Option<(Vec<Item>, u64)> {
        let mut gathered = self.gathered.lock();
        while gathered.items.is_empty() {
            if gathered.is_closed {
                return None;
            }
            self.work.wait(&mut gathered);
        }
        let written = self.progress.borrow().written;
        while gathered.may_gather(written) {
            if self.work.wait_for(&mut gathered, GATHER).timed_out() {
                break;
            }
        }
        gathered.tokens_bytes = 0;
        let batch = (std::mem::take(&mut gathered.items), gathered.appended);
        self.room.notify_all();
        Some(batch)
    }
}

impl Gathered {
    fn has_room(&self, bytes: usize) -> bool {
        let fits = self.items.len() < RECORDS_MAX && self.tokens_bytes + bytes <= TOKENS_BYTES_MAX;
        self.items.is_empty() || fits || self.is_closed || self.has_failed || self.full_disk.is_some()
    }

    /// Whether the thread may wait for more records: no caller waits, and not many records have gathered.
    fn may_gather(&self, written: u64) -> bool {
        self.wanted <= written && !self.is_closed && !self.is_much()
    }

    fn is_much(&self) -> bool {
        self.items.len() >= RECORDS_MAX / 2 || self.tokens_bytes >= TOKENS_BYTES_MAX / 2
    }
}

/// Ends all waits when the thread ends.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
