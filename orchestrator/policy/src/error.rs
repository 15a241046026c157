//! Errors of the sources and of the driver.

use std::net::SocketAddr;

/// An error of a source or of the driver. An error of one announcement is an
/// [`AnnounceError`](super::AnnounceError).
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The address of `policy.listen` cannot be bound.
    #[error("cannot listen for policy versions at address={address}: {reason}")]
    Listen {
        /// The value in the recipe.
        address: SocketAddr,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The directory of `policy.watch` has no absolute path in UTF-8, which servers need.
    #[error("cannot resolve directory={directory}: {reason}")]
    Directory {
        /// The value in the recipe.
        directory: String,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The scope has ended, or the task that updates servers has died.
    #[error("the weight updater has stopped")]
    Ended,
}
