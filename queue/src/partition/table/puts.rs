//! Rows that enter the table: the checks of a put, its reservation and its publication.

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::{Added, Admission, Claim, Freed, Group, Progress, Released, Row, Table};
use crate::config::{ColumnSpec, check_column_names};
use crate::error::QueueError;
use crate::put::Put;
use crate::record::PutRecord;
use crate::row::{RECORD_ROWS_MAX, Runs};

impl Claim {
    /// The columns that are new with this put.
    pub(crate) fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }
}

impl Table {
    /// Checks whether a group that counts rows accepts this many more rows.
    pub(crate) fn check_group(&self, key: &str, size: usize, rows: usize) -> Result<(), QueueError> {
        let there = self.open_groups.get(key).and_then(|id| self.groups.get(id));
        // A put of a whole group with an existing name begins a new group. A put of only a part of the group
        // is late.
        let there = there.filter(|group| rows < size || !group.is_whole());
        let under_way = self.puts.group(key);
        let declared = there.map(|group| group.size).or(under_way.map(|way| way.size));
        if declared.is_none() && rows < size && self.samples.is_closed(key) {
            return Err(QueueError::GroupClosed { group: key.to_owned() });
        }
        let declared = declared.unwrap_or(size);
        let rows = there.map_or(0, |group| group.put) + under_way.map_or(0, |way| way.rows) + rows;
        if rows > declared {
            return Err(QueueError::GroupOverflow { group: key.to_owned(), size: declared, rows });
        }
        if declared != size {
            let what = format!("group={key} has rows={declared}, found group_size={size}");
            return Err(QueueError::DeclaredOtherwise { name: self.spec.name.clone(), what });
        }
        Ok(())
    }

    /// Checks whether a group accepts this many more rows of a journal record.
    pub(crate) fn check_group_of_record(
        &self,
        key: &str,
        size: usize,
        rows: usize,
    ) -> Result<(), QueueError> {
        let there = self.open_groups.get(key).filter(|id| self.is_open(**id));
        let there = there.and_then(|id| self.groups.get(id));
        let rows = there.map_or(0, |group| group.put).saturating_add(rows);
        let size = there.map_or(size, |group| group.size);
        if rows > size {
            return Err(QueueError::GroupOverflow { group: key.to_owned(), size, rows });
        }
        Ok(())
    }

    /// Whether new rows with the group's name belong to this group.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.groups.get(&id).is_some_and(|group| group.samples.is_some() || !group.is_whole())
    }

    /// Checks whether a put may have this many rows, before anything is allocated for each row.
    pub(crate) fn check_rows(&self, rows: usize) -> Result<(), QueueError> {
        let capacity = self.spec.capacity_rows.min(RECORD_ROWS_MAX);
        if rows > capacity { Err(QueueError::TooLarge { rows, capacity }) } else { Ok(()) }
    }

    /// Checks whether a put may be written. Changes nothing.
    pub(crate) fn admit(
        &self,
        put: &Put,
        rows: usize,
        columns: &[ColumnSpec],
    ) -> Result<Admission, QueueError> {
        match self.token_state(put.token.as_deref()) {
            Admission::Fresh => {}
            repetition => return Ok(repetition),
        }
        if self.closed {
            return Err(QueueError::Closed { partition: self.spec.name.clone() });
        }
        self.check_rows(rows)?;
        self.check_record(put.record.as_ref().map_or(0, String::len))?;
        check_column_names(columns)?;
        self.check_columns(columns)?;
        self.check_keys(&put.keys)?;
        self.check_sample(put)?;
        if put.sample.is_none() {
            self.check_group(&put.group, put.group_size, rows)?;
        }
        Ok(Admission::Fresh)
    }

    /// Reserves the slots, the keys, the token and the space in the group for a put that is about to be
    /// written.
    pub(crate) fn reserve(&mut self, put: &Put, rows: usize, kib: u32, columns: &[ColumnSpec]) -> Claim {
        self.puts.begin(put, rows, kib);
        self.begin_token(put.token.as_ref());
        self.keys.reserve(&put.keys);
        let rows = (0..rows).map(|_| self.slots.reserve()).collect();
        let (group, token, keys) = (put.group.clone(), put.token.clone(), put.keys.clone());
        let sample = put.sample.as_ref().map(|part| part.uid.clone());
        let columns = self.columns.expect(columns);
        Claim { rows, kib, group, sample, token, keys, columns }
    }

    /// Releases the reservation of a failed put.
    pub(crate) fn release(&mut self, claim: &Claim) {
        self.puts.end(&claim.group, claim.rows.len(), claim.kib, claim.sample.as_deref());
        self.end_token(claim.token.clone(), None);
        self.settle_columns(&claim.columns, false);
        self.close_if_whole(&claim.group);
        claim.keys.iter().for_each(|key| self.keys.settle(key));
        claim.rows.iter().for_each(|row| self.slots.release(*row));
    }

    /// Returns the open group of a name, or begins a new group.
    pub(super) fn begin_group(
        &mut self,
        key: &str,
        size: usize,
        policy_version: u64,
        priority: i64,
        by_samples: bool,
    ) -> u64 {
        if let Some(id) = self.open_groups.get(key)
            && self.is_open(*id)
        {
            return *id;
        }
        let id = self.next_group;
        self.next_group += 1;
        let samples = by_samples.then(|| self.new_samples(id, key));
        let group = Group {
            key: key.to_owned(),
            since: Instant::now(),
            size,
            rows: Vec::new(),
            put: 0,
            policy_version,
            priority,
            tokens: 0,
            in_parts: false,
            settled: 0,
            ready: vec![0; self.spec.tasks.len()],
            samples,
        };
        self.groups.insert(id, group);
        self.open_groups.insert(key.to_owned(), id);
        id
    }

    /// Makes reserved rows visible. If their group was given up in the meantime, the rows are dropped, and
    /// `Err` contains the resources that they released.
    pub(crate) fn publish(&mut self, put: PutRecord) -> Result<(), Released> {
        let PutRecord {
            group: key,
            group_size,
            group_gone,
            in_parts,
            sample,
            policy_version,
            priority,
            lengths,
            kib,
            labels,
            rows,
            payload,
            token,
            words,
            ..
        } = put;
        self.puts.end(&key, rows.len(), kib, sample.as_ref().map(|part| part.uid.as_str()));
        let is_late = self.is_late(&key, group_size, rows.len() + group_gone, sample.is_some());
        self.rows_live += rows.len();
        self.raise_version(policy_version);
        let tasks = self.spec.tasks.len();
        let id = self.begin_group(&key, group_size, policy_version, priority, sample.is_some());
        self.keep_group(id);
        self.unindex_group(id);
        let mut first_place = 0;
        if let Some(group) = self.groups.get_mut(&id) {
            let is_part = group.samples.is_none() && rows.len() + group_gone < group.size;
            group.in_parts |= in_parts.unwrap_or(is_part);
            group.put += group_gone;
            first_place = group.put;
            group.rows.extend_from_slice(&rows);
            group.put += rows.len();
            group.policy_version = group.policy_version.min(policy_version);
            group.priority = group.priority.max(priority);
            group.tokens += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
        }
        if let Some(part) = &sample {
            self.add_sample(id, part);
        }
        for (at, handle) in rows.iter().enumerate() {
            let progress = smallvec![Progress::Incomplete; tasks];
            let length = lengths.get(at).copied().unwrap_or(0);
            let row = Row {
                group: id,
                place: first_place + at,
                length,
                away: 0,
                label: None,
                parts: SmallVec::new(),
                progress,
            };
            self.slots.fill(*handle, Box::new(row));
        }
        for (handle, label) in rows.iter().zip(labels) {
            if let Some(key) = &label.key {
                self.keys.settle(key);
            }
            self.set_label(*handle, label);
        }
        self.ready.iter_mut().for_each(|task| task.incomplete += rows.len());
        self.add_columns(Added { rows: &rows, payload: &payload, kib, overwrite: false, lengths: &[] });
        // A group that has just become complete may be ready by its earlier rows alone.
        (0..tasks).for_each(|task| self.index_group(id, task));
        self.index_droppable(id);
        self.close_if_whole(&key);
        if let Some(words) = words {
            self.keep_record(&words);
        }
        if is_late {
            self.end_token(token, None);
            return Err(self.remove(&rows, Freed::Dropped));
        }
        let made = token.is_some().then(|| Runs::of(&rows));
        self.end_token(token, made);
        Ok(())
    }
}
