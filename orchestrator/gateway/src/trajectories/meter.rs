//! The interface by which the owner of a trajectory observes its calls while they run.

use std::fmt;
use std::time::Duration;

use rolldock_dispatch::{Stamp, VersionSpan};
use rolldock_loadbalancer::Priority;

/// Observes the calls of one trajectory. Its methods are called from many tasks, and return at once.
pub trait CallMeter: fmt::Debug + Send + Sync {
    /// The priority of the next request for a permit.
    fn priority(&self) -> Priority;

    /// The version that the servers have now, as the run sees it. Tokens of servers that report no version get
    /// this version.
    fn policy_version(&self) -> u64;

    /// The versions of an answer of `server` that arrives now with these reported `spans`. Its request was sent at version
    /// `sent`. By default, the versions that servers report are believed.
    fn stamp(&self, sent: u64, server: &str, spans: &[VersionSpan]) -> Stamp {
        let _ = (server, spans);
        Stamp { sent, now: self.policy_version().max(sent), newest: u64::MAX }
    }

    /// Whether requests of different versions must not share a prefix cache.
    fn salts_versions(&self) -> bool;

    /// Reports that a call got its permit after this wait.
    fn permitted(&self, waited: Duration);

    /// Reports that an engine drew tokens for a call in this time. Each token is reported once, even if it
    /// becomes part of no turn.
    fn drew(&self, tokens: u64, time: Duration);

    /// Reports that a request ended without an answer after the time `after`. The number of tokens that the
    /// engine drew is not known. `generating` is `after` without the time in which the engine is known to have
    /// drawn nothing.
    fn gave_up(&self, after: Duration, generating: Duration);
}
