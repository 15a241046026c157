//! A trajectory that many calls share.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_dispatch::{Stamp, VersionSpan};
use rolldock_loadbalancer::Priority;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{CallMeter, Live};
use crate::config::Spec;

/// A trajectory.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) number: u64,
    /// Differs between processes, so that ids of requests are unique over restarts.
    pub(crate) life: u64,
    pub(crate) spec: Spec,
    pub(crate) live: Mutex<Live>,
    /// Cancelled when the trajectory ends. Calls in flight stop then.
    pub(crate) ended: CancellationToken,
    /// Notified whenever a call ends.
    pub(super) released: Notify,
    /// The number of tokens that engines drew for the trajectory, including tokens that became no turn.
    drawn: AtomicU64,
    /// Set before the first call, if the owner observes calls.
    meter: OnceLock<Arc<dyn CallMeter>>,
}

impl One {
    pub(super) fn new(number: u64, life: u64, spec: Spec, live: Live) -> Self {
        Self {
            number,
            life,
            spec,
            live: Mutex::new(live),
            ended: CancellationToken::new(),
            released: Notify::new(),
            drawn: AtomicU64::new(0),
            meter: OnceLock::new(),
        }
    }

    /// Waits until no call with this body is in flight. Cancel-safe.
    pub(crate) async fn until_quiet(&self, body: u128) {
        self.until(|live| !live.has_in_flight(body)).await;
    }

    /// Waits until no call is in flight. Cancel-safe.
    pub(crate) async fn until_idle(&self) {
        self.until(|live| !live.has_calls()).await;
    }

    async fn until(&self, is_reached: impl Fn(&Live) -> bool) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if is_reached(&self.live.lock()) {
                return;
            }
            released.await;
        }
    }

    /// Reports calls to `meter` from now on.
    pub(crate) fn report_to(&self, meter: Arc<dyn CallMeter>) {
        // This method is called once, before the first call of the trajectory.
        let _ = self.meter.set(meter);
    }

    /// The priority of the next request for a permit.
    pub(crate) fn priority(&self) -> Priority {
        self.meter.get().map_or(Priority::New, |meter| meter.priority())
    }

    /// The version that the servers have now. Outside of a run it is 0, and tokens have the versions that engines
    /// report.
    pub(crate) fn policy_version(&self) -> u64 {
        self.meter.get().map_or(0, |meter| meter.policy_version())
    }

    /// The versions of an answer of `server` that arrives now with these reported `spans`. Its request was sent at version
    /// `sent`.
    pub(crate) fn stamp(&self, sent: u64, server: &str, spans: &[VersionSpan]) -> Stamp {
        let reported = Stamp { sent, now: sent, newest: u64::MAX };
        self.meter.get().map_or(reported, |meter| meter.stamp(sent, server, spans))
    }

    /// The cache salt of a request: the trajectory's own salt, or else the salt of the version if versions
    /// have salts.
    pub(crate) fn cache_salt(&self) -> Option<Cow<'_, str>> {
        let of_trajectory = self.spec.cache_salt.as_deref().map(Cow::Borrowed);
        let versions = || self.meter.get().filter(|meter| meter.salts_versions());
        of_trajectory.or_else(|| versions().map(|meter| Cow::Owned(format!("v{}", meter.policy_version()))))
    }

    /// A call has its permit.
    pub(crate) fn permitted(&self, waited: Duration) {
        self.meter.get().into_iter().for_each(|meter| meter.permitted(waited));
    }

    /// An engine drew tokens.
    pub(crate) fn has_drawn(&self, tokens: u64, time: Duration) {
        self.drawn.fetch_add(tokens, Ordering::Relaxed);
        self.meter.get().into_iter().for_each(|meter| meter.drew(tokens, time));
    }

    /// A request ended without an answer.
    pub(crate) fn gave_up(&self, after: Duration, generating: Duration) {
        self.meter.get().into_iter().for_each(|meter| meter.gave_up(after, generating));
    }

    /// The tokens that engines drew so far.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }
}
