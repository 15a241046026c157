//! How a trajectory leaves a gateway that is part of a run. The run itself takes the trajectory's turns, so the
//! gateway puts no rows of it.

use super::{Alarm, Book};
use crate::trajectories::{One, Tombstone};

impl Book {
    /// Removes the group of a trajectory, which has no other member, and replaces the trajectory with its
    /// tombstone, so that later calls are refused.
    pub(crate) fn leave(&self, one: &One, tombstone: Tombstone) {
        {
            let mut pages = self.pages.lock();
            if let Some(group) = pages.groups.remove(&one.spec.group) {
                pages.alarms.remove(&(group.deadline, Alarm::Group(one.spec.group.clone())));
            }
        }
        // A gateway in a run has no log, so the forgotten trajectories need not be removed from one.
        let _forgotten = self.bury(one.number, tombstone);
    }
}
