//! Fates: how groups lost their rows, for clients that watch a partition.

use std::collections::VecDeque;

use crate::stats::GroupFate;

/// The number of fates that are remembered. A client that asks too rarely learns that some fates are missing.
const FATES_MAX: usize = 1024;

/// The latest fates of groups.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    latest: VecDeque<GroupFate>,
    /// The revision of the newest forgotten fate.
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

    /// Returns the fates after a revision, oldest first, and whether some of them are forgotten.
    pub(crate) fn after(&self, revision: u64) -> (Vec<GroupFate>, bool) {
        let start = self.latest.partition_point(|fate| fate.revision <= revision);
        (self.latest.range(start..).cloned().collect(), self.forgotten > revision)
    }

    /// Forgets all fates. After a restart, no client has watched the earlier fates.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
