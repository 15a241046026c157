//! The right to run a request on a server.

use std::sync::Arc;

use tokio_util::sync::{WaitForCancellationFuture, WaitForCancellationFutureOwned};

use super::grant::Grant;
use super::shared::Shared;
use crate::outcome::{Outcome, Unanswered};
use crate::server::{Epoch, ServerId};

/// The right to run a request of [`weight`](Self::weight) samples on one server. The places return to the
/// server when the permit is dropped.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<Shared>,
    grant: Grant,
    outcome: Outcome,
    /// The tokens of a request without a whole answer, if the holder knows them.
    unanswered: Option<Unanswered>,
}

impl Permit {
    pub(super) fn new(shared: &Arc<Shared>, grant: Grant) -> Self {
        Self { shared: Arc::clone(shared), grant, outcome: Outcome::Cancelled, unanswered: None }
    }

    /// The server that the request may be sent to.
    pub fn server(&self) -> ServerId {
        self.grant.life.server
    }

    /// The server's name.
    pub fn server_name(&self) -> Arc<str> {
        Arc::clone(&self.grant.life.name)
    }

    /// The server's base URL, if it is reached by HTTP.
    pub fn url(&self) -> Option<&str> {
        self.grant.life.url.as_deref()
    }

    /// The life of the server that this permit belongs to.
    pub fn epoch(&self) -> Epoch {
        self.grant.life.epoch
    }

    /// Number of samples.
    pub fn weight(&self) -> u32 {
        self.grant.weight
    }

    /// Completes when the server dies, stalls or is removed. No answer will arrive after that. Cancel-safe.
    pub fn revoked(&self) -> WaitForCancellationFuture<'_> {
        self.grant.life.end.cancelled()
    }

    /// Like [`revoked`](Self::revoked), for a caller that cannot borrow the permit.
    pub fn revoked_owned(&self) -> WaitForCancellationFutureOwned {
        self.grant.life.end.clone().cancelled_owned()
    }

    /// Returns the permit and tells the server's breaker how the request went. A permit that is dropped
    /// without this call counts as [`Outcome::Cancelled`].
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Like [`finish`](Self::finish), for a request without a whole answer whose tokens are known. Without this call,
    /// all tokens of such a request count as wasted, and their number is estimated from its age.
    pub fn finish_unanswered(mut self, outcome: Outcome, tokens: Unanswered) {
        self.outcome = outcome;
        self.unanswered = Some(tokens);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.take_back(&self.grant, &self.outcome, self.unanswered);
    }
}
