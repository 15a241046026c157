//! The interface by which the owner of a trajectory observes its calls while they run.

use std::fmt;
use std::time::Duration;

use rolldock_loadbalancer::Priority;

/// Observes the calls of one trajectory. Its methods are called from many tasks, and return at once.
pub trait CallMeter: fmt::Debug + Send + Sync {
    /// The priority of the next request for a permit.
    fn priority(&self) -> Priority;

    /// The version that the servers have now, as the run sees it. Tokens of servers that report no version have
    /// this one.
    fn policy_version(&self) -> u64;

    /// Whether a version must not use the prefixes that another version computed.
    fn salts_versions(&self) -> bool;

    /// A call has its permit after this wait.
    fn permitted(&self, waited: Duration);

    /// An engine drew tokens for a call in this time. Each token is reported once, also if it becomes no turn.
    fn drew(&self, tokens: u64, time: Duration);

    /// A request ended without an answer after this time, so the tokens that its engine drew are not known.
    fn gave_up(&self, after: Duration);
}
