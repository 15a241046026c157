//! A columnar, durable transfer queue between rollouts and training tasks.
//!
//! A **partition** is a table whose rows are samples and whose columns are fields. Producers
//! [put](Partition::put) the rows of a group, and may [add columns](Partition::write_columns) later; a row is
//! **ready** for a task when every column that the task asks for is there. Each task [takes](Partition::take)
//! rows under a [`Lease`] and acks them, independently of the others; a row that all tasks have acked is
//! freed.
//!
//! ```text
//!   put ---> payload (Store: memory, or segment files) ---> journal ---> rows visible
//!   take --> lease: rows of this task, oldest first ----> batches straight from the chunks
//!   ack ---> journal ---> rows freed when all tasks agree ---> chunks and segment files freed
//! ```
//!
//! [`serve`] serves a queue to other processes, and [`RemoteQueue`] is its client; [`serve_local`] and
//! [`LocalQueue`] do this within a host, through shared memory. [`Queue`] is the trait of all of them.
//! [`TransferQueue::snapshot`] and [`TransferQueue::restore`] carry live data from one queue to another, and
//! [`TransferQueue::verify`] checks a queue.
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
//! The crate `rolldock-queue-compat` (`queue/compat/`) offers the client calls of other queues over this one.
//!
//! # Core and edges
//! The crate is a core and a room of edges. The core knows rows, leases, the journal and stores. The edges
//! (`src/edges/`) carry rows and calls elsewhere: HTTP, shared memory, storage units' processes, snapshots,
//! checks and exports. Edges import the core, and the core imports no edge. Read the core in this order:
//!
//! 1. `put.rs`, `take.rs`, `lease.rs`, `config.rs`: what a caller says and gets.
//! 2. `store/mod.rs`, `plane.rs`: where payload lies; `units/` is the store on other machines.
//! 3. `record/`, `journal/`: what is written down, and how.
//! 4. `partition/table.rs` and its children: rows, tasks, keys and leases, as plain data under one lock.
//! 5. `partition/`: puts, takes and acks, which join table, store and journal.
//! 6. `queue.rs`: partitions by name, and how a queue is opened.
//!
//! Then `edges/mod.rs` lists the edges.
//!
//! # Invariants
//! [`invariants`] has them as functions.
//! - A put that returned survives a crash (as far as its [`Durability`] says), completely or not at all.
//! - A row is in at most one live lease of a task; only an ack consumes it; an expired, dropped or nacked
//!   lease gives it back.
//! - A handle names one row permanently: slots are reused, generations are not.
//! - Rows never exceed the capacity. A full partition blocks, refuses, or drops its oldest ready group, as
//!   declared.
//! - Control plane ([`partition`](Partition)) and data plane ([`store`]) are apart: no lock is held while
//!   payload is copied, encoded, written or read.
//!
//! # Deliberately absent
//! There is no embedded database for the metadata: the journal is rewritten to its live records when dead
//! ones dominate, so opening costs what is live, and a second writer with its own fsync would add a second
//! source of truth. There is no replication: a distributed store behind [`Store`](store::Store) can provide it.

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

pub use api::Queue;
pub use batches::joined;
pub use config::{ColumnSpec, Durability, ExtensionSpec, OnFull, PartitionSpec, QueueConfig, TaskSpec};
pub use edges::{
    ExportFormat, LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, Problem, RegionStats, Regions,
    RemoteConfig, RemoteQueue, ServiceConfig, Snapshot, SnapshotCounts, UnitConfig, VerifyReport, answer,
    run_unit, serve, serve_local,
};
pub use error::{ErrorClass, QueueError};
pub use inspect::{LeaseInspection, PartitionInspection, QueueInspection, TaskCounts};
pub use lease::Lease;
pub use partition::Partition;
pub use put::{Put, check_depth};
pub use queue::TransferQueue;
pub use record::{Dispositions, INCOMPLETE, SamplePart, Unfinished};
pub use row::RowHandle;
pub use stats::{ClosedGroup, Disposition, GroupFate, KeyedRow, PartitionStats, TaskStats};
pub use take::{Amount, GroupSampler, ReadyGroup, Sampler, Share, Stale, Take};
pub use units::{UnitCard, UnitInspection, UnitStatus};
