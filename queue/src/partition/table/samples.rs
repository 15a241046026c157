//! Groups that are put by samples of several rows each: how many rows they will have nobody knows before the last one.
//!
//! Such a group is **open** until as many samples as it was declared with are whole, or until somebody closes it. It is
//! ready for nobody before. Its name is remembered when it is closed, so that what comes late is refused instead of
//! beginning the group anew; only so many names are remembered, the latest.
//!
//! Names of groups that are put by rows, in several puts, are remembered too, and those of groups that were **given up**
//! because rows of them are gone before all had come: what is on its way into one of these then is dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{Freed, Group, Released, Table};
use crate::QueueError;
use crate::partition::Put;

/// Names of closed groups that are remembered.
const CLOSED_MAX: usize = 65_536;

/// The tag that rows of a group get that was closed before its samples were whole.
pub const INCOMPLETE: &str = "incomplete";

/// The sample that a put's rows belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePart {
    /// The sample; unique among those of the groups that are there.
    pub uid: String,
    /// Whether the sample is whole with these rows.
    pub is_last: bool,
}

/// What becomes of the rows of groups that are closed before their samples are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unfinished {
    /// They are ready as they are, with the tag [`INCOMPLETE`].
    Give,
    /// They are freed, for every task, with the disposition `dropped`.
    Drop,
}

/// A group that was closed before its samples were whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedGroup {
    /// Its name.
    pub group: String,
    /// Samples that it was declared with.
    pub samples: usize,
    /// Those of them that are whole.
    pub samples_whole: usize,
    /// Its rows.
    pub rows: usize,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// It takes no more rows; that is not durable yet.
    Closing,
    Closed,
}

/// The samples of a group.
#[derive(Debug)]
pub(crate) struct GroupSamples {
    /// Whether each is whole.
    whole: BTreeMap<String, bool>,
    state: State,
    opened: Instant,
}

impl GroupSamples {
    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn whole_count(&self) -> usize {
        self.whole.values().filter(|is_whole| **is_whole).count()
    }
}

/// All groups that are put by samples.
#[derive(Debug, Default)]
pub(crate) struct SampleIndex {
    /// The group of each sample that is there.
    groups: HashMap<String, u64>,
    /// Groups that are open, oldest first.
    open: BTreeSet<(Instant, u64)>,
    closed: Names,
    /// Groups that were put by rows.
    closed_by_rows: Names,
    /// Those of the closed that were given up.
    given_up: Names,
}

/// The latest names.
#[derive(Debug, Default)]
struct Names {
    names: HashSet<String>,
    order: VecDeque<String>,
}

impl Names {
    fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn insert(&mut self, name: &str) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        self.order.push_back(name.to_owned());
        if self.order.len() > CLOSED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }

    fn to_vec(&self) -> Vec<String> {
        self.order.iter().cloned().collect()
    }
}

/// Names of groups that take no more rows, for a journal without history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedNames {
    /// Put by samples.
    pub(crate) groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) by_rows: Vec<String>,
    /// Rows that come late are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) given_up: Vec<String>,
}

impl ClosedNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.by_rows.is_empty() && self.given_up.is_empty()
    }
}

impl SampleIndex {
    /// Whether a group that is put by rows comes late.
    pub(super) fn is_closed(&self, name: &str) -> bool {
        self.closed_by_rows.contains(name) || self.given_up.contains(name)
    }
}

/// What the journal keeps of a group's samples when it is rewritten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SamplesRecord {
    pub(crate) group: String,
    pub(crate) group_size: usize,
    pub(crate) policy_version: u64,
    pub(crate) priority: i64,
    pub(crate) samples: Vec<(String, bool)>,
    pub(crate) closed: bool,
}

impl Table {
    /// Whether a group that takes rows counts samples.
    pub(crate) fn is_by_samples(&self, group: &str) -> bool {
        let group = self.open_groups.get(group).and_then(|id| self.groups.get(id));
        group.is_some_and(|group| group.samples.is_some())
    }

    /// Whether a group takes rows in this way: by rows or by samples, and of this sample.
    pub(super) fn check_sample(&self, put: &Put) -> Result<(), QueueError> {
        let otherwise = |what: String| {
            let what = format!("group={} {what}", put.group);
            Err(QueueError::DeclaredOtherwise { name: self.spec.name.clone(), what })
        };
        let there = self.open_groups.get(&put.group).and_then(|id| self.groups.get(id));
        let under_way = self.groups_under_way.get(&put.group);
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
            .map_or_else(|| self.samples.closed.contains(&put.group), |samples| samples.state != State::Open);
        if is_closed {
            return Err(QueueError::GroupClosed { group: put.group.clone() });
        }
        if samples.is_some_and(|samples| samples.whole.get(&part.uid) == Some(&true)) {
            return Err(QueueError::SampleClosed { sample: part.uid.clone() });
        }
        let other = self.samples.groups.get(&part.uid).and_then(|id| self.groups.get(id));
        if let Some(other) = other.filter(|other| other.key != put.group) {
            return otherwise(format!("is not the one of sample={}, group={}", part.uid, other.key));
        }
        let size = there.map(|group| group.size).or_else(|| under_way.map(|under_way| under_way.group_size));
        if let Some(size) = size.filter(|size| *size != put.group_size) {
            return otherwise(format!("has samples={size}, found samples={}", put.group_size));
        }
        let mut uids: HashSet<&String> = HashSet::from([&part.uid]);
        uids.extend(samples.iter().flat_map(|samples| samples.whole.keys()));
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

    /// The samples of a group that begins now. One of a name that was closed is a late part of it, from the journal.
    pub(super) fn new_samples(&mut self, id: u64, key: &str) -> Box<GroupSamples> {
        let opened = Instant::now();
        let is_late = self.samples.closed.contains(key);
        if !is_late {
            self.samples.open.insert((opened, id));
        }
        let state = if is_late { State::Closed } else { State::Open };
        Box::new(GroupSamples { whole: BTreeMap::new(), state, opened })
    }

    /// Rows of a sample have come into a group.
    pub(super) fn add_sample(&mut self, id: u64, part: &SamplePart) {
        self.keep_group(id);
        let Some(samples) = self.groups.get_mut(&id).and_then(|group| group.samples.as_mut()) else { return };
        *samples.whole.entry(part.uid.clone()).or_default() |= part.is_last;
        self.samples.groups.entry(part.uid.clone()).or_insert(id);
    }

    /// Closes a group whose samples are all whole. One that rows are on their way into waits for them.
    pub(super) fn close_if_whole(&mut self, key: &str) {
        let Some(id) = self.open_groups.get(key).copied() else { return };
        let Some(group) = self.groups.get(&id) else { return };
        let is_whole = |samples: &GroupSamples| samples.whole_count() >= group.size;
        if self.groups_under_way.contains_key(key) || !group.samples.as_deref().is_some_and(is_whole) {
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
        samples.state = State::Closed;
        self.samples.open.remove(&(samples.opened, id));
        self.samples.closed.insert(&group.key);
        let is_empty = group.rows.is_empty();
        (0..self.spec.tasks.len()).for_each(|task| self.index_group(id, task));
        if is_empty {
            self.forget_group(id);
        }
    }

    /// A group without rows that takes none any more.
    pub(super) fn forget_group(&mut self, id: u64) {
        self.keep_group(id);
        self.unindex_group(id);
        let Some(group) = self.groups.remove(&id) else { return };
        if self.open_groups.get(&group.key) == Some(&id) {
            self.open_groups.remove(&group.key);
        }
        let Some(samples) = group.samples else {
            if group.in_parts && group.put == group.size {
                self.samples.closed_by_rows.insert(&group.key);
            }
            return;
        };
        self.samples.open.remove(&(samples.opened, id));
        for uid in samples.whole.keys() {
            if self.samples.groups.get(uid) == Some(&id) {
                self.samples.groups.remove(uid);
            }
        }
    }

    /// Lets go of a group without rows that were not all there.
    pub(super) fn give_up_group(&mut self, id: u64) {
        if let Some(group) = self.groups.get(&id) {
            self.samples.given_up.insert(&group.key);
            if group.samples.is_some() {
                self.samples.closed.insert(&group.key);
            }
        }
        self.forget_group(id);
    }

    /// Whether rows come into a group that was given up while they were on their way.
    pub(super) fn is_late(&self, group: &str, size: usize, rows: usize, by_samples: bool) -> bool {
        let is_there = || self.open_groups.get(group).is_some_and(|id| self.is_open(*id));
        (by_samples || rows < size) && self.samples.given_up.contains(group) && !is_there()
    }

    /// Whether a sample is whole; an error if it is not there, or never will be.
    pub(crate) fn is_sample_whole(&self, uid: &str) -> Result<bool, QueueError> {
        let unknown =
            || QueueError::UnknownSample { partition: self.spec.name.clone(), sample: uid.to_owned() };
        let group = self.samples.groups.get(uid).and_then(|id| self.groups.get(id)).ok_or_else(unknown)?;
        let samples = group.samples.as_deref().ok_or_else(unknown)?;
        let is_whole = samples.whole.get(uid) == Some(&true);
        if !is_whole && samples.state != State::Open {
            return Err(QueueError::GroupClosed { group: group.key.clone() });
        }
        Ok(is_whole)
    }

    /// No more rows of a sample.
    pub(crate) fn end_sample(&mut self, uid: &str) {
        let Some(id) = self.samples.groups.get(uid).copied() else { return };
        let Some(group) = self.groups.get(&id) else { return };
        let key = group.key.clone();
        self.add_sample(id, &SamplePart { uid: uid.to_owned(), is_last: true });
        self.close_if_whole(&key);
    }

    /// Groups that were opened at `until` or before take no more rows; those that rows are on their way into stay.
    pub(crate) fn begin_close(&mut self, until: Instant) -> Vec<ClosedGroup> {
        let old = self.samples.open.range(..=(until, u64::MAX)).map(|(_, id)| *id);
        let mut closing = Vec::new();
        for id in old {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let (rows, size) = (group.rows.len(), group.size);
            let Some(samples) = &mut group.samples else { continue };
            if samples.state != State::Open || self.groups_under_way.contains_key(&group.key) {
                continue;
            }
            samples.state = State::Closing;
            let samples_whole = samples.whole_count();
            closing.push(ClosedGroup { group: group.key.clone(), samples: size, samples_whole, rows });
        }
        closing
    }

    pub(crate) fn undo_close(&mut self, names: &[String]) {
        for name in names {
            let group = self.open_groups.get(name).and_then(|id| self.groups.get_mut(id));
            if let Some(samples) = group.and_then(|group| group.samples.as_mut())
                && samples.state == State::Closing
            {
                samples.state = State::Open;
            }
        }
    }

    /// Closes groups as they are.
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

    /// Lets go of groups without rows: their names begin new ones, and so do those of groups that were put by rows.
    pub(super) fn forget_empty_groups(&mut self) {
        let empty = self.groups.iter().filter(|(_, group)| group.rows.is_empty()).map(|(id, _)| *id);
        empty.collect::<Vec<_>>().into_iter().for_each(|id| self.forget_group(id));
        self.samples.closed_by_rows = Names::default();
        let given_up = std::mem::take(&mut self.samples.given_up);
        let by_samples = given_up.order.iter().filter(|name| self.samples.closed.contains(name));
        let mut stay = Names::default();
        by_samples.for_each(|name| stay.insert(name));
        self.samples.given_up = stay;
    }

    /// The groups that are put by samples, for a journal without history.
    pub(crate) fn samples_record(group: &Group) -> Option<SamplesRecord> {
        let samples = group.samples.as_deref()?;
        Some(SamplesRecord {
            group: group.key.clone(),
            group_size: group.size,
            policy_version: group.policy_version,
            priority: group.priority,
            samples: samples.whole.iter().map(|(uid, is_whole)| (uid.clone(), *is_whole)).collect(),
            closed: samples.is_closed(),
        })
    }

    /// A group as the journal has it, before its rows.
    pub(crate) fn replay_samples(&mut self, record: SamplesRecord) {
        if record.closed {
            self.samples.closed.insert(&record.group);
        }
        let SamplesRecord { group, group_size, policy_version, priority, samples, .. } = record;
        let id = self.begin_group(&group, group_size, policy_version, priority, true);
        for (uid, is_last) in samples {
            self.add_sample(id, &SamplePart { uid, is_last });
        }
    }

    pub(crate) fn closed_groups(&self) -> ClosedNames {
        let SampleIndex { closed, closed_by_rows, given_up, .. } = &self.samples;
        let (groups, by_rows, given_up) = (closed.to_vec(), closed_by_rows.to_vec(), given_up.to_vec());
        ClosedNames { groups, by_rows, given_up }
    }

    pub(crate) fn remember_closed(&mut self, names: &ClosedNames) {
        names.groups.iter().for_each(|name| self.samples.closed.insert(name));
        names.by_rows.iter().for_each(|name| self.samples.closed_by_rows.insert(name));
        names.given_up.iter().for_each(|name| self.samples.given_up.insert(name));
    }
}
