//! The queue for processes on the same host: control messages use a Unix socket, and rows use shared memory.
//!
//! ```text
//!   put   room(bytes) ---> a region is lent      the client encodes its rows into it: one copy
//!         put(loan)   ---> decoded in place      the chunk IS the region: no copy
//!   take  ---> rows in regions are sent as places: no copy on either side
//!              other rows (disk, small puts) are encoded into a region, or into the answer: one copy
//! ```
//!
//! [`LocalListener`] and [`serve_local`] are the server, and [`LocalQueue`] is the client. The client
//! implements [`Queue`](crate::Queue), so code that uses this trait works with the client unchanged.
//!
//! # Regions
//! A region is an anonymous memory file (`memfd`) whose size is sealed. The server creates it and sends it
//! over the socket to clients, which map it. A region has no name that could stay behind: the operating
//! system frees it with the last mapping, however a process ends. Touching fresh pages costs far more than
//! copying into them, so the server keeps idle regions, up to [`LocalServiceConfig::idle_bytes_max`].
//!
//! # Invariants
//! - A region is lent for writing only when it contains no chunk and no client holds rows of it.
//! - A region becomes idle only when every client that used it has released it. A region that a client was
//!   using when its connection ended is never lent again, because that client may still read or write it.
//! - When a client closes its socket, its leases end immediately, and the rows that it was about to put are
//!   dropped. When a server ends, its clients keep their leases. A durable queue still knows these leases
//!   when it is opened again.
//! - Everything that a client sends or writes is checked before it is used: lengths, places, and every value
//!   of a stream.
//!
//! # Trust
//! There is no token: every process that may open the socket can be a client. The socket's permissions
//! (0600) exclude other users; for a socket without a file, the server asks the operating system for the
//! user of each client. The operating system cannot revoke a writable mapping. The server therefore
//! trusts a client, like a thread of its own process, not to write into a region after its put. Any other
//! mistake of a client is an error for that client alone.
//!
//! # Deliberately absent
//! Rows of different puts do not share a region: freeing them would need an allocator that both sides trust.
//! Small puts are sent through the socket instead. If more than [`LocalServiceConfig::regions_max`] regions
//! are in use, rows are copied out of their regions.

mod array;
mod client;
mod config;
mod connection;
mod fill;
mod frame;
mod held;
mod link;
mod listener;
mod load;
mod outbox;
mod parcel;
mod pool;
mod protocol;
mod requests;
mod server;
mod socket;

pub use client::LocalQueue;
pub use config::LocalServiceConfig;
pub use link::LocalConfig;
pub(crate) use link::Locate;
pub use listener::LocalListener;
pub use pool::{RegionStats, Regions};
pub use server::serve_local;
