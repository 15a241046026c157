//! Opening a queue: empty in memory, or with the contents of its directory.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::directory::check_is_new;
use super::{Claims, Inner, Partitions, TransferQueue, Turns};
use crate::config::{Durability, PartitionSpec, QueueConfig};
use crate::error::QueueError;
use crate::journal::{
    Begun, Body, Extent, Journal, LeaseLog, LengthNote, LiveRecords, Log, Opening, Relocate, journal_path,
    read_frames, read_leases,
};
use crate::lock::DirLock;
use crate::partition::{Partition, Replay, Table};
use crate::plane::Plane;
use crate::put::columns_of;
use crate::record::{Record, Tally};
use crate::store::{Store, memory, segments};

/// The number of generations that a queue may skip when it is opened. Rows that a restart has lost may have clients
/// that still hold their handles. Because the number of skipped generations is random, it is improbable that a new
/// row gets such a handle.
const GENERATIONS_SKIPPED_MAX: u32 = 1 << 16;

/// The contents of a directory.
struct Replayed {
    replay: Replay,
    /// The journal. `None` if the directory has no journal.
    begun: Option<Begun>,
    /// An error if the journal is shorter than its noted length.
    whole: Result<(), QueueError>,
}

/// Reads the noted length of the journal in `dir`. The queue can open without the note.
fn noted_length(dir: &Path) -> Option<LengthNote> {
    LengthNote::read(dir).unwrap_or_else(|error| {
        tracing::warn!(%error, "it is not known whether the end of the journal is missing");
        None
    })
}

/// Replays the journal and the lease file of `dir`.
///
/// # Errors
/// Returns [`QueueError::JournalMissing`] if the directory has files of a queue, but its journal is missing
/// or empty. Errors of reading are returned too.
fn replay(dir: &Path, plane: &Plane) -> Result<Replayed, QueueError> {
    // The note is read before the journal. If another process appends in between, the journal is longer than
    // noted, which is no error.
    let note = noted_length(dir);
    let path = journal_path(dir);
    let mut replay = Replay::new(plane.clone());
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if dir.exists() {
                check_is_new(dir)?;
            }
            return Ok(Replayed { replay, begun: None, whole: Ok(()) });
        }
        Err(error) => return Err(QueueError::io("read", &path)(error)),
    };
    let mut tally = Tally::default();
    let sound = read_frames(&path, &bytes, |record: Record| {
        tally.count(&record);
        replay.apply(record)
    })?;
    if sound == 0 {
        check_is_new(dir)?;
    }
    let begun = Begun { extent: Extent { bytes: sound, records: tally.records }, rewrites: tally.rewrites };
    let whole = note.map_or(Ok(()), |note| note.check(dir, begun.extent, begun.rewrites));
    replay.leases_sound = read_leases(dir, |record: Record| {
        // The partition or the rows of a lease may no longer exist.
        let _ = replay.apply(record);
    });
    Ok(Replayed { replay, begun: Some(begun), whole })
}

/// Learns the types of columns from the payload. If a chunk cannot be read, other chunks are tried. Payload
/// that must be read over a network is skipped. A column whose type stays unknown gets it from the next put.
fn learn_columns(table: &mut Table, plane: &Plane) {
    let mut tried = HashSet::new();
    loop {
        let chunks = table.chunks_of_unknown_columns(&tried);
        if chunks.is_empty() {
            return;
        }
        for chunk in chunks {
            tried.insert(chunk);
            match plane.pin(chunk, &[]).load() {
                Some(Ok((_, chunk))) => table.learn_columns(&columns_of(chunk.schema())),
                // A consumer that takes these rows gets the error. Other rows are still delivered.
                Some(Err(error)) => tracing::error!(%error, "payload cannot be read"),
                None => {}
            }
        }
    }
}

/// The callbacks with which the journal's writer reads the partitions.
fn writing_side(partitions: &Partitions, plane: &Plane, floor: &Arc<AtomicU32>) -> (LiveRecords, Relocate) {
    let (live_partitions, live_plane, live_floor) =
        (Arc::clone(partitions), plane.clone(), Arc::clone(floor));
    let live: LiveRecords = Box::new(move |sink, rewrites| {
        let (generation, file) = (live_floor.load(Ordering::Relaxed), live_plane.own().newest_file());
        sink.push(&Record::Floor { generation, rewrites, file })?;
        let locate = |chunk| live_plane.note(chunk);
        // Partitions are also declared and removed on this thread, so the set does not change in the
        // meantime.
        let partitions: Vec<Partition> = live_partitions.lock().values().cloned().collect();
        partitions.iter().try_for_each(|partition| partition.shared.walk(&locate, sink))
    });
    let partitions = Arc::clone(partitions);
    let relocate: Relocate = Box::new(move |chunk| {
        let partitions: Vec<Partition> = partitions.lock().values().cloned().collect();
        partitions.iter().find_map(|partition| partition.shared.relocation(chunk))
    });
    (live, relocate)
}

impl TransferQueue {
    /// Opens a queue. Without a directory the queue is empty and in memory. With a directory, the queue has
    /// the contents of the directory, and the payload is in segment files. Leases that the previous process
    /// granted to itself are void; leases of clients stay valid.
    ///
    /// Blocks while it reads the journal.
    pub fn open(config: QueueConfig) -> Result<Self, QueueError> {
        match &config.dir {
            None => Self::open_with(config, memory()),
            Some(dir) => {
                std::fs::create_dir_all(dir).map_err(QueueError::io("create", dir))?;
                let store = segments(dir, config.segment_bytes);
                Self::open_with(config, store)
            }
        }
    }

    /// Opens a queue with its payload in `store`. The journal is in the configured directory. Without a
    /// directory, nothing outlives the process. A queue must always be opened with the kind of store with
    /// which it was first opened.
    ///
    /// Blocks while it reads the journal.
    pub fn open_with(config: QueueConfig, store: Arc<dyn Store>) -> Result<Self, QueueError> {
        let put_spec = config.create_on_put.then_some(config.put_spec);
        let plane = Plane::new(store);
        let Some(dir) = config.dir else {
            if plane.own().opened()?.is_some() {
                return Err(unfit(
                    plane.own(),
                    "must have a directory, because the journal's writer writes the payload",
                ));
            }
            let generation_floor = Arc::new(AtomicU32::new(rand::random::<u32>() % GENERATIONS_SKIPPED_MAX));
            let known = Known { put_spec, generation_floor, ..Known::default() };
            return Ok(Self::assemble(plane, Log::Nowhere, None, known));
        };
        if !plane.own().capabilities().outlives_process {
            return Err(unfit(
                plane.own(),
                "must not have a directory, because the store does not outlive the process",
            ));
        }
        std::fs::create_dir_all(&dir).map_err(QueueError::io("create", &dir))?;
        let lock = DirLock::acquire(&dir)?;
        let Replayed { mut replay, begun, whole } = replay(&dir, &plane)?;
        whole?;
        if config.durability != Durability::Fsync {
            replay.skip_generations(1 + rand::random::<u32>() % GENERATIONS_SKIPPED_MAX);
        }
        let appender = plane.own().opened()?;
        let (partitions, floor) = (Partitions::default(), Arc::new(AtomicU32::new(replay.generation_floor)));
        let (live, relocate) = writing_side(&partitions, &plane, &floor);
        let (begun, journal_bytes) = (begun.unwrap_or_default(), config.journal_bytes);
        let opening = Opening { dir: &dir, begun, appender, journal_bytes, live, relocate };
        let journal = Journal::start(opening)?;
        let leasing_partitions = Arc::clone(&partitions);
        let held = move |body: &mut Body| {
            let partitions = leasing_partitions.lock();
            let mut records = partitions.values().flat_map(|one| one.shared.table.lock().recorded_leases());
            records.try_for_each(|record| body.push(&record))
        };
        let leases = LeaseLog::start(&dir, replay.leases_sound, Box::new(held))?;
        let log = Log::Files {
            journal: Arc::new(journal),
            leases: Arc::new(leases),
            durability: config.durability,
        };
        let known = Known { partitions, generation_floor: floor, put_spec, lock: Some(lock) };
        let queue = Self::assemble(plane, log, Some(&dir), known);
        queue.adopt(replay);
        Ok(queue)
    }

    /// Opens a directory with payload in segment files for inspection, even while another process uses it.
    /// Every change returns an error.
    pub fn open_read_only(dir: &Path) -> Result<Self, QueueError> {
        let (queue, whole) = Self::open_to_verify(dir)?;
        whole.map(|()| queue)
    }

    /// Opens a directory for reading, even if the end of the journal is missing. In that case, the second
    /// result is an error.
    pub(crate) fn open_to_verify(dir: &Path) -> Result<(Self, Result<(), QueueError>), QueueError> {
        let plane = Plane::new(segments(dir, u64::MAX));
        let Replayed { replay, begun, whole } = replay(dir, &plane)?;
        if begun.is_none() {
            return Err(QueueError::NoQueue { dir: dir.to_owned() });
        }
        Ok((Self::of_replay(dir, plane, replay), whole))
    }

    /// A queue of the replayed records of a directory. Every change returns an error.
    pub(crate) fn of_replay(dir: &Path, plane: Plane, replay: Replay) -> Self {
        let queue = Self::assemble(plane, Log::ReadOnly, Some(dir), Known::default());
        queue.adopt(replay);
        queue
    }

    fn assemble(plane: Plane, log: Log, dir: Option<&Path>, known: Known) -> Self {
        let (claims, next_chunk) = (Claims::default(), Arc::new(AtomicU64::new(0)));
        let Known { partitions, generation_floor, put_spec, lock: _lock } = known;
        let dir = dir.map(Path::to_owned);
        let turns = Turns::default();
        let inner = Inner {
            plane,
            log,
            dir,
            partitions,
            claims,
            next_chunk,
            generation_floor,
            put_spec,
            turns,
            _lock,
        };
        Self { inner: Arc::new(inner) }
    }

    fn adopt(&self, replay: Replay) {
        self.inner.next_chunk.store(replay.next_chunk, Ordering::Relaxed);
        let away = replay.away.clone();
        let mut partitions = self.inner.partitions.lock();
        for mut table in replay.into_tables() {
            learn_columns(&mut table, &self.inner.plane);
            let chunks = table.chunk_ids();
            // The storage units have not announced themselves yet.
            chunks.iter().filter(|chunk| away.contains(chunk)).for_each(|chunk| table.set_away(*chunk, true));
            let partition = Partition::from_table(table, self.home());
            // Rows that were freed before the restart use space until their segment is emptied.
            chunks.iter().for_each(|chunk| partition.shared.thin(*chunk));
            partitions.insert(partition.name().to_owned(), partition);
        }
    }
}

/// The initial state of a queue.
#[derive(Default)]
struct Known {
    partitions: Partitions,
    generation_floor: Arc<AtomicU32>,
    put_spec: Option<PartitionSpec>,
    lock: Option<DirLock>,
}

fn unfit(store: &dyn Store, expected: &str) -> QueueError {
    QueueError::BadRequest { reason: format!("a queue with store={} {expected}", store.name()) }
}
