//! Groups that count samples, and the closing of groups: the effect of [samples](super::samples) on the
//! groups and rows of the table.

use std::collections::HashSet;

use serde_json::Value;
use tokio::time::Instant;

use super::samples::{ClosedTexts, GroupSamples};
use super::{Group, Released, Table};
use crate::error::QueueError;
use crate::put::Put;
use crate::record::{ClosedNames, Freed, INCOMPLETE, SamplePart, SamplesRecord, Unfinished};
use crate::stats::ClosedGroup;

impl Table {
    /// Whether a group of this name exists.
    pub(crate) fn has_group(&self, group: &str) -> bool {
        self.open_groups.contains_key(group)
    }

    /// Whether the group of this name counts samples.
    pub(crate) fn is_by_samples(&self, group: &str) -> bool {
        let group = self.open_groups.get(group).and_then(|id| self.groups.get(id));
        group.is_some_and(|group| group.samples.is_some())
    }

    /// Checks whether a group accepts this put: both must count rows, or both must count samples and the
    /// sample must be open.
    pub(super) fn check_sample(&self, put: &Put) -> Result<(), QueueError> {
        let otherwise = |what: String| {
            let what = format!("group={} {what}", put.group);
            Err(QueueError::DeclaredOtherwise { name: self.spec.name.clone(), what })
        };
        let there = self.open_groups.get(&put.group).and_then(|id| self.groups.get(id));
        let under_way = self.puts.group(&put.group);
        let by_samples = there
            .map(|group| group.samples.is_some())
            .or_else(|| under_way.map(|under_way| !under_way.samples.is_empty()));
        let Some(part) = &put.sample else {
            return if by_samples == Some(true) { otherwise("is put by samples".to_owned()) } else { Ok(()) };
        };
        if by_samples == Some(false) {
            return otherwise("is put by rows".to_owned());
        }
        let samples = there.and_then(|group| group.samples.as_deref());
        let is_closed = samples
            .map_or_else(|| self.samples.is_closed_by_samples(&put.group), |samples| !samples.is_open());
        if is_closed {
            return Err(QueueError::GroupClosed { group: put.group.clone() });
        }
        if samples.is_some_and(|samples| samples.is_whole(&part.uid)) {
            return Err(QueueError::SampleClosed { sample: part.uid.clone() });
        }
        let other = self.samples.group_of(&part.uid).and_then(|id| self.groups.get(&id));
        if let Some(other) = other.filter(|other| other.key != put.group) {
            return otherwise(format!("is not the one of sample={}, group={}", part.uid, other.key));
        }
        let size = there.map(|group| group.size).or_else(|| under_way.map(|under_way| under_way.size));
        if let Some(size) = size.filter(|size| *size != put.group_size) {
            return otherwise(format!("has samples={size}, found samples={}", put.group_size));
        }
        let mut uids: HashSet<&String> = HashSet::from([&part.uid]);
        uids.extend(samples.iter().flat_map(|samples| samples.uids()));
        uids.extend(under_way.iter().flat_map(|under_way| under_way.samples.keys()));
        if uids.len() > put.group_size {
            return Err(QueueError::GroupOverflow {
                group: put.group.clone(),
                size: put.group_size,
                rows: uids.len(),
            });
        }
        Ok(())
    }

    /// Creates the samples of a new group. If the name belongs to a closed group, the new group holds late
    /// rows of the closed group, which were read from the journal.
    pub(super) fn new_samples(&mut self, id: u64, key: &str) -> Box<GroupSamples> {
        self.samples.begin(id, key)
    }

    /// Records that rows of a sample were added to a group.
    pub(super) fn add_sample(&mut self, id: u64, part: &SamplePart) {
        self.keep_group(id);
        let Some(samples) = self.groups.get_mut(&id).and_then(|group| group.samples.as_mut()) else { return };
        self.samples.add(id, samples, part);
    }

    /// Closes a group whose samples are all complete. A group with puts in progress is closed only after
    /// these puts.
    pub(super) fn close_if_whole(&mut self, key: &str) {
        let Some(id) = self.open_groups.get(key).copied() else { return };
        let Some(group) = self.groups.get(&id) else { return };
        let is_whole = |samples: &GroupSamples| samples.whole_count() >= group.size;
        if self.puts.group(key).is_some() || !group.samples.as_deref().is_some_and(is_whole) {
            return;
        }
        self.close(id);
    }

    fn close(&mut self, id: u64) {
        self.keep_group(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(samples) = &mut group.samples else { return };
        if samples.is_closed() {
            return;
        }
        self.samples.close(id, &group.key, samples);
        let is_empty = group.rows.is_empty();
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
        if is_empty {
            self.forget_group(id);
        }
    }

    /// Removes a group that has no rows and accepts no more rows.
    pub(super) fn forget_group(&mut self, id: u64) {
        self.keep_group(id);
        self.unindex_group(id);
        let Some(group) = self.groups.remove(&id) else { return };
        if self.open_groups.get(&group.key) == Some(&id) {
            self.open_groups.remove(&group.key);
        }
        let Some(samples) = group.samples else {
            if group.in_parts && group.put == group.size {
                self.samples.remember_closed_by_rows(&group.key);
            }
            return;
        };
        self.samples.forget(id, &samples);
    }

    /// Removes an incomplete group without rows, and remembers its name as given up.
    pub(super) fn give_up_group(&mut self, id: u64) {
        if let Some(group) = self.groups.get(&id) {
            self.samples.remember_given_up(&group.key);
            if group.samples.is_some() {
                self.samples.remember_closed(&group.key);
            }
        }
        self.forget_group(id);
    }

    /// Whether rows are for a group that was given up while their put was in progress.
    pub(super) fn is_late(&self, group: &str, size: usize, rows: usize, by_samples: bool) -> bool {
        let is_there = || self.open_groups.get(group).is_some_and(|id| self.is_open(*id));
        (by_samples || rows < size) && self.samples.is_given_up(group) && !is_there()
    }

    /// Whether a sample is complete. Returns an error if the sample does not exist, or can no longer be
    /// completed.
    pub(crate) fn is_sample_whole(&self, uid: &str) -> Result<bool, QueueError> {
        let unknown =
            || QueueError::UnknownSample { partition: self.spec.name.clone(), sample: uid.to_owned() };
        let group = self.samples.group_of(uid).and_then(|id| self.groups.get(&id)).ok_or_else(unknown)?;
        let samples = group.samples.as_deref().ok_or_else(unknown)?;
        let is_whole = samples.is_whole(uid);
        if !is_whole && !samples.is_open() {
            return Err(QueueError::GroupClosed { group: group.key.clone() });
        }
        Ok(is_whole)
    }

    /// Ends a sample, which then accepts no more rows.
    pub(crate) fn end_sample(&mut self, uid: &str) {
        let Some(id) = self.samples.group_of(uid) else { return };
        let Some(group) = self.groups.get(&id) else { return };
        let key = group.key.clone();
        self.add_sample(id, &SamplePart { uid: uid.to_owned(), is_last: true });
        self.close_if_whole(&key);
    }

    /// Begins to close groups that were opened at `until` or before. Groups with puts in progress stay open.
    pub(crate) fn begin_close(&mut self, until: Instant) -> Vec<ClosedGroup> {
        let old = self.samples.opened_until(until);
        let mut closing = Vec::new();
        for id in old {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let (rows, size) = (group.rows.len(), group.size);
            let Some(samples) = &mut group.samples else { continue };
            if self.puts.group(&group.key).is_some() || !samples.begin_close() {
                continue;
            }
            let samples_whole = samples.whole_count();
            closing.push(ClosedGroup { group: group.key.clone(), samples: size, samples_whole, rows });
        }
        closing
    }

    pub(crate) fn undo_close(&mut self, names: &[String]) {
        for name in names {
            let group = self.open_groups.get(name).and_then(|id| self.groups.get_mut(id));
            if let Some(samples) = group.and_then(|group| group.samples.as_mut()) {
                samples.undo_close();
            }
        }
    }

    /// Closes groups, even if they are incomplete.
    pub(crate) fn finish_close(&mut self, names: &[String], unfinished: Unfinished) -> Released {
        let mut dropped = Vec::new();
        for name in names {
            let Some(id) = self.open_groups.get(name).copied() else { continue };
            self.keep_group(id);
            let rows = self.groups.get(&id).map(|group| group.rows.clone()).unwrap_or_default();
            match unfinished {
                Unfinished::Drop => dropped.extend(rows),
                Unfinished::Give => rows.iter().for_each(|row| {
                    let Ok(row) = self.row_mut(*row) else { return };
                    let tags = &mut row.label.get_or_insert_default().tags;
                    if tags.is_null() {
                        *tags = Value::Object(serde_json::Map::new());
                    }
                    if let Some(tags) = tags.as_object_mut() {
                        tags.insert(INCOMPLETE.to_owned(), Value::Bool(true));
                    }
                }),
            }
        }
        let released = self.remove(&dropped, Freed::Dropped);
        let gone: Vec<u64> = names.iter().filter_map(|name| self.open_groups.get(name).copied()).collect();
        gone.into_iter().for_each(|id| self.close(id));
        released
    }

    /// Removes groups without rows, and forgets the names of groups that count rows. A later put with the
    /// name of such a group begins a new group.
    pub(super) fn forget_empty_groups(&mut self) {
        let empty = self.groups.iter().filter(|(_, group)| group.rows.is_empty()).map(|(id, _)| *id);
        empty.collect::<Vec<_>>().into_iter().for_each(|id| self.forget_group(id));
        self.samples.forget_closed_by_rows();
    }

    /// Returns the record of a group's samples for a rewritten journal, if the group counts samples.
    pub(crate) fn samples_record(group: &Group) -> Option<SamplesRecord> {
        let samples = group.samples.as_deref()?;
        Some(SamplesRecord {
            group: group.key.clone(),
            group_size: group.size,
            policy_version: group.policy_version,
            priority: group.priority,
            samples: samples.to_vec(),
            closed: samples.is_closed(),
        })
    }

    /// Applies the record of a group's samples, which precedes the rows of the group in the journal.
    pub(crate) fn replay_samples(&mut self, record: SamplesRecord) {
        if record.closed {
            self.samples.remember_closed(&record.group);
        }
        let SamplesRecord { group, group_size, policy_version, priority, samples, .. } = record;
        let id = self.begin_group(&group, group_size, policy_version, priority, true);
        for (uid, is_last) in samples {
            self.add_sample(id, &SamplePart { uid, is_last });
        }
    }

    /// The names of the groups that accept no more rows.
    pub(super) fn closed_texts(&self) -> ClosedTexts {
        self.samples.closed_texts()
    }

    pub(crate) fn remember_closed(&mut self, names: &ClosedNames) {
        self.samples.remember(names);
    }
}
