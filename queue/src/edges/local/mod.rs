//! The queue for processes on the same host: control over a Unix socket, rows through shared memory.
//!
//! ```text
//!   put   room(bytes) ---> a region is lent      the client encodes its rows into it: one copy
//!         put(loan)   ---> decoded in place      the chunk IS the region: no copy
//!   take  ---> rows that lie in regions go as places in them: no copy on either side
//!              other rows (disk, small puts) are encoded into a region, or into the answer: one copy
//! ```
//!
//! [`LocalListener`] and [`serve_local`] are the server's side, [`LocalQueue`] is the client's. It is a
//! [`Queue`](crate::Queue), so code that uses queues works with it unchanged.
//!
//! # Regions
//! A region is an anonymous memory file (`memfd`), sealed against every change of its size, made by the
//! server and mapped by each client that gets it over the socket. No region has a name that could stay
//! behind: the system frees it with the last mapping, however a process ends. Touching fresh pages costs far
//! more than copying into them, so the server keeps regions that are idle, bounded by
//! [`LocalServiceConfig::idle_bytes_max`].
//!
//! # Invariants
//! - A region is lent for writing only when no chunk lies in it and no client holds rows of it.
//! - A region becomes idle only when every client that used it has released it. A region that a client was
//!   using when its connection ended is never lent again, because that client may still read or write it.
//! - A closed socket ends the leases of its client at once, and drops whatever the client was about to put.
//! - What a client says and writes is checked before it is believed: lengths, places, and every value of a
//!   stream.
//!
//! # Trust
//! There is no token: every process that may open the socket can be a client, and the socket's permissions
//! (0600) decide which may. The system cannot take a writable mapping back, so the server trusts a client, as
//! it would trust a thread of its own process, not to write into a region after its put. Any other mistake of
//! a client is an error for that client alone.
//!
//! # Deliberately absent
//! Rows of different puts in one region: freeing them would need an allocator that both sides trust. Small
//! puts go through the socket instead, and beyond [`LocalServiceConfig::regions_max`] rows are copied out of
//! their regions.

mod array;
mod client;
mod config;
mod connection;
mod fill;
mod frame;
mod link;
mod listener;
mod load;
mod outbox;
mod parcel;
mod pool;
mod protocol;
mod requests;
mod server;

pub use client::LocalQueue;
pub use config::LocalServiceConfig;
pub use link::LocalConfig;
pub use listener::LocalListener;
pub use pool::{RegionStats, Regions};
pub use server::serve_local;
