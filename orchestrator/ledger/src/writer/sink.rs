//! The files that the writer writes.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Item;
use crate::codec::{Encoder, encode};
use crate::frame::FORMAT;
use crate::tokens::TokenFiles;
use crate::{LedgerError, LedgerState, LogEnd, Next, Record, ledger_file, read_log};

/// Whether a process has the ledger of the run in `dir` open for writing, which means that the run is in
/// progress. Takes a shared lock for a moment. Blocks.
///
/// # Errors
/// [`LedgerError::NoLedger`] if there is no ledger, and [`LedgerError::Io`].
pub fn is_being_written(dir: &Path) -> Result<bool, LedgerError> {
    let path = ledger_file(dir);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(LedgerError::NoLedger { dir: dir.to_owned() });
        }
        Err(error) => return Err(LedgerError::io("open", &path)(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(LedgerError::io("lock", &path)(error)),
    }
}

/// Checks that no process has the ledger of the run in `dir` open for writing. A directory without a ledger is free.
/// Blocks.
///
/// # Errors
/// [`LedgerError::InUse`] and [`LedgerError::Io`].
pub fn check_unused(dir: &Path) -> Result<(), LedgerError> {
    match is_being_written(dir) {
        Ok(true) => Err(in_use(dir)),
        Ok(false) | Err(LedgerError::NoLedger { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The error of a ledger that another process writes. Until that process has written its first record, the error does
/// not name it.
fn in_use(dir: &Path) -> LedgerError {
    let mut last = None;
    // The lock alone shows that the ledger is in use. The name of the process is only for the message.
    let _ = read_log(dir, |_, record| {
        if let Record::Life(life) = record {
            last = Some(life.pid);
        }
        Ok(())
    });
    let lives = |pid: &u32| {
        let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    };
    let owner = last.filter(lives).map_or("another process".to_owned(), |pid| format!("process {pid}"));
    LedgerError::InUse { file: ledger_file(dir), owner }
}

/// How often a lock is tried, and the time between two tries. [`is_being_written`] of another process holds its lock for
/// microseconds.
const LOCK_TRIES: u32 = 20;
const LOCK_AGAIN: Duration = Duration::from_millis(10);

#[expect(clippy::disallowed_methods, reason = "the ledger is opened where a thread may block")]
fn lock(file: &File, dir: &Path) -> Result<(), LedgerError> {
    for tried in 1..=LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if tried < LOCK_TRIES => std::thread::sleep(LOCK_AGAIN),
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(LedgerError::io("lock", &ledger_file(dir))(error)),
        }
    }
    Err(in_use(dir))
}

/// Writes batches of records. A batch is in the log completely or not at all.
#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    /// The log, which is locked while it is open. The system releases the lock when the process ends.
    file: File,
    length: u64,
    tokens: TokenFiles,
    /// Whether each batch is synced before it is acknowledged.
    fsync: bool,
    /// The state after all written records. The next record must not contradict it.
    state: LedgerState,
    /// The step whose file receives new tokens.
    step: u64,
    failed: Option<LedgerError>,
}

impl Sink {
    /// Opens or creates the log and cuts off an unfinished last write. Returns the sink, the state and the
    /// number of bytes that were cut off. Refuses a directory that has files of tokens but no log.
    pub(super) fn open(dir: &Path, fsync: bool) -> Result<(Self, LedgerState, u64), LedgerError> {
        std::fs::create_dir_all(dir).map_err(LedgerError::io("make", dir))?;
        let path = ledger_file(dir);
        let tokens = TokenFiles::open(dir)?;
        // A log that ends within its magic bytes has no record, so it names no tokens.
        let is_new = path.metadata().map_or(true, |log| log.len() < FORMAT.magic.len() as u64);
        if let Some(found) = tokens.any().filter(|_| is_new) {
            return Err(LedgerError::Lost { file: path, found });
        }
        let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let file = opened.map_err(LedgerError::io("open", &path))?;
        lock(&file, dir)?;
        let (state, LogEnd { sound_bytes, torn_bytes }) = LedgerState::read(dir)?;
        if torn_bytes > 0 {
            tracing::warn!(file = %path.display(), torn_bytes, "the last write was not finished; it is cut off");
            file.set_len(sound_bytes).map_err(LedgerError::io("truncate", &path))?;
        }
        let step = state.steps().last_key_value().map_or(0, |(step, _)| *step);
        let mut sink =
            Self { path, file, length: sound_bytes, tokens, fsync, state: state.clone(), step, failed: None };
        if sink.length == 0 {
            sink.append(FORMAT.magic)?;
        }
        if fsync {
            sink.sync()?;
            let synced = File::open(dir).and_then(|dir| dir.sync_all());
            synced.map_err(LedgerError::io("sync", dir))?;
        }
        Ok((sink, state, torn_bytes))
    }

    /// Writes a batch. A write on a full disk is repeated while `waits`, which gets the error and blocks until the next
    /// try, returns `true`. After an error, every later call returns this error.
    pub(super) fn commit(
        &mut self,
        items: Vec<Item>,
        mut waits: impl FnMut(&LedgerError) -> bool,
    ) -> Result<(), LedgerError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let written = self.write(items, &mut waits);
        self.failed = written.clone().err();
        written
    }

    fn write(
        &mut self,
        items: Vec<Item>,
        waits: &mut impl FnMut(&LedgerError) -> bool,
    ) -> Result<(), LedgerError> {
        let mut body = Encoder::default();
        for item in items {
            let record = self.record_of(item, waits)?;
            self.state.apply(&record)?;
            if let Record::Step(step) = &record {
                self.step = step.step;
            }
            encode(&record, &mut body);
        }
        if body.0.is_empty() {
            return Ok(());
        }
        let frame = FORMAT.frame(&body.0).map_err(|error| {
            let reason = error.to_string();
            LedgerError::Io { action: "write", file: self.path.clone(), reason }
        })?;
        if self.fsync {
            // Tokens are synced before the log, which must never name tokens that are not on disk.
            self.tokens.sync()?;
        }
        let sound = self.length;
        repeat(waits, || self.append(&frame))?;
        if self.fsync
            && let Err(error) = self.sync()
        {
            // The state of the disk is unknown now. A record that was not acknowledged must not be read
            // later.
            let _ = self.file.set_len(sound);
            return Err(error);
        }
        let state = &self.state;
        self.tokens.delete_unused(self.step, |file| state.needs_tokens_of(file));
        Ok(())
    }

    /// Writes the tokens of a group that continues, and returns the record that names their place.
    fn record_of(
        &mut self,
        item: Item,
        waits: &mut impl FnMut(&LedgerError) -> bool,
    ) -> Result<Record, LedgerError> {
        match item {
            Item::Record(record) => Ok(record),
            Item::Carried { id, fate, group } => {
                let place = repeat(waits, || self.tokens.append(self.step, &group))?;
                Ok(Record::End { id, fate, next: Next::From(place) })
            }
        }
    }

    /// Appends all of `bytes` or none of them, because half a frame would hide all later frames.
    fn append(&mut self, bytes: &[u8]) -> Result<(), LedgerError> {
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            // If this fails too, the next open cuts off the rest of the frame.
            let _ = self.file.set_len(self.length);
            return Err(LedgerError::io("write", &self.path)(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<(), LedgerError> {
        self.file.sync_data().map_err(LedgerError::io("sync", &self.path))
    }
}

/// Calls `write` again while the disk is full and `waits` returns `true`. A `write` that fails has written nothing.
pub(super) fn repeat<T>(
    waits: &mut impl FnMut(&LedgerError) -> bool,
    mut write: impl FnMut() -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    loop {
        match write() {
            Err(full @ LedgerError::DiskFull { .. }) if waits(&full) => {}
            outcome => return outcome,
        }
    }
}
