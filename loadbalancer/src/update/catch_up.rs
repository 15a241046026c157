//! Gives the announced weights to servers that lack them, and finds servers that have lost them.
//!
//! A server may take minutes to load. Servers that return meanwhile do not wait for it: they get a round of their own. And
//! the weights of all other servers are looked at again and again, because a process that was replaced generates with the
//! wrong weights until this is noticed.
//!
//! As in a round, no function here is cancel-safe.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inner::{CALL_MAX, Inner};
use super::round::Round;
use super::target::Target;
use super::{Announcement, ServerUpdate};
use crate::server::{ServerId, ServerState};
use crate::snapshot::ServerSnapshot;

/// The time between two looks at the fleet while servers load.
const LOOK: Duration = Duration::from_secs(1);

/// A running round, with its servers.
type Running = BoxFuture<'static, (BTreeSet<ServerId>, Vec<ServerUpdate>)>;

impl Inner {
    /// Gives the current weights to the servers that lack them. Ends when no round runs and no server may be tried.
    pub(super) async fn catch_up(self: &Arc<Self>, token: &CancellationToken) -> Vec<ServerUpdate> {
        let Some(announcement) = self.book.lock().current.clone() else { return Vec::new() };
        self.notice_lost_weights(&announcement, token).await;
        let mut rounds: FuturesUnordered<Running> = FuturesUnordered::new();
        let (mut busy, mut updated) = (BTreeSet::new(), Vec::new());
        loop {
            if let Some(round) = self.round_of_lacking(&announcement, token, &busy) {
                let servers: BTreeSet<ServerId> = round.servers().collect();
                busy.extend(&servers);
                let inner = Arc::clone(self);
                rounds.push(async move { (servers, inner.run(round).await) }.boxed());
            }
            let looking = async {
                tokio::time::sleep(LOOK).await;
                self.notice_lost_weights(&announcement, token).await;
            };
            tokio::select! {
                biased;
                ended = rounds.next() => match ended {
                    None => return updated,
                    Some((servers, of_round)) => {
                        busy.retain(|server| !servers.contains(server));
                        updated.extend(of_round);
                    }
                },
                () = looking => {}
            }
        }
    }

    /// A round of the servers that lack the announced weights, may be tried, and are in no other round.
    fn round_of_lacking(
        self: &Arc<Self>,
        announcement: &Arc<Announcement>,
        token: &CancellationToken,
        busy: &BTreeSet<ServerId>,
    ) -> Option<Round> {
        if token.is_cancelled() {
            return None;
        }
        let version = announcement.version;
        let known = self.book.lock().servers.clone();
        let for_one = self.config.method_of_one(announcement);
        let may_load = for_one.is_some();
        let method = for_one.unwrap_or_else(|| self.config.method.clone());
        let now = Instant::now();
        let may = |server: &ServerSnapshot| {
            let is_loaded = known.get(server.id).and_then(|known| known.has(server.epoch, version)).is_some();
            !busy.contains(&server.id) && known.may_try(server.id, now) && (may_load || is_loaded)
        };
        self.round(announcement, method, token.clone(), may)
    }

    /// Finds the servers whose process was restarted so fast that the monitor did not notice. The weights of
    /// such a server have a name other than the announced one.
    async fn notice_lost_weights(&self, announcement: &Arc<Announcement>, token: &CancellationToken) {
        if !self.config.gives_weights() {
            return;
        }
        let fleet = self.balancer.snapshot().servers;
        let known = self.book.lock().servers.clone();
        let version = announcement.version;
        let is_named = |server: &ServerSnapshot| {
            known
                .get(server.id)
                .and_then(|known| known.has(server.epoch, version))
                .is_some_and(|has| has.is_named)
        };
        let is_up_to_date = |server: &ServerSnapshot| {
            server.state != ServerState::Dead && is_named(server) && !known.lacks(server, version)
        };
        let looks: Vec<_> = fleet
            .iter()
            .filter(|server| is_up_to_date(server))
            .map(Target::of)
            .map(|target| {
                let control = Arc::clone(&self.control);
                async move {
                    let asked = tokio::time::timeout(CALL_MAX, control.weight_version(&target.server));
                    asked.await.ok().and_then(Result::ok).map(|found| (target, found))
                }
            })
            .collect();
        let looking = stream::iter(looks).buffered(self.config.concurrency.max(1)).collect();
        let seen: Vec<Option<(Target, Arc<str>)>> =
            token.run_until_cancelled(looking).await.unwrap_or_default();
        for (target, found) in seen.into_iter().flatten() {
            if found != announcement.label {
                let reason = format!("expected weights={}, found={found}", announcement.label);
                self.balancer.restart(target.id, target.epoch, &reason);
            }
        }
    }
}
