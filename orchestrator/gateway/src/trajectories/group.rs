//! A group of trajectories, whose rows are put together.

use tokio::time::Instant;

/// A group that has not ended.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) size: u32,
    /// The numbers of its trajectories.
    pub(super) members: Vec<u64>,
    /// How many of them are settled.
    pub(super) settled: u32,
    /// After this time the group waits for no further members.
    pub(super) deadline: Instant,
}

impl Group {
    pub(super) fn new(size: u32, deadline: Instant) -> Self {
        Self { size, members: Vec::new(), settled: 0, deadline }
    }

    pub(super) fn is_full(&self) -> bool {
        self.members.len() >= self.size as usize
    }

    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.settled as usize == self.members.len() && (self.is_full() || now >= self.deadline)
    }
}
