//! The journal on a disk that is full. An injected limit simulates the disk: no file gets more blocks.

mod warnings;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use rustix::io::Errno;

use super::*;
use crate::journal::read_frames;
use crate::journal::reserve::Allocate;
use crate::store::{ChunkId, Encoded, Note};

/// The blocks that each of the journal's two files may have, in bytes.
const DISK_BYTES: u64 = 2 << 20;
/// The length of a record that adds to the queue, in bytes.
const ADDED_BYTES: usize = 64 << 10;
/// The length of a record that frees something, in bytes.
const FREED_BYTES: usize = 8 << 10;

fn limited(disk_bytes: &Arc<AtomicU64>) -> Allocate {
    let (disk_bytes, mut allocate) = (Arc::clone(disk_bytes), of_file_system());
    Box::new(move |file, from, to| match to > disk_bytes.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error())),
        false => allocate(file, from, to),
    })
}

/// A journal whose live data are `live` records of the same size.
fn journal(dir: &Path, disk_bytes: &Arc<AtomicU64>, live: &Arc<AtomicUsize>) -> Journal {
    let live = Arc::clone(live);
    let live: LiveRecords = Box::new(move |sink, _| {
        (0..live.load(Ordering::Relaxed)).try_for_each(|_| sink.push(&"x".repeat(ADDED_BYTES)))
    });
    let reserve = Reserve::new(dir.join("journal.new"), limited(disk_bytes));
    let (begun, relocate) = (Begun::default(), Box::new(|_| None));
    let opening = Opening { dir, begun, appender: None, journal_bytes: 1 << 30, live, relocate };
    Journal::start_with(reserve, opening).unwrap()
}

fn send(journal: &Journal, adds: bool, words: String) -> Receiver<Result<Notes, QueueError>> {
    let (reply, outcome) = channel();
    let done = Box::new(move |durable| reply.send(durable).unwrap());
    let facts: Facts = Box::new(move |_, body: &mut Body| body.push(&words));
    let entry = Entry { adds, payload: Payload::new(), facts, durability: Durability::Os, done };
    assert!(journal.send(entry).is_ok());
    outcome
}

fn add(journal: &Journal) -> Result<(), QueueError> {
    send(journal, true, "x".repeat(ADDED_BYTES)).recv().unwrap().map(drop)
}

fn free(journal: &Journal) -> Result<(), QueueError> {
    send(journal, false, "y".repeat(FREED_BYTES)).recv().unwrap().map(drop)
}

#[test]
fn on_a_full_disk_additions_are_refused_and_everything_else_goes_on_in_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let (disk_bytes, live) = (Arc::new(AtomicU64::new(DISK_BYTES)), Arc::new(AtomicUsize::new(0)));
    let journal = journal(dir.path(), &disk_bytes, &live);
    let refused = loop {
        match add(&journal) {
            Ok(()) => live.fetch_add(1, Ordering::Relaxed),
            Err(error) => break error,
        };
    };
    assert!(matches!(&refused, QueueError::DiskFull { dir: full, .. } if full == dir.path()), "{refused}");
    let accepted = live.load(Ordering::Relaxed);
    assert!(accepted > 10, "accepted={accepted}");

    // All records together need more bytes than the disk has, so the journal is rewritten into its reserve in
    // the meantime.
    let length = || journal_path(dir.path()).metadata().unwrap().len();
    for record in 0..600 {
        free(&journal).unwrap_or_else(|error| panic!("record={record}: {error}"));
        assert!(length() <= DISK_BYTES, "record={record}: the journal has more bytes than blocks");
        if record % 100 == 0 {
            assert!(matches!(add(&journal), Err(QueueError::DiskFull { .. })), "record={record}");
        }
    }

    live.store(accepted / 2, Ordering::Relaxed);
    (0..50).for_each(|_| free(&journal).unwrap());
    add(&journal).expect("half of the journal is dead, and its space is used again");
    disk_bytes.store(u64::MAX, Ordering::Relaxed);
    (0..100).for_each(|_| add(&journal).unwrap());
}

#[test]
fn a_refused_addition_takes_nothing_else_of_its_batch_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (disk_bytes, live) = (Arc::new(AtomicU64::new(DISK_BYTES)), Arc::default());
    let journal = journal(dir.path(), &disk_bytes, &live);
    // The first entry blocks the writer until the other entries wait, so that these are one batch.
    let (go, wait) = channel();
    let facts: Facts = Box::new(move |_, _| wait.recv().map_err(|_| QueueError::Stopping));
    let first = Entry {
        adds: false,
        payload: Payload::new(),
        facts,
        durability: Durability::Os,
        done: Box::new(|_| {}),
    };
    assert!(journal.send(first).is_ok());
    let before = send(&journal, false, "before".to_owned());
    let refused = send(&journal, true, "x".repeat(DISK_BYTES as usize));
    let after = send(&journal, false, "after".to_owned());
    go.send(()).unwrap();
    assert!(before.recv().unwrap().is_ok() && after.recv().unwrap().is_ok());
    assert!(matches!(refused.recv().unwrap(), Err(QueueError::DiskFull { .. })));
    journal.close();
    let (path, mut found) = (journal_path(dir.path()), Vec::new());
    let bytes = std::fs::read(&path).unwrap();
    read_frames(&path, &bytes, |words: String| {
        found.push(words);
        Ok(())
    })
    .unwrap();
    assert_eq!(found, ["before", "after"]);
}

/// A store of which some chunks should be written again.
struct Sparse(Vec<ChunkId>);

impl Appender for Sparse {
    fn append(&mut self, _chunk: ChunkId, _rows: &Encoded) -> Result<Note, QueueError> {
        Err(QueueError::Stopping)
    }

    fn settle(&mut self, _chunk: ChunkId) {}

    fn sync(&mut self) -> Result<(), QueueError> {
        Ok(())
    }

    fn take_sparse(&mut self) -> Vec<ChunkId> {
        std::mem::take(&mut self.0)
    }
}

/// A queue that is opened on a full disk tries to empty its segments.
#[test]
fn chunks_that_stay_on_a_full_disk_give_one_warning() {
    warnings::keep();
    let dir = tempfile::tempdir().unwrap();
    let reserve = Reserve::new(dir.path().join("journal.new"), limited(&Arc::new(AtomicU64::new(0))));
    let chunks: Vec<ChunkId> = (0..9).map(ChunkId).collect();
    let relocate: Relocate = Box::new(|_| {
        let facts: Facts = Box::new(|_, body: &mut Body| body.push(&"moved"));
        let (payload, durability) = (Payload::new(), Durability::Os);
        Some(Entry { adds: true, payload, facts, durability, done: Box::new(|_| {}) })
    });
    let (begun, appender) = (Begun::default(), Some(Box::new(Sparse(chunks)) as Box<dyn Appender>));
    let live: LiveRecords = Box::new(|_, _| Ok(()));
    let opening = Opening { dir: dir.path(), begun, appender, journal_bytes: 1 << 30, live, relocate };
    let mut writer = Writer::begin(reserve, opening).unwrap();
    writer.move_some();
    let said = warnings::of_this_thread();
    let of_chunks: Vec<&String> = said.iter().filter(|warning| warning.contains("chunk")).collect();
    assert_eq!(of_chunks.len(), 1, "{said:?}");
    assert!(of_chunks[0].contains("chunks=9"), "{said:?}");
}

/// A store whose newest segment is dead until it is freed.
struct Dead(Arc<AtomicUsize>);

impl Appender for Dead {
    fn append(&mut self, _chunk: ChunkId, _rows: &Encoded) -> Result<Note, QueueError> {
        Err(QueueError::Stopping)
    }

    fn settle(&mut self, _chunk: ChunkId) {}

    fn sync(&mut self) -> Result<(), QueueError> {
        Ok(())
    }

    fn take_sparse(&mut self) -> Vec<ChunkId> {
        Vec::new()
    }

    fn is_newest_dead(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn free_newest(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_segment_is_freed_in_a_quiet_journal_after_the_records_are_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (freed, live) = (Arc::new(AtomicUsize::new(0)), Box::new(|_: &mut Sink<'_>, _| Ok(())));
    let appender = Some(Box::new(Dead(Arc::clone(&freed))) as Box<dyn Appender>);
    let (begun, relocate) = (Begun::default(), Box::new(|_| None));
    let opening = Opening { dir: dir.path(), begun, appender, journal_bytes: 1 << 30, live, relocate };
    let reserve = Reserve::new(dir.path().join("journal.new"), of_file_system());
    let mut writer = Writer::begin(reserve, opening).unwrap();
    let facts: Facts = Box::new(|_, body: &mut Body| body.push(&"an ack"));
    let (payload, durability) = (Payload::new(), Durability::Os);
    writer.commit(vec![Entry { adds: false, payload, facts, durability, done: Box::new(|_| {}) }]);
    writer.free_dead();
    assert_eq!(freed.load(Ordering::Relaxed), 0, "a record has just been written");
    assert_ne!(writer.synced, writer.extent());

    tokio::time::sleep(writer.noted.due_in().unwrap()).await;
    writer.noted.write_if_due();
    assert!(writer.idle_limit().is_some(), "the thread wakes without an entry");
    writer.free_dead();
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    assert_eq!(writer.synced, writer.extent());
    tokio::time::sleep(writer.noted.due_in().unwrap()).await;
    writer.noted.write_if_due();
    assert_eq!(writer.idle_limit(), None);
}
