//! Servers of which only the OpenAI protocol is known. Such a server is alive when it lists its models, or
//! asks for a key first.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::http::HttpControl;
use super::{ControlError, EngineControl, EngineLoad, ServerRef, unsupported};

/// Control of servers that speak the OpenAI protocol and offer no other control calls.
#[derive(Debug, Clone)]
pub struct OpenAiControl(pub HttpControl);

impl EngineControl for OpenAiControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.0.models(server).boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        unsupported(server, "its load")
    }

    /// Not offered: such a server notices an abort when the connection is closed.
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
