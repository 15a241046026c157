//! A server of which no more is known than that it speaks the OpenAI protocol: it lives when it names its models, or wants a
//! key before it does.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::http::HttpControl;
use super::{ControlError, EngineControl, EngineLoad, ServerRef, unsupported};

/// Control of plain servers.
#[derive(Debug, Clone)]
pub struct OpenAiControl(pub HttpControl);

impl EngineControl for OpenAiControl {
    fn health<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        self.0.models(server).boxed()
    }

    fn load<'a>(&'a self, server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        unsupported(server, "its load")
    }

    /// Such a server learns of it when the connection is closed.
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
