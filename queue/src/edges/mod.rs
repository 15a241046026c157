//! The queue's edges: the modules that carry rows and calls out of the process and into it.
//!
//! The core (every other module of the crate) contains rows, leases, the journal and stores, and works
//! without any edge. An edge imports the core; no module of the core imports an edge, which
//! `tests/rules/tests/imports.rs` checks. A method of [`TransferQueue`](crate::TransferQueue) or
//! [`Partition`](crate::Partition) that belongs to an edge is in an `impl` block of that edge.
//!
//! | edge | what it offers | which edges it uses |
//! |---|---|---|
//! | `wire` | calls as JSON, and rows as Arrow streams | |
//! | `remote` | the queue over HTTP: server, client | `wire`, `controller`, `snapshot`, `verify`, `export` |
//! | `local` | the queue through shared memory: server, client | `wire` |
//! | `client` | the client that chooses between `remote` and `local` | `remote`, `local`, `wire` |
//! | `controller` | the queue's reactions to the death, return and draining of a storage unit | |
//! | `unit` | the process of a storage unit | `remote` |
//! | `snapshot` | a queue as one stream of bytes, and back | |
//! | `verify` | a check of all data of the queue | |
//! | `salvage` | the readable rows of a damaged queue | `snapshot` |
//! | `export` | rows as files for other tools | |
//! | `conformance` | the tests that every store passes | `snapshot` |

mod client;
pub mod conformance;
mod controller;
mod export;
mod local;
mod remote;
mod salvage;
mod snapshot;
mod unit;
mod verify;
mod wire;

pub use client::{QueueClient, TransportChoice};
pub use export::{ExportFormat, Exported};
pub use local::{
    LocalConfig, LocalListener, LocalQueue, LocalServiceConfig, RegionStats, Regions, serve_local,
};
pub use remote::{RemoteConfig, RemoteQueue, ServiceConfig, answer, serve};
pub use salvage::{Loss, Salvage};
pub use snapshot::{Snapshot, SnapshotCounts};
pub use unit::{UnitConfig, run_unit};
pub use verify::{Problem, VerifyReport};
pub use wire::LocalPlace;
