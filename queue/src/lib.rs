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
//! [`compat`] has the client calls of other queues, over this queue.
//!
//! # Invariants
//! [`invariants`] has them as functions.
//! - A put that returned survives a crash (as far as its [`Durability`] says), completely or not at all.
//! - A row is in at most one live lease of a task; only an ack consumes it; an expired, dropped or nacked
//!   lease gives it back.
//! - A handle names one row permanently: slots are reused, generations are not.
//! - Rows never exceed the capacity. A full partition blocks, refuses, or drops its oldest ready group, as
//!   declared.
//! - Control plane ([`partition`](Partition)) and data plane ([`Store`]) are apart: no lock is held while
//!   payload is copied, encoded, written or read.
//!
//! # Deliberately absent
//! There is no embedded database for the metadata: the journal is rewritten to its live records when dead
//! ones dominate, so opening costs what is live, and a second writer with its own fsync would add a second
//! source of truth. There is no replication: a distributed store behind [`Store`] can provide it.

mod api;
pub mod compat;
mod config;
pub mod conformance;
mod error;
mod export;
mod inspect;
pub mod invariants;
mod journal;
mod lease;
mod local;
mod lock;
mod mapped;
mod partition;
mod plane;
mod put;
mod queue;
mod recent;
mod record;
mod remote;
mod row;
mod snapshot;
mod stats;
pub mod store;
mod take;
mod tasks;
mod unit;
mod units;
mod verify;

pub use api::Queue;
pub use config::{ColumnSpec, Durability, ExtensionSpec, OnFull, PartitionSpec, QueueConfig, TaskSpec};
pub use error::{ErrorClass, QueueError};
pub use export::{Export, ExportFormat};
pub use inspect::{LeaseInspection, PartitionInspection, QueueInspection, TaskCounts};
pub use lease::Lease;
pub use local::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, RegionStats, Regions, serve_local,
};
pub use partition::Partition;
pub use put::Put;
pub use queue::TransferQueue;
pub use record::{Dispositions, INCOMPLETE, SamplePart, Unfinished};
pub use remote::{
    GROUP, HANDLE, KEY, POLICY_VERSION, RECORD, RemoteConfig, RemoteQueue, ServiceConfig, TAGS, answer, serve,
};
pub use row::RowHandle;
pub use snapshot::{Snapshot, SnapshotCounts};
pub use stats::{ClosedGroup, Disposition, GroupFate, KeyedRow, PartitionStats, TaskStats};
pub use store::Store;
pub use take::{Amount, GroupSampler, ReadyGroup, Sampler, Share, Stale, Take};
pub use unit::{UnitConfig, run_unit};
pub use units::{BLOBS, UnitCard, UnitInspection, UnitStatus};
pub use verify::{Problem, VerifyReport};
