//! The thread that appends to the journal.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde::Serialize;
use smallvec::SmallVec;

use super::frame::{Body, MAGIC};
use super::journal_path;
use crate::config::Durability;
use crate::error::QueueError;
use crate::store::{Appender, ChunkId, Encoded, Note};

/// The maximum number of entries that wait for the writer. A sender waits when it is reached.
const ENTRIES_MAX: usize = 4096;
/// The maximum number of entries that are made durable together.
const BATCH_MAX: usize = 1024;
/// The bytes of payload that are moved at a time.
const MOVED_BYTES_MAX: u64 = 4 << 20;
/// The approximate size of the frames of a rewritten journal, in bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Chunks that are written before the records that refer to them.
pub(crate) type Payload = SmallVec<[(ChunkId, Encoded); 1]>;
/// The store's notes of the chunks of an entry's payload, in the same order.
pub(crate) type Notes = SmallVec<[Note; 1]>;
/// Pushes the records of an entry, all into one frame. It runs on the writer's thread, so it sees all changes
/// in the order of the journal. If it pushes no record, the payload stays without one. If it fails, no record
/// of the entry is written.
pub(crate) type Facts = Box<dyn FnOnce(&[Note], &mut Body) -> Result<(), QueueError> + Send>;
/// Called when the entry is durable or has failed.
type Done = Box<dyn FnOnce(Result<Notes, QueueError>) + Send>;

/// A change that is to be made durable.
pub(crate) struct Entry {
    pub(crate) payload: Payload,
    pub(crate) facts: Facts,
    pub(crate) durability: Durability,
    pub(crate) done: Done,
}

/// An entry that was appended and is not durable yet.
struct Appended {
    chunks: SmallVec<[ChunkId; 1]>,
    notes: Notes,
    outcome: Result<(), QueueError>,
    done: Done,
}

/// Receives records one after the other, until one cannot be written.
pub(crate) struct Sink<'a> {
    body: Body,
    write: &'a mut dyn FnMut(&[u8]) -> Result<(), QueueError>,
}

impl Sink<'_> {
    /// Adds the next record.
    pub(crate) fn push(&mut self, record: &impl Serialize) -> Result<(), QueueError> {
        self.body.push(record)?;
        if self.body.len() > FRAME_BYTES {
            (self.write)(&std::mem::take(&mut self.body).into_frame()?)?;
        }
        Ok(())
    }
}

/// Pushes all live data as records, to which the journal is rewritten. It runs on the writer's thread, so the
/// data does not change meanwhile.
pub(crate) type LiveRecords = Box<dyn Fn(&mut Sink<'_>) -> Result<(), QueueError> + Send>;

/// Makes an entry that moves a chunk out of a segment that is mostly dead.
pub(crate) type Relocate = Box<dyn Fn(ChunkId) -> Option<Entry> + Send>;

/// The sending side of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    sender: Mutex<Option<SyncSender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Starts the writer on a journal. The journal is truncated to its sound part, the first `length` bytes.
    pub(crate) fn start(
        dir: &Path,
        length: u64,
        appender: Option<Box<dyn Appender>>,
        journal_bytes: u64,
        live: LiveRecords,
        relocate: Relocate,
    ) -> Result<Self, QueueError> {
        let path = journal_path(dir);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(QueueError::io("open", &path))?;
        file.set_len(length).map_err(QueueError::io("truncate", &path))?;
        let mut writer = Writer {
            dir: dir.to_owned(),
            path,
            file,
            length,
            appender,
            journal_bytes,
            live,
            relocate,
            leaving: Vec::new(),
            rewrite_at: 0,
            failed: None,
        };
        writer.rewrite_at = journal_bytes.max(length);
        if length == 0 {
            writer.append(MAGIC)?;
            writer.sync()?;
        }
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
    path: PathBuf,
    file: File,
    length: u64,
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
}

impl Writer {
    fn run(mut self, entries: &Receiver<Entry>) {
        // While chunks wait to be moved, the thread does not wait for entries.
        while let Ok(first) = if self.leaving.is_empty() { entries.recv().map(Some) } else { poll(entries) } {
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
        }
        if let Err(error) = self.sync() {
            tracing::error!(%error, "the end of the journal may not be durable");
        }
    }

    fn commit(&mut self, batch: Vec<Entry>) {
        let mut body = Body::default();
        // One sync makes all of them durable.
        let synced = batch.iter().any(|entry| entry.durability == Durability::Fsync);
        let appended: Vec<Appended> =
            batch.into_iter().map(|entry| self.append_entry(entry, &mut body)).collect();
        let durable = self.make_durable(body, synced);
        for Appended { chunks, notes, outcome, done } in appended {
            done(outcome.and_then(|()| durable.clone()).map(|()| notes));
            if let Some(appender) = &mut self.appender {
                chunks.iter().for_each(|chunk| appender.settle(*chunk));
            }
        }
    }

    /// Appends the payload of an entry, and its records to `body`. After an error, `body` has none of its
    /// records.
    fn append_entry(&mut self, entry: Entry, body: &mut Body) -> Appended {
        let Entry { payload, facts, done, .. } = entry;
        let (mut chunks, mut notes) = (SmallVec::new(), Notes::new());
        let appended = payload.iter().try_for_each(|(chunk, rows)| {
            notes.push(self.append_chunk(*chunk, rows)?);
            chunks.push(*chunk);
            Ok(())
        });
        let before = body.len();
        let outcome = appended.and_then(|()| facts(&notes, body));
        if outcome.is_err() {
            body.cut_to(before);
        }
        Appended { chunks, notes, outcome, done }
    }

    fn append_chunk(&mut self, chunk: ChunkId, rows: &Encoded) -> Result<Note, QueueError> {
        let none = || QueueError::BadRequest {
            reason: format!("chunk={} is to be written by a journal whose store appends nothing", chunk.0),
        };
        self.appender.as_mut().ok_or_else(none)?.append(chunk, rows)
    }

    /// Moves some live chunks out of segments that are mostly dead. The amount is limited, so that no call
    /// waits long.
    fn move_some(&mut self) {
        if self.leaving.is_empty()
            && let Some(appender) = &mut self.appender
        {
            self.leaving = appender.take_sparse();
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < MOVED_BYTES_MAX
            && self.failed.is_none()
            && let Some(chunk) = self.leaving.pop()
        {
            if let Some(entry) = (self.relocate)(chunk) {
                bytes += entry.payload.iter().map(|(_, rows)| rows.len()).sum::<u64>();
                batch.push(entry);
            }
        }
        if !batch.is_empty() {
            self.commit(batch);
        }
    }

    /// Writes the payload first, so that a record never refers to missing bytes.
    fn make_durable(&mut self, body: Body, synced: bool) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
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
        Ok(())
    }

    /// Appends all bytes or none: half a frame would hide every later frame.
    fn append(&mut self, bytes: &[u8]) -> Result<(), QueueError> {
        use std::os::unix::fs::FileExt;
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            self.cut_to(self.length);
            return Err(QueueError::io("write", &self.path)(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the journal to `length`. If that fails, the journal accepts no more entries.
    fn cut_to(&mut self, length: u64) {
        self.length = length;
        if let Err(error) = self.file.set_len(length) {
            self.failed = Some(QueueError::io("truncate", &self.path)(error));
        }
    }

    fn sync(&self) -> Result<(), QueueError> {
        self.file.sync_data().map_err(QueueError::io("sync", &self.path))
    }

    fn sync_dir(&self) -> Result<(), QueueError> {
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(QueueError::io("sync", &self.dir))
    }

    /// Replaces the journal with the live data, in one rename.
    fn rewrite(&mut self) -> Result<(), QueueError> {
        let temporary = self.dir.join("journal.new");
        let mut file = File::create(&temporary).map_err(QueueError::io("create", &temporary))?;
        let mut length = 0;
        let mut write = |bytes: &[u8]| {
            length += bytes.len() as u64;
            file.write_all(bytes).map_err(QueueError::io("write", &temporary))
        };
        write(MAGIC)?;
        let mut sink = Sink { body: Body::default(), write: &mut write };
        (self.live)(&mut sink)?;
        let last = sink.body.into_frame()?;
        write(&last)?;
        file.sync_all().map_err(QueueError::io("write", &temporary))?;
        std::fs::rename(&temporary, &self.path).map_err(QueueError::io("rename", &temporary))?;
        self.sync_dir()?;
        tracing::debug!(from_bytes = self.length, to_bytes = length, "the journal was rewritten");
        self.file = file;
        self.length = length;
        self.rewrite_at = self.journal_bytes.max(4 * self.length);
        Ok(())
    }
}

/// Returns the next entry if one is waiting, and an error if no more can come.
fn poll(entries: &Receiver<Entry>) -> Result<Option<Entry>, RecvError> {
    match entries.try_recv() {
        Ok(entry) => Ok(Some(entry)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err(RecvError),
    }
}
