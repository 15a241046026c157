//! A server that takes part in an update: one life of the server, and its address for control calls.

use std::sync::Arc;

use crate::ServerRef;
use crate::server::{Epoch, ServerId};
use crate::snapshot::ServerSnapshot;

/// One life of a server, with its address for control calls.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) id: ServerId,
    pub(super) epoch: Epoch,
    pub(super) server: ServerRef,
}

impl Target {
    pub(super) fn of(server: &ServerSnapshot) -> Self {
        let ServerSnapshot { id, epoch, ref name, ref url, .. } = *server;
        Self { id, epoch, server: ServerRef { name: Arc::clone(name), url: url.clone() } }
    }
}
