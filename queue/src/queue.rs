//! The queue: partitions by name, in memory or in a directory.

mod claims;
mod units;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::config::{PartitionSpec, QueueConfig};
use crate::inspect::QueueInspection;
use crate::journal::{Journal, LeaseLog, LiveRecords, Record, Relocate, read_frames, read_leases};
use crate::lock::DirLock;
use crate::partition::{Dispositions, Home, Partition, Replay, Table, columns_of, lease_records};
use crate::plane::{OwnStore, Plane};
use crate::store::{DiskStore, MemoryStore, SegmentWriter, Store};
use crate::units::Units;
use crate::{Durability, QueueError};

pub(crate) use claims::{Claim, Claims};

pub(crate) const JOURNAL: &str = "journal.log";

pub(crate) type Partitions = Arc<Mutex<BTreeMap<String, Partition>>>;

pub(crate) struct Inner {
    pub(crate) plane: Plane,
    pub(crate) partitions: Partitions,
    pub(crate) claims: Claims,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// Above every row generation of partitions that are gone: handles of theirs name no row of a later one.
    pub(crate) generation_floor: Arc<AtomicU32>,
    /// What a put makes of a partition that is not there; nothing if absent.
    put_spec: Option<PartitionSpec>,
    _lock: Option<DirLock>,
}

/// What a queue begins with.
#[derive(Default)]
struct Known {
    partitions: Partitions,
    generation_floor: Arc<AtomicU32>,
    units: Arc<Units>,
    put_spec: Option<PartitionSpec>,
}

/// Partitions that a queue may have when a put makes another one.
const MADE_ON_PUT_MAX: usize = 1024;
/// Bytes of the name of a partition that a put makes.
const MADE_NAME_BYTES_MAX: usize = 256;

/// See the crate's documentation. Clones are of the same queue.
#[derive(Clone)]
pub struct TransferQueue {
    pub(crate) inner: Arc<Inner>,
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
    replay.leases_sound = read_leases(dir, |record| {
        // It may be of a partition or of rows that are gone.
        let _ = replay.apply(record);
    });
    Ok((replay, Some(sound)))
}

/// The types of columns, from payload that has them. Where that cannot be read, other payload is tried.
fn learn_columns(table: &mut Table, store: &DiskStore) {
    let mut tried = HashSet::new();
    loop {
        let chunks = table.chunks_of_unknown_columns(&tried);
        if chunks.is_empty() {
            return;
        }
        for chunk in chunks {
            tried.insert(chunk);
            match store.load(chunk) {
                Ok(chunk) => table.learn_columns(&columns_of(chunk.schema())),
                // Whoever takes its rows is told; the others are not kept from theirs.
                Err(error) => tracing::error!(%error, "payload cannot be read"),
            }
        }
    }
}

impl TransferQueue {
    /// Opens a queue: empty in memory, or what its directory holds. Leases that this process gave itself are
    /// void; those of clients stand.
    ///
    /// Blocks while it reads the journal.
    pub fn open(config: QueueConfig) -> Result<Self, QueueError> {
        let put_spec = config.create_on_put.then_some(config.put_spec);
        let Some(dir) = config.dir else {
            let own = OwnStore::Memory(Arc::new(MemoryStore::default()));
            return Ok(Self::assemble(own, None, Known { put_spec, ..Known::default() }));
        };
        std::fs::create_dir_all(&dir).map_err(QueueError::io("create", &dir))?;
        let lock = DirLock::acquire(&dir)?;
        let store = Arc::new(DiskStore::new(&dir));
        let (replay, length) = replay(&dir, &store)?;
        let next_segment = store.clean()?;
        let partitions = Partitions::default();
        let generation_floor = Arc::new(AtomicU32::new(replay.generation_floor));
        let segments = SegmentWriter::new(&dir, next_segment, config.segment_bytes, Arc::clone(&store));
        let live_partitions = Arc::clone(&partitions);
        let live_store = Arc::clone(&store);
        let live_floor = Arc::clone(&generation_floor);
        let units = Arc::clone(&replay.units);
        let live_units = Arc::clone(&units);
        let live: LiveRecords = Box::new(move |sink| {
            sink(&Record::Floor { generation: live_floor.load(Ordering::Relaxed) })?;
            let locate = |chunk| {
                let unit = live_units.place(chunk).map(|place| place.as_ref().clone());
                (live_store.location(chunk), unit)
            };
            // Declared and removed on this thread too: none comes or goes meanwhile.
            let partitions: Vec<Partition> = live_partitions.lock().values().cloned().collect();
            partitions.iter().try_for_each(|partition| partition.shared.walk(&locate, sink))
        });
        let (moved_partitions, moved_store) = (Arc::clone(&partitions), Arc::clone(&store));
        let relocate: Relocate = Box::new(move |chunk| {
            let partitions: Vec<Partition> = moved_partitions.lock().values().cloned().collect();
            partitions.iter().find_map(|partition| partition.shared.relocation(chunk, &moved_store))
        });
        let sound = length.unwrap_or(0);
        let journal = Journal::start(&dir, sound, segments, config.journal_bytes, live, relocate)?;
        let leasing_partitions = Arc::clone(&partitions);
        let held = move || {
            let partitions = leasing_partitions.lock();
            partitions.values().flat_map(|partition| lease_records(&partition.shared.table.lock())).collect()
        };
        let leases = LeaseLog::start(&dir, replay.leases_sound, Box::new(held))?;
        let own = OwnStore::Disk {
            store: Arc::clone(&store),
            journal: Arc::new(journal),
            leases: Arc::new(leases),
            durability: config.durability,
        };
        let queue = Self::assemble(own, Some(lock), Known { partitions, generation_floor, units, put_spec });
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
        let units = Arc::clone(&replay.units);
        let own = OwnStore::ReadOnly(Arc::clone(&store));
        let queue = Self::assemble(own, None, Known { units, ..Known::default() });
        queue.adopt(replay, &store)?;
        Ok(queue)
    }

    fn assemble(own: OwnStore, lock: Option<DirLock>, known: Known) -> Self {
        let (claims, next_chunk) = (Claims::default(), Arc::default());
        let Known { partitions, generation_floor, units, put_spec } = known;
        Self {
            inner: Arc::new(Inner {
                plane: Plane { own, units },
                partitions,
                claims,
                next_chunk,
                generation_floor,
                put_spec,
                _lock: lock,
            }),
        }
    }

    fn adopt(&self, replay: Replay, store: &Arc<DiskStore>) -> Result<(), QueueError> {
        self.inner.next_chunk.store(replay.next_chunk, Ordering::Relaxed);
        let mut partitions = self.inner.partitions.lock();
        for mut table in replay.into_tables() {
            learn_columns(&mut table, store);
            // Units have yet to announce themselves.
            let elsewhere =
                table.chunk_ids().into_iter().filter(|chunk| self.inner.plane.place(*chunk).is_some());
            elsewhere.collect::<Vec<_>>().into_iter().for_each(|chunk| table.set_away(chunk, true));
            // What was gone by then keeps its place in the segment until that is emptied.
            for chunk in table.chunk_ids() {
                let (live, rows) = table.live_share(chunk);
                store.thin(chunk, live, rows);
            }
            let partition = Partition::from_table(table, self.home());
            partitions.insert(partition.name().to_owned(), partition);
        }
        Ok(())
    }

    /// Declares a partition, or finds it declared in the same way.
    pub async fn declare(&self, spec: PartitionSpec) -> Result<Partition, QueueError> {
        spec.check()?;
        let find = || self.inner.partitions.lock().get(&spec.name).cloned();
        let claim = match self.inner.claims.declare(&spec.name, find)? {
            Ok(found) => return found.declared_as(&spec),
            Err(claim) => claim,
        };
        let generation_floor = self.inner.generation_floor.load(Ordering::Relaxed);
        let mut table = Table::new(spec.clone());
        table.finish_replay(generation_floor);
        let partition = Partition::from_table(table, self.home());
        let declaration =
            Record::Declare { spec: spec.clone(), generation_floor, dispositions: Dispositions::default() };
        let partitions = Arc::clone(&self.inner.partitions);
        let declared = partition.clone();
        // Known as soon as it is durable, on the writer's thread: no rewriting of the journal comes in between.
        let publish = move |durable: Result<(), QueueError>| {
            let _claim = claim;
            durable.map(|()| partitions.lock().entry(declared.name().to_owned()).or_insert(declared).clone())
        };
        partition.record(declaration, publish).await?.declared_as(&spec)
    }

    /// Removes a partition with everything in it, whoever holds its rows. Who waits for its rows or for room in it is
    /// told that it is gone; a partition declared later under the same name is another one.
    ///
    /// Cancel-safe: it happens or it does not.
    pub async fn remove(&self, name: &str) -> Result<(), QueueError> {
        let partition = self.partition(name)?;
        let (partitions, floor) =
            (Arc::clone(&self.inner.partitions), Arc::clone(&self.inner.generation_floor));
        let name = name.to_owned();
        let publish = move |generation_floor| {
            floor.fetch_max(generation_floor, Ordering::Relaxed);
            partitions.lock().remove(&name);
        };
        partition.remove(publish).await
    }

    /// What its partitions share.
    pub(crate) fn home(&self) -> Home {
        let Inner { plane, next_chunk, .. } = self.inner.as_ref();
        Home { plane: plane.clone(), next_chunk: Arc::clone(next_chunk) }
    }

    pub(crate) fn units(&self) -> &Units {
        &self.inner.plane.units
    }

    /// A partition that is there.
    pub fn partition(&self, name: &str) -> Result<Partition, QueueError> {
        let found = self.inner.partitions.lock().get(name).cloned();
        found.ok_or_else(|| QueueError::UnknownPartition { name: name.to_owned() })
    }

    /// The partition that a put goes to: made as the queue was [told](QueueConfig::put_spec) if it is not there.
    ///
    /// Cancel-safe: it is made or it is not.
    pub async fn partition_for_put(&self, name: &str) -> Result<Partition, QueueError> {
        let (unknown, spec) = match (self.partition(name), &self.inner.put_spec) {
            (Err(unknown @ QueueError::UnknownPartition { .. }), Some(spec)) => (unknown, spec),
            (found, _) => return found,
        };
        if self.inner.plane.is_read_only() {
            return Err(unknown);
        }
        let is_name = !name.is_empty()
            && name.len() <= MADE_NAME_BYTES_MAX
            && !name.starts_with('_')
            && !name.chars().any(|letter| letter.is_control() || letter == '/');
        if !is_name {
            let reason = format!(
                "expected a name of at most {MADE_NAME_BYTES_MAX} bytes without a leading _, slashes and control \
                 characters for a partition that a put makes, found {name:?}"
            );
            return Err(QueueError::BadRequest { reason });
        }
        if self.inner.partitions.lock().len() >= MADE_ON_PUT_MAX {
            let reason =
                format!("puts make at most partitions_max={MADE_ON_PUT_MAX}; declare partition={name}");
            return Err(QueueError::BadRequest { reason });
        }
        match self.declare(PartitionSpec { name: name.to_owned(), ..spec.clone() }).await {
            // Somebody else has declared it meanwhile.
            Err(QueueError::DeclaredOtherwise { .. }) => self.partition(name),
            outcome => outcome,
        }
    }

    /// All partitions, in order of their names.
    pub fn partitions(&self) -> Vec<Partition> {
        self.inner.partitions.lock().values().cloned().collect()
    }

    /// The queue for people: O(rows).
    pub fn inspect(&self) -> QueueInspection {
        QueueInspection {
            partitions: self.partitions().iter().map(Partition::inspect).collect(),
            payload_bytes: self.inner.plane.bytes(),
            units: self.inner.plane.units.inspect(),
        }
    }

    /// Ends all puts and makes durable whatever is on its way. Later changes are errors. Blocks.
    pub fn close(&self) {
        self.partitions().iter().for_each(Partition::end_of_puts);
        if let OwnStore::Disk { journal, .. } = &self.inner.plane.own {
            journal.close();
        }
    }

    /// What a put that returned survives.
    pub fn durability(&self) -> Durability {
        self.inner.plane.own.durability()
    }
}
