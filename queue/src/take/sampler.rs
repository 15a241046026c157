//! Samplers of users.

use super::Take;

/// A group that is ready, as a sampler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyGroup<'a> {
    /// Its name.
    pub group: &'a str,
    /// Its rows.
    pub rows: usize,
    /// Their tokens, as the partition counts them.
    pub tokens: u64,
    /// The oldest policy version of its rows.
    pub policy_version: u64,
    /// The greatest priority of its puts.
    pub priority: i64,
}

/// Chooses which groups a take gets, where no built-in [`Sampler`](super::Sampler) will do.
pub trait GroupSampler: Send + Sync {
    /// The groups to lease, by their places among the fresh groups that are ready, `ready[0]` being the
    /// oldest. None or too few for the take's `at_least`: it waits for a change.
    ///
    /// Called under the partition's lock: it must neither wait nor call the queue, and every other call
    /// waits for it. Seeing all ready groups is O(groups), which no built-in sampler is.
    fn choose(&self, ready: &[ReadyGroup<'_>], take: &Take) -> Vec<usize>;
}
