//! The thread that appends to the journal.

mod moving;
mod rewrite;
mod room;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::frame::{Body, MAGIC, Mark};
use super::journal_path;
use super::length::{Begun, Extent, LengthFile};
use super::reserve::{Reserve, of_file_system};
use crate::config::Durability;
use crate::error::QueueError;
use crate::store::{Appender, ChunkId, Encoded, Note};

pub(crate) use rewrite::{LiveRecords, Sink};

/// The maximum number of entries that wait for the writer. At this number, senders wait.
const ENTRIES_MAX: usize = 4096;
/// The maximum number of entries that are made durable together.
const BATCH_MAX: usize = 1024;

/// Chunks that are written before the records that refer to them.
pub(crate) type Payload = SmallVec<[(ChunkId, Encoded); 1]>;
/// The store's notes of the chunks of an entry's payload, in the same order.
pub(crate) type Notes = SmallVec<[Note; 1]>;
/// Pushes the records of an entry, all into one frame. The function runs on the writer's thread, so it sees
/// all changes in the order of the journal. If it pushes no record, no record refers to the payload. If it
/// fails, no record of the entry is written.
pub(crate) type Facts = Box<dyn FnOnce(&[Note], &mut Body) -> Result<(), QueueError> + Send>;
/// Called when the entry is durable or has failed.
type Done = Box<dyn FnOnce(Result<Notes, QueueError>) + Send>;

/// A change that is to be made durable.
pub(crate) struct Entry {
    /// Whether the change adds data to the queue. Such changes are refused while the disk is full. Other
    /// changes use the journal's reserve.
    pub(crate) adds: bool,
    pub(crate) payload: Payload,
    pub(crate) facts: Facts,
    pub(crate) durability: Durability,
    pub(crate) done: Done,
}

/// An entry that was appended and is not durable yet.
struct Appended {
    adds: bool,
    /// The position of its records in the batch's body.
    records: Range<Mark>,
    chunks: SmallVec<[ChunkId; 1]>,
    notes: Notes,
    outcome: Result<(), QueueError>,
    done: Done,
}

/// Makes an entry that moves a chunk out of a segment that is mostly dead.
pub(crate) type Relocate = Box<dyn Fn(ChunkId) -> Option<Entry> + Send>;

/// The initial state of a journal's writer.
pub(crate) struct Opening<'a> {
    /// The queue's directory.
    pub(crate) dir: &'a Path,
    /// The part of the journal that was read. The rest of the file is cut off.
    pub(crate) begun: Begun,
    /// Writes the payload, if the store has files beside the journal.
    pub(crate) appender: Option<Box<dyn Appender>>,
    /// The minimum size at which the journal is rewritten, in bytes.
    pub(crate) journal_bytes: u64,
    pub(crate) live: LiveRecords,
    pub(crate) relocate: Relocate,
}

/// The sending side of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    sender: Mutex<Option<SyncSender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Starts the writer on a journal, which is truncated to its sound part.
    pub(crate) fn start(opening: Opening<'_>) -> Result<Self, QueueError> {
        let reserve = Reserve::new(opening.dir.join("journal.new"), of_file_system());
        Self::start_with(reserve, opening)
    }

    /// Starts the writer with a reserve that has no blocks yet.
    fn start_with(reserve: Reserve, opening: Opening<'_>) -> Result<Self, QueueError> {
        let dir = opening.dir;
        let mut writer = Writer::begin(reserve, opening)?;
        // A queue on a full disk must open, so that it can be drained.
        let _ = writer.hold_reserve();
        writer.sync_dir()?;
        let (sender, entries) = sync_channel(ENTRIES_MAX);
        let thread = std::thread::Builder::new()
            .name("rolldock-queue".to_owned())
            .spawn(move || writer.run(&entries))
            .map_err(QueueError::io("start the writer", dir))?;
        Ok(Self { sender: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Sends an entry to the writer. Returns the entry as the error if the journal is closed. Waits only if
    /// `ENTRIES_MAX` entries are waiting.
    pub(crate) fn send(&self, entry: Entry) -> Result<(), Entry> {
        let sender = self.sender.lock().clone();
        match sender {
            None => Err(entry),
            Some(sender) => sender.send(entry).map_err(|error| error.0),
        }
    }

    /// Writes all waiting entries and ends the thread.
    pub(crate) fn close(&self) {
        drop(self.sender.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the queue's writer died");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

struct Writer {
    dir: PathBuf,
    /// The directory. It stays open, so that a sync cannot fail because no file descriptor is left.
    dir_file: File,
    path: PathBuf,
    file: File,
    length: u64,
    /// The number of records in the journal.
    records: u64,
    /// The part that is known to be durable.
    synced: Extent,
    noted: LengthFile,
    /// The appender of the store, if this thread writes the store's payload.
    appender: Option<Box<dyn Appender>>,
    journal_bytes: u64,
    live: LiveRecords,
    relocate: Relocate,
    /// Chunks that are still to be moved out of segments that are mostly dead.
    leaving: Vec<ChunkId>,
    /// The length at which the journal is rewritten.
    rewrite_at: u64,
    /// The reason why nothing can be made durable any more.
    failed: Option<QueueError>,
    /// The space for changes that free rows.
    reserve: Reserve,
    /// The length of the last frame. The next frame is expected to have the same length.
    frame_bytes: u64,
    /// The length of the journal when it was last rewritten.
    compacted_bytes: u64,
    /// Whether changes that add data to the queue are refused.
    is_full: bool,
    /// Whether a dead newest segment stays until a put needs its space, because the journal could not be synced.
    keeps_dead: bool,
}

impl Writer {
    /// Opens the journal and makes its sound part durable. A new journal is durable before any other file is
    /// made, because a directory with other files and without a journal is refused.
    fn begin(reserve: Reserve, opening: Opening<'_>) -> Result<Self, QueueError> {
        let Opening { dir, begun, appender, journal_bytes, live, relocate } = opening;
        let path = journal_path(dir);
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = opened.map_err(QueueError::on_disk("open", &path))?;
        let Begun { extent, rewrites } = begun;
        // Setting the length frees the blocks of the reserve, so the length is set only if it changes.
        if file.metadata().map_err(QueueError::io("read", &path))?.len() != extent.bytes {
            file.set_len(extent.bytes).map_err(QueueError::on_disk("truncate", &path))?;
        }
        let is_new = extent.bytes == 0;
        if is_new {
            file.write_all_at(MAGIC, 0).map_err(QueueError::on_disk("write", &path))?;
        }
        file.sync_data().map_err(QueueError::unsynced(&path))?;
        let dir_file = File::open(dir).map_err(QueueError::io("open", dir))?;
        if is_new {
            dir_file.sync_all().map_err(QueueError::unsynced(dir))?;
        }
        let length = extent.bytes.max(MAGIC.len() as u64);
        let extent = Extent { bytes: length, ..extent };
        Ok(Self {
            dir: dir.to_owned(),
            dir_file,
            path,
            file,
            length,
            records: extent.records,
            synced: extent,
            noted: LengthFile::open(dir, extent, rewrites),
            appender,
            journal_bytes,
            live,
            relocate,
            leaving: Vec::new(),
            rewrite_at: journal_bytes.max(length),
            failed: None,
            reserve,
            frame_bytes: 0,
            compacted_bytes: length,
            is_full: false,
            keeps_dead: false,
        })
    }

    fn run(mut self, entries: &Receiver<Entry>) {
        while let Ok(first) = self.next(entries) {
            if first.is_none() && self.leaving.is_empty() {
                self.free_dead();
            }
            let mut batch: Vec<Entry> = first.into_iter().collect();
            batch.extend(entries.try_iter().take(BATCH_MAX - batch.len()));
            self.commit(batch);
            self.move_some();
            if self.length > self.rewrite_at
                && self.failed.is_none()
                && let Err(error) = self.rewrite()
            {
                // The old journal is intact. The next attempt follows after another `journal_bytes`.
                tracing::warn!(%error, "cannot rewrite the journal");
                self.rewrite_at = self.length + self.journal_bytes;
            }
            self.noted.write_if_due();
        }
        match self.sync() {
            Ok(()) => self.synced = self.extent(),
            Err(error) => tracing::error!(%error, "the end of the journal may not be durable"),
        }
        self.noted.say(self.extent(), self.synced);
        self.noted.close();
    }

    /// Waits for the next entry. Returns `None` if there is other work, and an error if no more entries can
    /// arrive.
    fn next(&self, entries: &Receiver<Entry>) -> Result<Option<Entry>, RecvError> {
        // While chunks wait to be moved, the thread does not wait for entries.
        let limit = if self.leaving.is_empty() { self.idle_limit() } else { Some(Duration::ZERO) };
        let Some(limit) = limit else { return entries.recv().map(Some) };
        match entries.recv_timeout(limit) {
            Ok(entry) => Ok(Some(entry)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RecvError),
        }
    }

    /// Everything that was written.
    fn extent(&self) -> Extent {
        Extent { bytes: self.length, records: self.records }
    }

    fn commit(&mut self, batch: Vec<Entry>) {
        let full = self.prepare(batch.iter().any(|entry| entry.adds)).err();
        let mut body = Body::default();
        // One sync makes all entries of the batch durable.
        let synced = batch.iter().any(|entry| entry.durability == Durability::Fsync);
        let append = |entry: Entry| match &full {
            Some(full) if entry.adds => Appended::refused(entry, full.clone()),
            _ => self.append_entry(entry, &mut body),
        };
        let mut appended: Vec<Appended> = batch.into_iter().map(append).collect();
        let body = self.fit(body, &mut appended);
        let durable = self.make_durable(body, synced);
        for Appended { chunks, notes, outcome, done, .. } in appended {
            done(outcome.and_then(|()| durable.clone()).map(|()| notes));
            if let Some(appender) = &mut self.appender {
                chunks.iter().for_each(|chunk| appender.settle(*chunk));
            }
        }
    }

    /// Appends the payload of an entry, and its records to `body`. After an error, `body` contains no record
    /// of the entry.
    fn append_entry(&mut self, entry: Entry, body: &mut Body) -> Appended {
        let Entry { adds, payload, facts, done, .. } = entry;
        let (mut chunks, mut notes) = (SmallVec::new(), Notes::new());
        let appended = payload.iter().try_for_each(|(chunk, rows)| {
            notes.push(self.append_chunk(*chunk, rows)?);
            chunks.push(*chunk);
            Ok(())
        });
        let before = body.mark();
        let outcome = appended.and_then(|()| facts(&notes, body));
        if outcome.is_err() {
            body.cut_to(before);
        }
        Appended { adds, records: before..body.mark(), chunks, notes, outcome, done }
    }

    fn append_chunk(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError> {
        let none = || QueueError::BadRequest {
            reason: format!("chunk={} is to be written by a journal whose store appends nothing", chunk.0),
        };
        let appender = self.appender.as_mut().ok_or_else(none)?;
        match appender.append(chunk, rows) {
            Err(QueueError::DiskFull { .. }) if appender.make_room() => appender.append(chunk, rows),
            outcome => outcome,
        }
    }

    /// Writes the payload first, so that a record never refers to missing bytes.
    fn make_durable(&mut self, body: Body, synced: bool) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let records = body.records();
        let frame = body.into_frame()?;
        if frame.is_empty() {
            // The payload becomes durable with the first record that refers to it.
            return Ok(());
        }
        if synced && let Some(appender) = &mut self.appender {
            appender.sync()?;
        }
        let sound = self.length;
        self.append(&frame)?;
        if synced && let Err(error) = self.sync() {
            // The content of the disk is now unknown. The failed record must not reappear, and no record may
            // follow it.
            self.cut_to(sound);
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.records += records;
        if synced {
            self.synced = self.extent();
        }
        self.noted.say(self.extent(), self.synced);
        Ok(())
    }

    /// Appends all bytes or none: half a frame would hide every later frame.
    fn append(&mut self, bytes: &[u8]) -> Result<(), QueueError> {
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            self.cut_to(self.length);
            return Err(QueueError::on_disk("write", &self.path)(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the journal to `length`. If that fails, the journal accepts no more entries.
    fn cut_to(&mut self, length: u64) {
        self.length = length;
        self.reserve.was_cut(length);
        if let Err(error) = self.file.set_len(length) {
            self.failed = Some(QueueError::io("truncate", &self.path)(error));
        }
    }

    fn sync(&self) -> Result<(), QueueError> {
        self.file.sync_data().map_err(QueueError::unsynced(&self.path))
    }

    fn sync_dir(&self) -> Result<(), QueueError> {
        self.dir_file.sync_all().map_err(QueueError::unsynced(&self.dir))
    }
}
