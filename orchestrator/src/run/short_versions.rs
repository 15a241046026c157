//! Policy versions whose steps ended with too few groups.
//!
//! An embedded consumer that announces takes the groups of a whole version at a time. After a short step there are
//! fewer groups, and the run waits for the version nevertheless. So the consumer must know where such a version ends.
//! Groups are counted in the order of their puts, over the groups that the consumer may take in this process.
//!
//! # Deliberately absent
//! A process that continues a run knows only the last end of the earlier processes. If several short versions were
//! not acked, it takes their groups in whole batches up to this end. It does not know of a version without groups that
//! was not announced.

use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// What the consumer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Take so many groups, which end a version.
    Groups(u64),
    /// Announce a version whose steps have no group.
    Empty,
    /// Wait for further groups.
    Later,
}

/// The ends of the versions whose steps were short.
#[derive(Debug)]
pub(super) struct ShortVersions {
    steps_per_version: u64,
    step_groups: u64,
    /// The number of each short version, from 0, and the count of groups at its end. Each version ends after the
    /// versions before it.
    ends: VecDeque<(u64, u64)>,
}

impl ShortVersions {
    pub(super) fn new(steps_per_version: u64, step_groups: u64) -> Self {
        Self { steps_per_version: steps_per_version.max(1), step_groups, ends: VecDeque::new() }
    }

    /// Notes that `step` (from 1) ended short. `groups` is the count of groups up to its end. Further steps of its
    /// version are expected to be full, until they are noted here too.
    pub(super) fn note(&mut self, step: u64, groups: u64) {
        let version = step.saturating_sub(1) / self.steps_per_version;
        let further = (version + 1) * self.steps_per_version - step;
        self.ends.pop_back_if(|(last, _)| *last == version);
        self.ends.push_back((version, groups + further * self.step_groups));
    }

    /// Notes the last step that earlier processes of the run have ended, which may have been short. Of its version
    /// and the versions before it, `groups` groups are not acked.
    pub(super) fn note_earlier(&mut self, step: u64, groups: u64) {
        let begun = step % self.steps_per_version;
        let until_end = (self.steps_per_version - begun) % self.steps_per_version * self.step_groups;
        // All versions are acked, or they are whole.
        if !(groups + until_end).is_multiple_of(self.version_groups()) {
            self.note(step, groups);
        }
    }

    /// What is due if the consumer has acked `acked` groups of the `put` ones, and takes `batch` groups at a time.
    pub(super) fn due(&self, acked: u64, put: u64, batch: u64) -> Due {
        let until_end = self.ends.front().map(|(_, end)| end.saturating_sub(acked));
        match until_end.map_or(batch, |groups| groups.min(batch)) {
            0 => Due::Empty,
            groups if put.saturating_sub(acked) >= groups => Due::Groups(groups),
            _ => Due::Later,
        }
    }

    /// Forgets the first short version if the consumer has announced it: after a batch of `groups`, by which `acked`
    /// groups are acked. A version whose batch was whole is not short. It may end where the next version ends too,
    /// which then has no groups.
    pub(super) fn announced(&mut self, groups: u64, acked: u64) {
        let is_short = groups < self.version_groups();
        self.ends.pop_front_if(|(_, end)| is_short && *end <= acked);
    }

    /// The number of groups of a version whose steps are full.
    fn version_groups(&self) -> u64 {
        self.steps_per_version * self.step_groups
    }
}
