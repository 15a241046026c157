//! Samples: groups that count samples instead of rows. A sample may have several rows, so the number of rows
//! of a group is known only when the last row has arrived.
//!
//! Such a group is **open** until the declared number of samples is complete, or until a client closes the
//! group. No task can take an open group as a whole group. The name of a closed group is remembered, so that
//! late rows are refused and do not begin a new group of the same name. Only the latest names are remembered.
//!
//! Two more kinds of names are remembered: groups that count rows and arrived in several puts, and groups
//! that were **given up** because some of their rows were freed before all rows had arrived. If a group is
//! given up while a put to it is in progress, the rows of the put are dropped.
//!
//! # Invariants
//! Every group that is not closed is indexed by the time of its opening, and every sample by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::time::Instant;

use super::remembered::Remembered;
use super::texts::Texts;
use crate::invariants::{self, Violation};
use crate::record::{ClosedNames, SamplePart};

/// The state of a group that counts samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The group accepts no more rows, but its closing is not durable yet.
    Closing,
    Closed,
}

/// The samples of a group.
#[derive(Debug)]
pub(crate) struct GroupSamples {
    /// The samples by name, and whether each is complete.
    whole: BTreeMap<String, bool>,
    state: State,
    opened: Instant,
}

impl GroupSamples {
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether all rows of a sample have arrived.
    pub(super) fn is_whole(&self, uid: &str) -> bool {
        self.whole.get(uid) == Some(&true)
    }

    pub(super) fn whole_count(&self) -> usize {
        self.whole.values().filter(|is_whole| **is_whole).count()
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.whole.keys()
    }

    /// The samples, and whether each is complete.
    pub(super) fn to_vec(&self) -> Vec<(String, bool)> {
        self.whole.iter().map(|(uid, is_whole)| (uid.clone(), *is_whole)).collect()
    }

    /// Begins to close the group, until the closing is durable or undone. Returns whether the group was open.
    pub(super) fn begin_close(&mut self) -> bool {
        let is_open = self.is_open();
        if is_open {
            self.state = State::Closing;
        }
        is_open
    }

    pub(super) fn undo_close(&mut self) {
        if self.state == State::Closing {
            self.state = State::Open;
        }
    }
}

/// The names of closed groups, as in [`ClosedNames`].
#[derive(Debug)]
pub(super) struct ClosedTexts {
    pub(super) groups: Texts<()>,
    pub(super) by_rows: Texts<()>,
    pub(super) given_up: Texts<()>,
}

/// All groups of a table that count samples, and the names of groups that accept no more rows.
#[derive(Debug, Default)]
pub(super) struct SampleIndex {
    /// The group of each existing sample.
    groups: HashMap<String, u64>,
    /// The groups that are not closed, oldest first.
    open: BTreeSet<(Instant, u64)>,
    closed: Remembered<()>,
    /// The groups that count rows.
    closed_by_rows: Remembered<()>,
    /// The groups of both kinds that were given up.
    given_up: Remembered<()>,
}

impl SampleIndex {
    /// Begins a group. If its name belongs to a closed group, the new group holds late rows of the closed
    /// group, which were read from the journal.
    pub(super) fn begin(&mut self, id: u64, name: &str) -> Box<GroupSamples> {
        let opened = Instant::now();
        let is_late = self.closed.contains(name);
        if !is_late {
            self.open.insert((opened, id));
        }
        let state = if is_late { State::Closed } else { State::Open };
        Box::new(GroupSamples { whole: BTreeMap::new(), state, opened })
    }

    /// Records that rows of a sample were added to a group.
    pub(super) fn add(&mut self, id: u64, samples: &mut GroupSamples, part: &SamplePart) {
        *samples.whole.entry(part.uid.clone()).or_default() |= part.is_last;
        self.groups.entry(part.uid.clone()).or_insert(id);
    }

    /// Closes a group.
    pub(super) fn close(&mut self, id: u64, name: &str, samples: &mut GroupSamples) {
        samples.state = State::Closed;
        self.open.remove(&(samples.opened, id));
        self.closed.insert(name, ());
    }

    /// Removes a group that no longer exists.
    pub(super) fn forget(&mut self, id: u64, samples: &GroupSamples) {
        self.open.remove(&(samples.opened, id));
        for uid in samples.uids() {
            if self.groups.get(uid) == Some(&id) {
                self.groups.remove(uid);
            }
        }
    }

    /// The group of a sample.
    pub(super) fn group_of(&self, uid: &str) -> Option<u64> {
        self.groups.get(uid).copied()
    }

    /// The groups that are not closed and were opened at `until` or before, oldest first.
    pub(super) fn opened_until(&self, until: Instant) -> impl Iterator<Item = u64> {
        self.open.range(..=(until, u64::MAX)).map(|(_, id)| *id)
    }

    /// Whether a group of this name counted samples and was closed.
    pub(super) fn is_closed_by_samples(&self, name: &str) -> bool {
        self.closed.contains(name)
    }

    /// Whether a group of this name counted rows and was closed, or was given up.
    pub(super) fn is_closed(&self, name: &str) -> bool {
        self.closed_by_rows.contains(name) || self.given_up.contains(name)
    }

    pub(super) fn is_given_up(&self, name: &str) -> bool {
        self.given_up.contains(name)
    }

    /// Remembers a closed group that counts rows.
    pub(super) fn remember_closed_by_rows(&mut self, name: &str) {
        self.closed_by_rows.insert(name, ());
    }

    /// Remembers a closed group that counts samples.
    pub(super) fn remember_closed(&mut self, name: &str) {
        self.closed.insert(name, ());
    }

    pub(super) fn remember_given_up(&mut self, name: &str) {
        self.given_up.insert(name, ());
    }

    /// Forgets the names of groups that count rows, including groups that were given up.
    pub(super) fn forget_closed_by_rows(&mut self) {
        self.closed_by_rows = Remembered::default();
        let given_up = std::mem::take(&mut self.given_up);
        for (name, ()) in given_up.texts().iter().filter(|(name, ())| self.closed.contains(name)) {
            self.given_up.insert(name, ());
        }
    }

    /// The names of the groups that accept no more rows.
    pub(super) fn closed_texts(&self) -> ClosedTexts {
        let [groups, by_rows, given_up] =
            [&self.closed, &self.closed_by_rows, &self.given_up].map(|names| names.texts().clone());
        ClosedTexts { groups, by_rows, given_up }
    }

    pub(super) fn remember(&mut self, names: &ClosedNames) {
        names.groups.iter().for_each(|name| self.closed.insert(name, ()));
        names.by_rows.iter().for_each(|name| self.closed_by_rows.insert(name, ()));
        names.given_up.iter().for_each(|name| self.given_up.insert(name, ()));
    }

    /// Checks the index, in O(samples). `groups` are the existing groups that count samples.
    pub(super) fn check<'a>(
        &self,
        groups: impl Iterator<Item = (u64, &'a GroupSamples)>,
    ) -> Result<(), Violation> {
        let mut open = 0;
        for (id, samples) in groups {
            open += usize::from(!samples.is_closed());
            if !samples.is_closed() && !self.open.contains(&(samples.opened, id)) {
                return Err(Violation(format!(
                    "group={id} accepts samples and is not among the open groups"
                )));
            }
            if let Some(uid) = samples.uids().find(|uid| !self.groups.contains_key(*uid)) {
                return Err(Violation(format!("sample={uid} of group={id} is not found by its name")));
            }
        }
        invariants::counts_agree("open groups", open, self.open.len())?;
        let names = [&self.closed, &self.closed_by_rows, &self.given_up];
        names.into_iter().try_for_each(|names| names.check("names of closed groups"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(uid: &str, is_last: bool) -> SamplePart {
        SamplePart { uid: uid.to_owned(), is_last }
    }

    #[test]
    fn a_group_is_open_until_it_is_closed_and_its_samples_are_found_until_it_is_gone() {
        let mut index = SampleIndex::default();
        let mut samples = index.begin(7, "g");
        index.add(7, &mut samples, &part("a", false));
        index.add(7, &mut samples, &part("b", true));
        index.add(7, &mut samples, &part("a", true));
        assert_eq!((samples.whole_count(), samples.is_whole("a"), index.group_of("a")), (2, true, Some(7)));
        assert_eq!(index.opened_until(Instant::now()).collect::<Vec<_>>(), [7]);
        assert_eq!(index.check([(7, &*samples)].into_iter()), Ok(()));
        assert!(samples.begin_close() && !samples.begin_close(), "once");
        samples.undo_close();
        assert!(samples.is_open());
        index.close(7, "g", &mut samples);
        assert!(samples.is_closed() && index.is_closed_by_samples("g"));
        assert_eq!(index.opened_until(Instant::now()).count(), 0);
        assert_eq!(index.check([(7, &*samples)].into_iter()), Ok(()));
        index.forget(7, &samples);
        assert_eq!(index.group_of("a"), None);
        assert!(index.check([(7, &*samples)].into_iter()).is_err(), "its samples are not found");
        assert!(index.begin(8, "g").is_closed(), "it comes late");
    }

    #[test]
    fn names_of_groups_that_were_put_by_samples_outlive_those_of_the_others() {
        let mut index = SampleIndex::default();
        index.remember_closed("samples");
        index.remember_given_up("samples");
        index.remember_given_up("given up rows");
        index.remember_closed_by_rows("rows");
        assert!(index.is_closed("rows") && index.is_given_up("given up rows"));
        index.forget_closed_by_rows();
        assert!(!index.is_closed("rows") && !index.is_given_up("given up rows"));
        assert!(index.is_given_up("samples") && index.is_closed_by_samples("samples"));
        let names = |texts: Texts<()>| texts.iter().map(|(name, ())| name.to_owned()).collect::<Vec<_>>();
        let ClosedTexts { groups, by_rows, given_up } = index.closed_texts();
        let found = [names(groups), names(by_rows), names(given_up)];
        assert_eq!(found, [vec!["samples".to_owned()], vec![], vec!["samples".to_owned()]]);
        let [groups, by_rows, given_up] = found;
        let mut again = SampleIndex::default();
        again.remember(&ClosedNames { groups, by_rows, given_up });
        assert!(again.is_given_up("samples") && again.is_closed_by_samples("samples"));
    }
}
