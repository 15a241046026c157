//! Fates: what became of the groups whose rows left last, for clients that watch a partition.

use std::collections::VecDeque;

use crate::stats::GroupFate;

/// Groups that are remembered. A client that asks too seldom is told that some are missing.
const FATES_MAX: usize = 1024;

/// The latest fates of groups.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    latest: VecDeque<GroupFate>,
    /// The revision of the newest fate that is forgotten.
    forgotten: u64,
}

impl Fates {
    pub(super) fn note(&mut self, fate: GroupFate) {
        if self.latest.len() >= FATES_MAX
            && let Some(oldest) = self.latest.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.latest.push_back(fate);
    }

    /// The fates after a revision, oldest first, and whether some of them are forgotten.
    pub(crate) fn after(&self, revision: u64) -> (Vec<GroupFate>, bool) {
        let start = self.latest.partition_point(|fate| fate.revision <= revision);
        (self.latest.range(start..).cloned().collect(), self.forgotten > revision)
    }

    /// Forgets the fates of before a restart, which no client watched.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
