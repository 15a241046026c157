//! Samplers that users implement.

use super::Take;

/// A ready group, as a sampler gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyGroup<'a> {
    /// The name of the group.
    pub group: &'a str,
    /// The number of rows.
    pub rows: usize,
    /// The number of tokens, as the partition counts them.
    pub tokens: u64,
    /// The oldest policy version of the rows.
    pub policy_version: u64,
    /// The greatest priority of the group's puts.
    pub priority: i64,
}

/// Chooses the groups of a take, if no built-in [`Sampler`](super::Sampler) fits.
pub trait GroupSampler: Send + Sync {
    /// Returns the groups to lease, as indices into `ready`. `ready` contains the fresh groups that are
    /// ready, oldest first. If the chosen groups are fewer than the take's `at_least`, the take waits for a
    /// change.
    ///
    /// This is called under the partition's lock: it must neither wait nor call the queue, and it delays
    /// every other call. Listing all ready groups costs O(groups), unlike the built-in samplers.
    fn choose(&self, ready: &[ReadyGroup<'_>], take: &Take) -> Vec<usize>;
}
