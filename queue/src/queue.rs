//! The queue: partitions by name, in memory or in a directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::config::{PartitionSpec, QueueConfig};
use crate::inspect::QueueInspection;
use crate::journal::{Journal, Record, read_frames};
use crate::lock::DirLock;
use crate::partition::{Dispositions, Partition, Plane, Replay, columns_of, live_records};
use crate::store::{DiskStore, MemoryStore, SegmentWriter};
use crate::{Durability, QueueError};

const JOURNAL: &str = "journal.log";

type Partitions = Arc<Mutex<BTreeMap<String, Partition>>>;

struct Inner {
    plane: Plane,
    partitions: Partitions,
    next_chunk: Arc<AtomicU64>,
    _lock: Option<DirLock>,
}

/// See the crate's documentation. Clones are of the same queue.
#[derive(Clone)]
pub struct TransferQueue {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for TransferQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("TransferQueue")
            .field("partitions", &self.inner.partitions.lock().keys())
            .finish()
    }
}

/// What the journal of `dir` says; `None` in place of its length when there is none.
fn replay(dir: &Path, store: &Arc<DiskStore>) -> Result<(Replay, Option<u64>), QueueError> {
    let path = dir.join(JOURNAL);
    let mut replay = Replay::new(Arc::clone(store));
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((replay, None)),
        Err(error) => return Err(QueueError::io("read", &path)(error)),
    };
    let sound = read_frames(&path, &bytes, |record| replay.apply(record))?;
    Ok((replay, Some(sound)))
}

impl TransferQueue {
    /// Opens a queue: empty in memory, or what its directory holds. Leases of an earlier process are void.
    ///
    /// Blocks while it reads the journal.
    pub fn open(config: QueueConfig) -> Result<Self, QueueError> {
        let Some(dir) = config.dir else {
            return Ok(Self::assemble(Plane::Memory(Arc::new(MemoryStore::default())), None));
        };
        std::fs::create_dir_all(&dir).map_err(QueueError::io("create", &dir))?;
        let lock = DirLock::acquire(&dir)?;
        let store = Arc::new(DiskStore::new(&dir));
        let (replay, length) = replay(&dir, &store)?;
        let next_segment = store.clean()?;
        let partitions = Partitions::default();
        let segments = SegmentWriter::new(&dir, next_segment, config.segment_bytes, Arc::clone(&store));
        let live_partitions = Arc::clone(&partitions);
        let live_store = Arc::clone(&store);
        let live = move || {
            let partitions = live_partitions.lock();
            let records = partitions
                .values()
                .map(|partition| live_records(&partition.shared.table.lock(), &live_store));
            records.flatten().collect()
        };
        let journal =
            Journal::start(&dir, length.unwrap_or(0), segments, config.journal_bytes, Box::new(live))?;
        let plane = Plane::Disk {
            store: Arc::clone(&store),
            journal: Arc::new(journal),
            durability: config.durability,
        };
        let queue = Self::assemble_with(plane, Some(lock), partitions);
        queue.adopt(replay, &store)?;
        Ok(queue)
    }

    /// Opens a directory to look at it, also while another process uses it; every change is an error.
    pub fn open_read_only(dir: &Path) -> Result<Self, QueueError> {
        let store = Arc::new(DiskStore::new(dir));
        let (replay, length) = replay(dir, &store)?;
        if length.is_none() {
            return Err(QueueError::NoQueue { dir: dir.to_owned() });
        }
        let queue = Self::assemble(Plane::ReadOnly(Arc::clone(&store)), None);
        queue.adopt(replay, &store)?;
        Ok(queue)
    }

    fn assemble(plane: Plane, lock: Option<DirLock>) -> Self {
        Self::assemble_with(plane, lock, Partitions::default())
    }

    fn assemble_with(plane: Plane, lock: Option<DirLock>, partitions: Partitions) -> Self {
        let next_chunk = Arc::new(AtomicU64::new(0));
        Self { inner: Arc::new(Inner { plane, partitions, next_chunk, _lock: lock }) }
    }

    fn adopt(&self, replay: Replay, store: &Arc<DiskStore>) -> Result<(), QueueError> {
        self.inner.next_chunk.store(replay.next_chunk, std::sync::atomic::Ordering::Relaxed);
        let mut partitions = self.inner.partitions.lock();
        for mut table in replay.into_tables() {
            for chunk in table.chunks_of_unknown_columns() {
                match store.load(chunk) {
                    Ok(chunk) => table.learn_columns(&columns_of(chunk.schema())),
                    // Whoever takes its rows is told; the others are not kept from theirs.
                    Err(error) => tracing::error!(%error, "the types of a chunk's columns are not known"),
                }
            }
            let partition =
                Partition::from_table(table, self.inner.plane.clone(), Arc::clone(&self.inner.next_chunk));
            partitions.insert(partition.name().to_owned(), partition);
        }
        Ok(())
    }

    /// Declares a partition, or finds it declared in the same way.
    pub async fn declare(&self, spec: PartitionSpec) -> Result<Partition, QueueError> {
        if spec.name.is_empty() || spec.tasks.is_empty() || spec.capacity_rows == 0 {
            return Err(QueueError::DeclaredOtherwise {
                name: spec.name,
                what: "expected a name, at least one task, and a capacity above 0".to_owned(),
            });
        }
        let found = self.inner.partitions.lock().get(&spec.name).cloned();
        if let Some(found) = found {
            return found.declared_as(&spec);
        }
        let partition =
            Partition::new(spec.clone(), self.inner.plane.clone(), Arc::clone(&self.inner.next_chunk));
        let declaration = Record::Declare {
            spec: spec.clone(),
            generation_floor: 0,
            dispositions: Dispositions::default(),
        };
        let partitions = Arc::clone(&self.inner.partitions);
        let declared = partition.clone();
        // Known as soon as it is durable, on the writer's thread: no rewriting of the journal comes in between.
        let publish = move |durable: Result<(), QueueError>| {
            durable.map(|()| partitions.lock().entry(declared.name().to_owned()).or_insert(declared).clone())
        };
        partition.record(declaration, publish).await?.declared_as(&spec)
    }

    /// A partition that is there.
    pub fn partition(&self, name: &str) -> Result<Partition, QueueError> {
        let found = self.inner.partitions.lock().get(name).cloned();
        found.ok_or_else(|| QueueError::UnknownPartition { name: name.to_owned() })
    }

    /// All partitions, in order of their names.
    pub fn partitions(&self) -> Vec<Partition> {
        self.inner.partitions.lock().values().cloned().collect()
    }

    /// The queue for people: O(rows).
    pub fn inspect(&self) -> QueueInspection {
        QueueInspection {
            partitions: self.partitions().iter().map(Partition::inspect).collect(),
            payload_bytes: self.inner.plane.store().bytes(),
        }
    }

    /// Ends all puts and makes durable whatever is on its way. Later changes are errors. Blocks.
    pub fn close(&self) {
        self.partitions().iter().for_each(Partition::end_of_puts);
        if let Plane::Disk { journal, .. } = &self.inner.plane {
            journal.close();
        }
    }

    /// What a put that returned survives.
    pub fn durability(&self) -> Durability {
        self.inner.plane.durability()
    }
}
