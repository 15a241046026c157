//! The thread that writes records, and what callers share with it.

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::file::{LogFile, Sizes, put_entry};
use super::{Entry, Forgotten, Sequence, StoreError, WAITING_BYTES_MAX};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) gathered: Mutex<Gathered>,
    /// Wakes the thread when there are records, or when the log is closed.
    pub(super) work: Condvar,
    pub(super) progress: watch::Sender<Written>,
}

/// The records that wait for the thread.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The body of the next frame.
    body: Vec<u8>,
    /// Records appended so far.
    appended: u64,
    /// Trajectories that the file may have and that need not be kept.
    pub(super) forgotten: Forgotten,
    pub(super) is_closed: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    /// Records that are as durable as the log is configured.
    pub(super) records: u64,
    /// Whether so much waits that callers wait for the thread, whatever the durability.
    pub(super) is_behind: bool,
    pub(super) failed: Option<StoreError>,
    pub(super) sizes: Sizes,
}

impl Shared {
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
        self.work.notify_one();
        sequence
    }

    /// Writes until the log is closed. After an error it only reports.
    pub(super) fn run(&self, mut file: LogFile) {
        let mut failed: Option<StoreError> = None;
        loop {
            let (body, appended, is_closed) = self.next();
            if !body.is_empty() {
                let written = failed.clone().map_or_else(|| file.append(&body), Err);
                failed = written.err();
                self.report(appended, failed.as_ref(), file.sizes());
            }
            if failed.is_none() && file.is_due() {
                self.rewrite(&mut file);
                self.report(appended, None, file.sizes());
            }
            if is_closed {
                break;
            }
        }
        self.progress.send_modify(|written| {
            written.failed.get_or_insert(StoreError::Closed);
        });
    }

    /// Rewrites the file. Its trajectories that were forgotten are then gone, so nothing remembers them any more.
    fn rewrite(&self, file: &mut LogFile) {
        let forgotten = std::mem::take(&mut self.gathered.lock().forgotten);
        if let Err(error) = file.rewrite(&forgotten) {
            // The old file is complete, so only its size is a problem.
            tracing::warn!(%error, "the log of trajectories keeps its old records");
            file.put_off();
            self.gathered.lock().forgotten.extend(forgotten);
        }
    }

    /// Waits for records. Returns them, the number of the last one, and whether the log is closed.
    fn next(&self) -> (Vec<u8>, u64, bool) {
        let mut gathered = self.gathered.lock();
        while gathered.body.is_empty() && !gathered.is_closed {
            self.work.wait(&mut gathered);
        }
        (std::mem::take(&mut gathered.body), gathered.appended, gathered.is_closed)
    }

    fn report(&self, appended: u64, failed: Option<&StoreError>, sizes: Sizes) {
        self.progress.send_modify(|written| {
            match failed {
                None => written.records = appended,
                Some(error) => written.failed = Some(error.clone()),
            }
            written.is_behind = false;
            written.sizes = sizes;
        });
    }
}
