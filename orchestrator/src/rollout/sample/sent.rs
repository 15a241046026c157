//! A request on its way to a server, with its permit and the count of its tokens.

use std::sync::Arc;

use rolldock_loadbalancer::{Outcome, Permit, ServerId};
use tokio::time::Instant;

use super::asked::Asked;
use super::{SampleRequest, Trouble};
use crate::engine::{EngineError, Generation, Progress};

/// A request that was sent to a server.
pub(super) struct Sent<'a> {
    pub(super) permit: Permit,
    pub(super) server_name: Arc<str>,
    pub(super) at: Instant,
    /// The version of the servers at this time.
    pub(super) version: u64,
    /// The tokens that the request leaves if it fails.
    pub(super) progress: Progress,
    asked: Asked<'a>,
}

impl<'a> Sent<'a> {
    /// A request that is sent now. The value must be created before the engine's future, so that it is dropped after that
    /// future.
    pub(super) fn new(request: &SampleRequest<'a>, permit: Permit) -> Self {
        let (context, progress) = (request.context, Progress::new());
        let asked = Asked::new(context, request.dispatch.id, (permit.server(), request.count), &progress);
        let version = context.versions.served();
        Self { server_name: permit.server_name(), permit, at: Instant::now(), version, progress, asked }
    }

    /// Notes whether the samples come from another request, which was sent for them too.
    pub(super) fn set_hedge(&mut self, is_hedge: bool) {
        self.asked.is_hedge = is_hedge;
    }

    /// Counts a complete answer. Returns the name of the server, and the time at which the request was sent.
    pub(super) fn answered(self, generation: &Generation) -> (Arc<str>, Instant) {
        let Self { permit, server_name, at, asked, .. } = self;
        permit.finish(Outcome::Success { tokens: asked.answered(generation) });
        (server_name, at)
    }

    /// Counts a failure that leaves `kept` useful tokens. Returns the server and its name.
    pub(super) fn failed(self, kept: u64, trouble: &Trouble) -> (ServerId, Arc<str>) {
        let Self { permit, server_name, asked, .. } = self;
        let server = permit.server();
        permit.finish_unanswered(outcome(trouble), asked.failed(kept, trouble));
        (server, server_name)
    }

    /// Counts the end of a request whose samples come from another one.
    pub(super) fn ended(self, answer: &Result<Generation, Trouble>) {
        match answer {
            Ok(generation) => drop(self.answered(generation)),
            Err(trouble) => drop(self.failed(0, trouble)),
        }
    }
}

/// What an unanswered request shows about its server.
fn outcome(trouble: &Trouble) -> Outcome {
    let error = match trouble {
        Trouble::Engine(error) => error,
        Trouble::ServerLost | Trouble::NoPermit(_) | Trouble::Cut | Trouble::Moved(_) => {
            return Outcome::Cancelled;
        }
    };
    match error {
        // Without a fault, a server that refuses everything at once would get the most requests.
        error if error.concerns_server() => Outcome::Fault,
        EngineError::Busy { retry_after, .. } => Outcome::Backpressure { retry_after: *retry_after },
        EngineError::Refused { .. } | EngineError::UnknownServer { .. } | EngineError::Unfit { .. } => {
            Outcome::ClientError
        }
        EngineError::Aborted { .. } => Outcome::Cancelled,
        EngineError::Unreachable { .. } | EngineError::Failed { .. } | EngineError::BadAnswer { .. } => {
            Outcome::Fault
        }
    }
}
