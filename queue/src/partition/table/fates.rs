//! What became of the groups whose rows left last, for whoever watches.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Freed;

/// Groups that are remembered; who watches asks more often than so many leave, or is told that some are missing.
const FATES_MAX: usize = 1024;

/// What became of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Every task acked them.
    Acked,
    /// They made room.
    Dropped,
    /// Their owner cleared them.
    Cleared,
    /// They could not be read back, or their storage unit is gone.
    Lost,
    /// Their policy version was too old for a take.
    Stale,
}

impl Disposition {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Dropped => "dropped",
            Self::Cleared => "cleared",
            Self::Lost => "lost",
            Self::Stale => "stale",
        }
    }
}

impl From<Freed> for Disposition {
    fn from(why: Freed) -> Self {
        match why {
            Freed::Acked => Self::Acked,
            Freed::Dropped => Self::Dropped,
            Freed::Cleared | Freed::ClearedAll => Self::Cleared,
            Freed::Lost => Self::Lost,
            Freed::Stale => Self::Stale,
        }
    }
}

/// Rows of a group have left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFate {
    /// Of the partition with that change.
    pub revision: u64,
    /// The group.
    pub group: String,
    /// How many of its rows.
    pub rows: usize,
    /// What became of them.
    pub fate: Disposition,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    latest: VecDeque<GroupFate>,
    /// Of the newest that is forgotten.
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

    /// Those after a revision, oldest first, and whether some of them are forgotten.
    pub(crate) fn after(&self, revision: u64) -> (Vec<GroupFate>, bool) {
        let start = self.latest.partition_point(|fate| fate.revision <= revision);
        (self.latest.range(start..).cloned().collect(), self.forgotten > revision)
    }

    /// What was there before somebody could watch.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
