//! The target of the updater's calls: one life of a server, with the server's name and URL.

use std::sync::Arc;

use crate::ServerRef;
use crate::server::{Epoch, ServerId};
use crate::snapshot::ServerSnapshot;

/// One life of a server, with the server's name and URL for control calls.
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
