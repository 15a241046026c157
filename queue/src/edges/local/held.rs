//! A lease that a server on this host holds for a client.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::connection::Connection;
use super::link::Link;
use super::protocol::{Ask, LeaseName, ToServer};
use crate::QueueError;
use crate::lease::Hold;

/// A lease that a server holds for this client.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) link: Arc<Link>,
    pub(super) connection: Arc<Connection>,
    pub(super) name: LeaseName,
}

impl Hold for Held {
    fn ack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.ask_for(|| Ask::Ack(self.name.clone())).boxed()
    }

    fn nack(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.ask_for(|| Ask::Nack(self.name.clone())).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), QueueError>> {
        self.link.ask_for(|| Ask::Renew(self.name.clone())).boxed()
    }

    fn abandon(&self) {
        if self.connection.is_alive() {
            // Nothing waits for the answer.
            let id = self.connection.number();
            self.connection.tell(&ToServer::Call { id, ask: Ask::Nack(self.name.clone()) });
        } else {
            // The connection has ended. If the server was restarted, a durable queue still has the lease.
            self.link.give_back(self.name.clone());
        }
    }
}
