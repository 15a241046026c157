//! The thread that appends.

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

/// Entries that may wait for the writer: a sender waits when there are more.
const ENTRIES_MAX: usize = 4096;
/// Entries made durable together.
const BATCH_MAX: usize = 1024;
/// Payload moved at a time; bytes.
const MOVED_BYTES_MAX: u64 = 4 << 20;
/// A rewritten journal has frames of about this size; bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Chunks that are written in front of what is said about them.
pub(crate) type Payload = SmallVec<[(ChunkId, Encoded); 1]>;
/// What the store says of each chunk of an entry's payload, in their order.
pub(crate) type Notes = SmallVec<[Note; 1]>;
/// Says on the writer's thread, where everything has its order, what is to be written down: all of it in one
/// frame. Nothing at all keeps the payload without a word about it; an error keeps the entry from being
/// written.
pub(crate) type Facts = Box<dyn FnOnce(&[Note], &mut Body) -> Result<(), QueueError> + Send>;
/// Runs when the entry is durable, or has failed.
type Done = Box<dyn FnOnce(Result<Notes, QueueError>) + Send>;

/// One thing to make durable.
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

/// Where records go, one after the other, until one cannot be written.
pub(crate) struct Sink<'a> {
    body: Body,
    write: &'a mut dyn FnMut(&[u8]) -> Result<(), QueueError>,
}

impl Sink<'_> {
    /// Takes the next record.
    pub(crate) fn push(&mut self, record: &impl Serialize) -> Result<(), QueueError> {
        self.body.push(record)?;
        if self.body.len() > FRAME_BYTES {
            (self.write)(&std::mem::take(&mut self.body).into_frame()?)?;
        }
        Ok(())
    }
}

/// Gives everything live, as records: what the journal is rewritten to. On the writer's thread, so that
/// nothing of it changes meanwhile.
pub(crate) type LiveRecords = Box<dyn Fn(&mut Sink<'_>) -> Result<(), QueueError> + Send>;

/// What moves a chunk out of a segment that is mostly dead.
pub(crate) type Relocate = Box<dyn Fn(ChunkId) -> Option<Entry> + Send>;

/// The sending side.
#[derive(Debug)]
pub(crate) struct Journal {
    sender: Mutex<Option<SyncSender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Starts the writer on a journal whose first `length` bytes are sound.
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

    /// Hands an entry to the writer; `Err` gives it back when the journal is closed. Waits only when the
    /// writer is thousands of entries behind.
    pub(crate) fn send(&self, entry: Entry) -> Result<(), Entry> {
        let sender = self.sender.lock().clone();
        match sender {
            None => Err(entry),
            Some(sender) => sender.send(entry).map_err(|error| error.0),
        }
    }

    /// Writes what is waiting and ends the thread.
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
    /// The appender of a store whose payload this thread writes.
    appender: Option<Box<dyn Appender>>,
    journal_bytes: u64,
    live: LiveRecords,
    relocate: Relocate,
    /// Chunks of segments that are mostly dead.
    leaving: Vec<ChunkId>,
    /// Length at which the journal is rewritten.
    rewrite_at: u64,
    /// Why nothing can be made durable any more.
    failed: Option<QueueError>,
}

impl Writer {
    fn run(mut self, entries: &Receiver<Entry>) {
        // While there is something to move nothing is waited for.
        while let Ok(first) = if self.leaving.is_empty() { entries.recv().map(Some) } else { poll(entries) } {
            let mut batch: Vec<Entry> = first.into_iter().collect();
            batch.extend(entries.try_iter().take(BATCH_MAX - batch.len()));
            self.commit(batch);
            self.move_some();
            if self.length > self.rewrite_at
                && self.failed.is_none()
                && let Err(error) = self.rewrite()
            {
                // The old journal is whole; the next attempt comes when it has grown by as much again.
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

    /// Appends an entry's payload, and what is said of it to `body`: all of that or nothing.
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

    /// Moves a little of what is live out of segments that are mostly dead, so that no call waits for long.
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

    /// Payload first: a record never refers to bytes that are not there.
    fn make_durable(&mut self, body: Body, synced: bool) -> Result<(), QueueError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let frame = body.into_frame()?;
        if frame.is_empty() {
            // Payload becomes durable with the first record that refers to it.
            return Ok(());
        }
        if synced && let Some(appender) = &mut self.appender {
            appender.sync()?;
        }
        let sound = self.length;
        self.append(&frame)?;
        if synced && let Err(error) = self.sync() {
            // It is unknown what the disk holds now. The refused record must not come back, and nothing
            // may follow it.
            self.cut_to(sound);
            self.failed = Some(error.clone());
            return Err(error);
        }
        Ok(())
    }

    /// Appends whole or not at all: half a frame would hide everything after it.
    fn append(&mut self, bytes: &[u8]) -> Result<(), QueueError> {
        use std::os::unix::fs::FileExt;
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            self.cut_to(self.length);
            return Err(QueueError::io("write", &self.path)(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Takes back what was appended behind `length`; where even that fails the journal takes nothing any
    /// more.
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

    /// Replaces the journal by what is live, in one rename.
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

/// The next entry, if one is there; an error once there will be none.
fn poll(entries: &Receiver<Entry>) -> Result<Option<Entry>, RecvError> {
    match entries.try_recv() {
        Ok(entry) => Ok(Some(entry)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err(RecvError),
    }
}
