//! The queue: partitions by name, in memory or in a directory.

mod as_queue;
mod capture;
mod claims;
mod directory;
mod on_put;
mod opening;
mod turns;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::config::{Durability, PartitionSpec};
use crate::error::QueueError;
use crate::inspect::QueueInspection;
use crate::journal::Log;
use crate::lock::DirLock;
use crate::partition::{Home, Partition, Table};
use crate::plane::Plane;
use crate::record::{Dispositions, Record};
use crate::units::Units;

pub(crate) use capture::Captured;
pub(crate) use claims::{Claim, Claims};
pub use directory::holds_queue;
pub(crate) use directory::no_journal;
use turns::Turns;

pub(crate) type Partitions = Arc<Mutex<BTreeMap<String, Partition>>>;

pub(crate) struct Inner {
    pub(crate) plane: Plane,
    pub(crate) log: Log,
    /// The directory, if the queue has one.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) partitions: Partitions,
    pub(crate) claims: Claims,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// A number greater than every row generation of removed partitions. A handle of a removed partition
    /// therefore names no row of a later partition.
    pub(crate) generation_floor: Arc<AtomicU32>,
    /// The declaration of partitions that puts create. `None` if puts create no partitions.
    put_spec: Option<PartitionSpec>,
    turns: Turns,
    _lock: Option<DirLock>,
}

/// A queue; see the crate documentation. Clones refer to the same queue.
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

impl TransferQueue {
    /// Declares a partition. If the partition already exists with an equal declaration, returns the existing
    /// partition.
    pub async fn declare(&self, spec: PartitionSpec) -> Result<Partition, QueueError> {
        spec.check_new()?;
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
        // The partition is published on the writer's thread as soon as it is durable, so that the journal
        // cannot be rewritten in between.
        let publish = move |durable: Result<(), QueueError>| {
            let _claim = claim;
            durable.map(|()| partitions.lock().entry(declared.name().to_owned()).or_insert(declared).clone())
        };
        partition.record(declaration, publish).await?.declared_as(&spec)
    }

    /// Removes a partition with all of its rows, leased rows included. Calls that wait for its rows or for
    /// room in it fail. A partition that is declared later under the same name is a different partition.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
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

    /// The state that the partitions share.
    pub(crate) fn home(&self) -> Home {
        let Inner { plane, log, next_chunk, .. } = self.inner.as_ref();
        Home { plane: plane.clone(), log: log.clone(), next_chunk: Arc::clone(next_chunk) }
    }

    pub(crate) fn units(&self) -> &Units {
        self.inner.plane.units()
    }

    /// Returns an existing partition.
    pub fn partition(&self, name: &str) -> Result<Partition, QueueError> {
        let found = self.inner.partitions.lock().get(name).cloned();
        found.ok_or_else(|| QueueError::UnknownPartition { name: name.to_owned() })
    }

    /// All partitions, in order of their names.
    pub fn partitions(&self) -> Vec<Partition> {
        self.inner.partitions.lock().values().cloned().collect()
    }

    /// Describes the queue for people. The cost does not depend on the number of rows.
    pub fn inspect(&self) -> QueueInspection {
        QueueInspection {
            partitions: self.partitions().iter().map(Partition::inspect).collect(),
            payload_bytes: self.payload_bytes(),
            units: self.units().inspect(),
        }
    }

    /// The bytes of the payload of existing rows in the queue's own store; see
    /// [`QueueInspection::payload_bytes`].
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.inner.plane.bytes()
    }

    /// Ends all puts, and makes the puts in progress durable. Later changes return errors. Blocks.
    pub fn close(&self) {
        self.partitions().iter().for_each(Partition::end_of_puts);
        self.inner.log.close();
    }

    /// The failure that an acknowledged put survives, unless its partition sets another durability.
    pub fn durability(&self) -> Durability {
        self.inner.log.durability()
    }
}
