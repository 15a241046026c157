//! A columnar, durable transfer queue between rollouts and training tasks.
//!
//! A **partition** is a table whose rows are samples and whose columns are fields. Producers
//! [put](Partition::put) the rows of a group, and may [add columns](Partition::write_columns) later. A row is
//! **ready** for a task when it has every column that the task needs. Each task [takes](Partition::take) rows
//! under a [`Lease`] and acks them, independently of other tasks. A row is freed when all tasks have acked
//! it.
//!
//! ```text
//!   put ---> payload (Store: memory, or segment files) ---> journal ---> rows visible
//!   take --> lease: rows of this task, oldest first ----> batches straight from the chunks
//!   ack ---> journal ---> rows freed when all tasks agree ---> chunks and segment files freed
//! ```
//!
//! [`serve`] serves a queue to other processes, and [`RemoteQueue`] is its client. [`serve_local`] and
//! [`LocalQueue`] do the same within a host, through shared memory, and [`QueueClient`] chooses one of these
//! two clients. A queue and its clients implement the trait [`Queue`]. [`TransferQueue::snapshot`] and
//! [`TransferQueue::restore`] copy live data from one queue to another, and [`TransferQueue::verify`] checks
//! a queue.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use arrow_array::{ArrayRef, Int64Array, RecordBatch};
//! use rolldock_queue::{PartitionSpec, Put, QueueConfig, Take, TransferQueue};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let queue = TransferQueue::open(QueueConfig::default())?;
//! let partition = queue.declare(PartitionSpec::new("step-1", ["actor", "critic"], 1_000)).await?;
//! let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
//! partition.put(Put::group("group-0", RecordBatch::try_from_iter([("id", ids)])?), None).await?;
//!
//! for task in ["actor", "critic"] {
//!     let lease = partition.take(&Take::groups(task, 1)).await?.ok_or("a group was expected")?;
//!     assert_eq!(lease.batches().iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
//!     lease.ack().await?;
//! }
//! assert_eq!(partition.stats().rows, 0, "rows that every task has acked are freed");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! The crate `rolldock-queue-compat` (`queue/compat/`) offers the client interfaces of other queues on top of
//! this one.
//!
//! # Core and edges
//! The crate has a core and edges. The core contains rows, leases, the journal and stores. The edges
//! (`src/edges/`) carry rows and calls elsewhere: HTTP, shared memory, the processes of storage units,
//! snapshots, checks and exports. The edges depend on the core; the core does not depend on the edges. Read
//! the core in this order:
//!
//! 1. `put.rs`, `take.rs`, `lease.rs`, `config.rs`: the arguments and results of calls.
//! 2. `store/mod.rs`, `plane.rs`: the stores of payload. `units/` is the store on other machines.
//! 3. `record/`, `journal/`: the records, and how they are written.
//! 4. `partition/table.rs` and its children: rows, tasks, keys and leases, as plain data under one lock.
//! 5. `partition/`: puts, takes and acks, which combine table, store and journal.
//! 6. `queue.rs`: partitions by name, and opening a queue.
//!
//! Finally, `edges/mod.rs` lists the edges.
//!
//! # Invariants
//! The functions of [`invariants`] check some of these invariants.
//!
//! - A put that has returned survives the failures that its [`Durability`] names, completely or not at all.
//! - A row is in at most one live lease of a task. Only an ack consumes the row; a lease that expires, is
//!   dropped or is nacked gives the row back.
//! - A handle names one row permanently: slots are reused, but a slot's generations are not.
//! - The rows never exceed the capacity. Puts to a full partition wait, fail, or drop its oldest ready
//!   groups, as the partition declares.
//! - The control plane ([`partition`](Partition)) and the data plane ([`store`]) are separate: no lock is
//!   held while payload is copied, encoded, written or read.
//!
//! # Deliberately absent
//! There is no embedded database for the metadata. It would be a second source of truth, with its own fsync.
//! The journal is rewritten to its live records when most records are dead, so the cost of opening depends on
//! the live records. There is no replication: a distributed store behind [`Store`](store::Store) can provide
//! it.

mod api;
mod batches;
mod config;
mod edges;
mod error;
mod inspect;
pub mod invariants;
mod journal;
mod lease;
mod lock;
mod mapped;
mod metered;
mod partition;
mod plane;
mod put;
mod queue;
mod recent;
mod record;
mod row;
mod stats;
pub mod store;
mod take;
mod tasks;
mod units;

pub use edges::conformance;

pub use api::{Queue, Transport};
pub use batches::joined;
pub use config::{
    ColumnSpec, Durability, ExtensionSpec, OnFull, PartitionSpec, QueueConfig, SCALAR_TYPES, TaskSpec,
};
pub use edges::{
    ExportFormat, Exported, LocalConfig, LocalListener, LocalPlace, LocalQueue, LocalServiceConfig, Loss,
    Problem, QueueClient, RegionStats, Regions, RemoteConfig, RemoteQueue, Salvage, ServiceConfig, Snapshot,
    SnapshotCounts, TransportChoice, UnitConfig, VerifyReport, answer, run_unit, serve, serve_local,
};
pub use error::{ErrorClass, QueueError};
pub use inspect::{LeaseInspection, PartitionInspection, QueueInspection, TaskCounts};
pub use lease::Lease;
pub use partition::{Partition, RowState};
pub use put::{Put, check_depth};
pub use queue::{TransferQueue, holds_queue};
pub use record::{Dispositions, INCOMPLETE, SamplePart, Unfinished};
pub use row::RowHandle;
pub use stats::{ClosedGroup, Disposition, GroupFate, KeyedRow, PartitionStats, TaskStats};
pub use take::{Amount, GroupSampler, ReadyGroup, Sampler, Share, Stale, Take};
pub use units::{UnitCard, UnitInspection, UnitStatus};
