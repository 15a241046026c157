//! Why versions do not come into a run.

use std::net::SocketAddr;

/// What can go wrong around announcements; what can be wrong with one is an
/// [`AnnounceError`](super::AnnounceError).
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The address of `policy.listen` cannot be had.
    #[error("cannot listen for policy versions at address={address}: {reason}")]
    Listen {
        /// The recipe's.
        address: SocketAddr,
        /// The operating system's words.
        reason: std::io::Error,
    },
    /// The directory of `policy.watch` cannot be named in full, as servers need it.
    #[error("cannot resolve directory={directory}: {reason}")]
    Directory {
        /// The recipe's.
        directory: String,
        /// The operating system's words.
        reason: std::io::Error,
    },
    /// The scope has ended, or the task that updates servers has died.
    #[error("the weight updater has stopped")]
    Ended,
}
