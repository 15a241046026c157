//! The right to a running request.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned};

use crate::balancer::Shared;
use crate::{Epoch, ServerId};

/// How a request went, for the server's breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// An answer.
    Success {
        /// Response tokens of it.
        tokens: u64,
    },
    /// The request was wrong. Says nothing about the server.
    ClientError,
    /// 503 or 429: the server is well, and full.
    Backpressure {
        /// What it asked for.
        retry_after: Option<Duration>,
    },
    /// The server or the way to it failed.
    Fault,
    /// The caller lost interest. Says nothing about the server.
    Cancelled,
}

/// What all permits of one life of a server have in common.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) server: ServerId,
    pub(crate) epoch: Epoch,
    pub(crate) name: Arc<str>,
    pub(crate) url: Option<Arc<str>>,
    /// Cancelled when this life ends.
    pub(crate) end: CancellationToken,
}

/// The right to a running request of `weight` samples on one server; returned when it is dropped.
#[derive(Debug)]
pub struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) life: Arc<Life>,
    pub(crate) weight: u32,
    /// Among those of its server.
    pub(crate) number: u64,
    /// Expected ones of all samples.
    pub(crate) tokens: u32,
    pub(crate) granted_at: Instant,
    pub(crate) outcome: Outcome,
}

impl Permit {
    /// The server.
    pub fn server(&self) -> ServerId {
        self.life.server
    }

    /// Its name.
    pub fn server_name(&self) -> Arc<str> {
        Arc::clone(&self.life.name)
    }

    /// Its base URL, if it has one.
    pub fn url(&self) -> Option<&str> {
        self.life.url.as_deref()
    }

    /// The server's life that this permit belongs to.
    pub fn epoch(&self) -> Epoch {
        self.life.epoch
    }

    /// Number of samples.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Completes when the server dies, stalls or is removed: the answer will not come. Cancel-safe.
    pub fn revoked(&self) -> WaitForCancellationFuture<'_> {
        self.life.end.cancelled()
    }

    /// The same, for who cannot borrow it.
    pub fn revoked_owned(&self) -> WaitForCancellationFutureOwned {
        self.life.end.clone().cancelled_owned()
    }

    /// Returns the permit and tells the server's breaker how it went. Dropping it means [`Outcome::Cancelled`].
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.give_back(self);
    }
}
