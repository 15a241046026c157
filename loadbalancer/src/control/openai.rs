//! Control of servers that offer only the OpenAI protocol. Such a server counts as alive if it lists its
//! models, or refuses to do so because of a missing or wrong key.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::http::HttpControl;
use super::{ControlError, EngineControl, EngineLoad, ServerRef, unsupported};

/// Control of servers that offer the OpenAI protocol and no control calls.
#[derive(Debug, Clone)]
pub struct OpenAiControl(pub HttpControl);

impl EngineControl for OpenAiControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.0.models(server).boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        unsupported(server, "its load")
    }

    /// Always fails: such a server aborts a request only when the request's connection is closed.
    fn abort<'a>(
        &'a self,
        server: &'a ServerRef,
        _request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        unsupported(server, "aborting by id")
    }

    fn probe<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.0.generate_one(server).boxed()
    }
}
