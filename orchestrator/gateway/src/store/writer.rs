//! The writers of records: the thread of the log, and callers that find the file free.
//!
//! Handing a record to another thread costs more than writing a few kilobytes to the page cache. Therefore, if no
//! fsync is asked for ([`Shared::writes_at_once`]) and no other thread holds the file, a caller writes the waiting
//! records itself. Otherwise the log's thread writes them, together with the records that arrive meanwhile. Only the
//! log's thread rewrites and syncs the file.
//!
//! # Invariants
//! - Records are taken from [`Gathered`] only under the lock of the file, so the file has them in the order
//!   in which they were appended.
//! - After each append the records are either written, or the thread is woken for them.

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::file::{LogFile, Sizes, put_entry};
use super::{Entry, Forgotten, Sequence, StoreError, WAITING_BYTES_MAX};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) gathered: Mutex<Gathered>,
    /// Wakes the thread when there is work for it, or when the log is closed.
    pub(super) work: Condvar,
    pub(super) progress: watch::Sender<Written>,
    /// The file, until the log is closed. It is locked before `gathered`.
    writer: Mutex<Option<Writer>>,
    writes_at_once: bool,
}

#[derive(Debug)]
struct Writer {
    file: LogFile,
    /// After an error nothing more is written.
    failed: Option<StoreError>,
}

/// The records that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The body of the next frame.
    body: Vec<u8>,
    /// Records appended so far.
    appended: u64,
    /// Trajectories whose records may still be in the file, but need not be kept.
    pub(super) forgotten: Forgotten,
    /// Whether the thread shall rewrite the file.
    is_due: bool,
    pub(super) is_closed: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    /// Records that are as durable as the log is configured.
    pub(super) records: u64,
    /// Whether more than `WAITING_BYTES_MAX` bytes wait. Callers then wait for the thread, whatever the
    /// durability.
    pub(super) is_behind: bool,
    pub(super) failed: Option<StoreError>,
    pub(super) sizes: Sizes,
}

impl Shared {
    /// Without a file, nothing is ever written.
    pub(super) fn new(file: Option<LogFile>, writes_at_once: bool) -> Self {
        Self {
            gathered: Mutex::new(Gathered::default()),
            work: Condvar::new(),
            progress: watch::Sender::new(Written::default()),
            writer: Mutex::new(file.map(|file| Writer { file, failed: None })),
            writes_at_once,
        }
    }

    pub(super) fn append(&self, entries: &[Entry<'_>]) -> Sequence {
        let mut gathered = self.gathered.lock();
        entries.iter().for_each(|entry| put_entry(&mut gathered.body, *entry));
        gathered.appended += entries.len() as u64;
        let sequence = Sequence(gathered.appended);
        let is_behind = gathered.body.len() > WAITING_BYTES_MAX;
        drop(gathered);
        if is_behind {
            self.progress.send_if_modified(|written| !std::mem::replace(&mut written.is_behind, true));
        }
        if !self.writes_at_once || !self.write_at_once() {
            self.work.notify_one();
        }
        sequence
    }

    /// Writes the waiting records, if no thread holds the file and the file is not due for a rewrite. Returns `true`
    /// if the log's thread has nothing to do.
    fn write_at_once(&self) -> bool {
        let Some(mut guard) = self.writer.try_lock() else { return false };
        let Some(writer) = guard.as_mut().filter(|writer| !writer.is_due()) else { return false };
        self.write(writer);
        let is_due = writer.is_due();
        if is_due {
            self.gathered.lock().is_due = true;
        }
        !is_due
    }

    /// The loop of the log's thread. It writes until the log is closed.
    pub(super) fn run(&self) {
        loop {
            let is_closed = self.wait();
            let mut guard = self.writer.lock();
            let Some(writer) = guard.as_mut() else { break };
            self.write(writer);
            if writer.is_due() {
                self.rewrite(&mut writer.file);
                self.report(None, writer);
            }
            if is_closed {
                *guard = None;
                break;
            }
        }
        self.progress.send_modify(|written| {
            written.failed.get_or_insert(StoreError::Closed);
        });
    }

    /// Waits for work of the thread. Returns whether the log is closed.
    fn wait(&self) -> bool {
        let mut gathered = self.gathered.lock();
        while gathered.body.is_empty() && !gathered.is_due && !gathered.is_closed {
            self.work.wait(&mut gathered);
        }
        gathered.is_due = false;
        gathered.is_closed
    }

    /// Writes the records that wait. After an error this only reports the error.
    fn write(&self, writer: &mut Writer) {
        let (body, appended) = {
            let mut gathered = self.gathered.lock();
            (std::mem::take(&mut gathered.body), gathered.appended)
        };
        if body.is_empty() {
            return;
        }
        if writer.failed.is_none() {
            writer.failed = writer.file.append(&body).err();
        }
        self.report(Some(appended), writer);
    }

    /// Rewrites the file without the forgotten trajectories, and then forgets their numbers too.
    fn rewrite(&self, file: &mut LogFile) {
        let forgotten = std::mem::take(&mut self.gathered.lock().forgotten);
        if let Err(error) = file.rewrite(&forgotten) {
            // The old file is complete, so only its size is a problem.
            tracing::warn!(%error, "the log of trajectories keeps its old records");
            file.put_off();
            self.gathered.lock().forgotten.extend(forgotten);
        }
    }

    /// Tells waiting callers which records are written. `appended` counts the records that were just written.
    fn report(&self, appended: Option<u64>, writer: &Writer) {
        self.progress.send_modify(|written| {
            match &writer.failed {
                None => written.records = appended.unwrap_or(written.records),
                Some(error) => written.failed = Some(error.clone()),
            }
            written.is_behind = false;
            written.sizes = writer.file.sizes();
        });
    }
}

impl Writer {
    /// Whether the file should be rewritten.
    fn is_due(&self) -> bool {
        self.failed.is_none() && self.file.is_due()
    }
}
