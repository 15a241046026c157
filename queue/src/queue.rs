//! The queue: partitions by name, in memory or in a directory.

mod as_queue;
mod capture;
mod claims;
mod opening;

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

pub(crate) use capture::{Captured, Scrutiny};
pub(crate) use claims::{Claim, Claims};

pub(crate) type Partitions = Arc<Mutex<BTreeMap<String, Partition>>>;

pub(crate) struct Inner {
    pub(crate) plane: Plane,
    pub(crate) log: Log,
    /// The directory, if the queue has one.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) partitions: Partitions,
    pub(crate) claims: Claims,
    pub(crate) next_chunk: Arc<AtomicU64>,
    /// Above every row generation of removed partitions, so that their handles name no row of a later
    /// partition.
    pub(crate) generation_floor: Arc<AtomicU32>,
    /// The declaration of a partition that a put creates; `None` if a put creates none.
    put_spec: Option<PartitionSpec>,
    _lock: Option<DirLock>,
}

/// Number of partitions beyond which a put creates no further one.
const MADE_ON_PUT_MAX: usize = 1024;
/// Maximum length of the name of a partition that a put creates, in bytes.
const MADE_NAME_BYTES_MAX: usize = 256;

/// A queue; see the crate's documentation. Clones refer to the same queue.
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
    /// Declares a partition; returns the existing one if it was declared in the same way.
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
        // Known as soon as it is durable, on the writer's thread: no rewriting of the journal comes in
        // between.
        let publish = move |durable: Result<(), QueueError>| {
            let _claim = claim;
            durable.map(|()| partitions.lock().entry(declared.name().to_owned()).or_insert(declared).clone())
        };
        partition.record(declaration, publish).await?.declared_as(&spec)
    }

    /// Removes a partition with everything in it, leased rows too. Calls that wait for its rows or for room
    /// in it fail, because it is gone; a partition declared later under the same name is another one.
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

    /// An existing partition.
    pub fn partition(&self, name: &str) -> Result<Partition, QueueError> {
        let found = self.inner.partitions.lock().get(name).cloned();
        found.ok_or_else(|| QueueError::UnknownPartition { name: name.to_owned() })
    }

    /// The partition that a put goes to, created by [`put_spec`](crate::QueueConfig::put_spec) if it does not
    /// exist.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn partition_for_put(&self, name: &str) -> Result<Partition, QueueError> {
        let (unknown, spec) = match (self.partition(name), &self.inner.put_spec) {
            (Err(unknown @ QueueError::UnknownPartition { .. }), Some(spec)) => (unknown, spec),
            (found, _) => return found,
        };
        if self.inner.log.is_read_only() {
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
            // Another call has declared it meanwhile.
            Err(QueueError::DeclaredOtherwise { .. }) => self.partition(name),
            outcome => outcome,
        }
    }

    /// All partitions, in order of their names.
    pub fn partitions(&self) -> Vec<Partition> {
        self.inner.partitions.lock().values().cloned().collect()
    }

    /// A description of the queue for people. Takes O(rows).
    pub fn inspect(&self) -> QueueInspection {
        QueueInspection {
            partitions: self.partitions().iter().map(Partition::inspect).collect(),
            payload_bytes: self.inner.plane.bytes(),
            units: self.units().inspect(),
        }
    }

    /// Ends all puts, and makes puts in progress durable. Later changes are errors. Blocks.
    pub fn close(&self) {
        self.partitions().iter().for_each(Partition::end_of_puts);
        self.inner.log.close();
    }

    /// What an acknowledged put survives.
    pub fn durability(&self) -> Durability {
        self.inner.log.durability()
    }
}
