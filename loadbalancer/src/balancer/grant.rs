//! The grant behind a permit: places on one life of a server.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::{Epoch, ServerId};

/// The data that all permits of one life of a server share.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) server: ServerId,
    pub(crate) epoch: Epoch,
    pub(crate) name: Arc<str>,
    pub(crate) url: Option<Arc<str>>,
    /// Cancelled when this life ends.
    pub(crate) end: CancellationToken,
}

/// Places that a server has granted. A grant is a plain value. It has to be turned into a
/// [`Permit`](super::Permit) immediately, because only a permit returns the places.
#[derive(Debug)]
#[must_use = "places that become no permit are never returned"]
pub(super) struct Grant {
    pub(super) life: Arc<Life>,
    /// Number of samples.
    pub(super) weight: u32,
    /// The sequence number of this grant among the server's grants.
    pub(super) number: u64,
    /// Expected tokens of all samples together.
    pub(super) tokens: u32,
    pub(super) granted_at: Instant,
}
