//! Rows on their way in: what a put may do, what it sets aside, and how its rows become visible.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{Admission, Claim, Group, Part, Progress, Row, RowHandle, Slot, Table, UnderWay};
use crate::journal::{PayloadRecord, PutRecord};
use crate::partition::Put;
use crate::{ChunkId, ColumnSpec, QueueError};

/// Put tokens remembered, so that a repeated put is recognised.
const TOKENS_MAX: usize = 65_536;
/// Owners' records that are kept until they are forgotten; bytes.
const RECORDS_BYTES_MAX: usize = 256 << 20;

/// Share `at` of `parts` shares of a whole that differ by at most 1.
fn even_part(whole: u32, parts: usize, at: usize) -> u32 {
    let parts = parts as u32;
    whole / parts + u32::from((at as u32) < whole % parts)
}

impl Table {
    pub(crate) fn check_group(&self, key: &str, size: usize, rows: usize) -> Result<(), QueueError> {
        let there = self.open_groups.get(key).and_then(|id| self.groups.get(id));
        let (size, put) = there.map_or((size, 0), |group| (group.size, group.put));
        let (size, coming) =
            self.groups_under_way.get(key).map_or((size, 0), |way| (way.group_size, way.rows));
        let rows = put + coming + rows;
        if rows > size {
            return Err(QueueError::GroupOverflow { group: key.to_owned(), size, rows });
        }
        Ok(())
    }

    /// Whether a change with this token was made before.
    pub(crate) fn token_state(&self, token: Option<&str>) -> Admission {
        let Some(token) = token else { return Admission::Fresh };
        match self.tokens.get(token) {
            Some(known) => Admission::Known(known.clone()),
            None if self.tokens_under_way.contains(token) => Admission::UnderWay,
            None => Admission::Fresh,
        }
    }

    /// A change with this token is about to be written.
    pub(crate) fn begin_token(&mut self, token: Option<&String>) {
        self.tokens_under_way.extend(token.cloned());
    }

    /// It has come to an end; if rows are given, to a good one.
    pub(crate) fn end_token(&mut self, token: Option<String>, rows: Option<Vec<RowHandle>>) {
        let Some(token) = token else { return };
        self.tokens_under_way.remove(&token);
        if let Some(rows) = rows {
            self.remember(token, rows);
        }
    }

    /// Whether a put may be written; says so without changing anything.
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
        if rows > self.spec.capacity_rows {
            return Err(QueueError::TooLarge { rows, capacity: self.spec.capacity_rows });
        }
        let record_bytes = put.record.as_ref().map_or(0, String::len);
        if record_bytes > 0 && self.records_bytes + record_bytes > RECORDS_BYTES_MAX {
            return Err(QueueError::RecordsFull {
                partition: self.spec.name.clone(),
                bytes: self.records_bytes,
                bytes_max: RECORDS_BYTES_MAX,
            });
        }
        self.check_columns(columns)?;
        self.check_keys(&put.keys)?;
        self.check_sample(put)?;
        if put.sample.is_none() {
            self.check_group(&put.group, put.group_size, rows)?;
        }
        Ok(Admission::Fresh)
    }

    /// Sets slots, the group's places and the token aside for a put that is about to be written.
    pub(crate) fn reserve(&mut self, put: &Put, rows: usize, kib: u32) -> Claim {
        self.rows_reserved += rows;
        self.kib_reserved += kib;
        let under_way = self.groups_under_way.entry(put.group.clone()).or_insert_with(|| UnderWay {
            group_size: put.group_size,
            rows: 0,
            samples: BTreeMap::new(),
        });
        under_way.rows += rows;
        if let Some(part) = &put.sample {
            *under_way.samples.entry(part.uid.clone()).or_default() += 1;
        }
        self.tokens_under_way.extend(put.token.clone());
        self.keys_under_way.extend(put.keys.iter().cloned());
        let rows = (0..rows).map(|_| self.take_slot()).collect();
        let (group, token, keys) = (put.group.clone(), put.token.clone(), put.keys.clone());
        let sample = put.sample.as_ref().map(|part| part.uid.clone());
        Claim { rows, kib, group, sample, token, keys }
    }

    fn take_slot(&mut self) -> RowHandle {
        if let Some(slot) = self.free.pop() {
            return RowHandle { slot, generation: self.slots[slot as usize].generation };
        }
        self.slots.push(Slot { generation: self.generation_floor, row: None });
        RowHandle { slot: (self.slots.len() - 1) as u32, generation: self.generation_floor }
    }

    /// Gives back what was set aside for a put that came to nothing.
    pub(crate) fn release(&mut self, claim: &Claim) {
        self.settle(&claim.group, claim.rows.len(), claim.sample.as_deref());
        self.kib_reserved -= claim.kib;
        if let Some(token) = &claim.token {
            self.tokens_under_way.remove(token);
        }
        self.close_if_whole(&claim.group);
        for key in &claim.keys {
            self.keys_under_way.remove(key);
        }
        for row in &claim.rows {
            self.slots[row.slot as usize].generation += 1;
            self.free.push(row.slot);
        }
    }

    /// Rows of a group are not on their way any more.
    fn settle(&mut self, group: &str, rows: usize, sample: Option<&str>) {
        self.rows_reserved -= rows;
        let Some(under_way) = self.groups_under_way.get_mut(group) else { return };
        under_way.rows -= rows;
        if let Some(puts) = sample.and_then(|uid| under_way.samples.get_mut(uid)) {
            *puts -= 1;
        }
        under_way.samples.retain(|_, puts| *puts > 0);
        if under_way.rows == 0 {
            self.groups_under_way.remove(group);
        }
    }

    /// The group of a name, new if none is open.
    pub(super) fn begin_group(
        &mut self,
        key: &str,
        size: usize,
        policy_version: u64,
        priority: i64,
        by_samples: bool,
    ) -> u64 {
        if let Some(id) = self.open_groups.get(key) {
            return *id;
        }
        let id = self.next_group;
        self.next_group += 1;
        let samples = by_samples.then(|| self.new_samples(id, key));
        let group = Group {
            key: key.to_owned(),
            size,
            rows: Vec::new(),
            put: 0,
            policy_version,
            priority,
            tokens: 0,
            ready: vec![0; self.spec.tasks.len()],
            samples,
        };
        self.groups.insert(id, group);
        self.open_groups.insert(key.to_owned(), id);
        id
    }

    /// Makes reserved rows visible.
    pub(crate) fn publish(&mut self, put: PutRecord) {
        let PutRecord {
            group: key,
            group_size,
            group_gone,
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
        self.settle(&key, rows.len(), sample.as_ref().map(|part| part.uid.as_str()));
        self.kib_reserved -= kib;
        if let Some(token) = &token {
            self.tokens_under_way.remove(token);
        }
        self.rows_live += rows.len();
        self.kib_live += kib;
        self.policy_version = self.policy_version.max(policy_version);
        let tasks = self.spec.tasks.len();
        let id = self.begin_group(&key, group_size, policy_version, priority, sample.is_some());
        self.unindex_group(id);
        let mut first_place = 0;
        if let Some(group) = self.groups.get_mut(&id) {
            group.put += group_gone;
            first_place = group.put;
            group.rows.extend_from_slice(&rows);
            group.put += rows.len();
            group.policy_version = group.policy_version.min(policy_version);
            group.priority = group.priority.max(priority);
            group.tokens += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
            if group.samples.is_none() && group.put == group.size {
                self.open_groups.remove(&key);
            }
        }
        if let Some(part) = &sample {
            self.add_sample(id, part);
        }
        for (at, handle) in rows.iter().enumerate() {
            let progress = vec![Progress::Incomplete; tasks];
            let length = lengths.get(at).copied().unwrap_or(0);
            self.slots[handle.slot as usize].row = Some(Row {
                group: id,
                place: first_place + at,
                length,
                kib: even_part(kib, rows.len(), at),
                away: 0,
                label: None,
                parts: Vec::new(),
                progress,
            });
        }
        for (handle, label) in rows.iter().zip(labels) {
            if let Some(key) = &label.key {
                self.keys_under_way.remove(key);
            }
            self.set_label(*handle, label);
        }
        self.ready.iter_mut().for_each(|task| task.incomplete += rows.len());
        self.add_columns(&rows, &payload, 0);
        // A group that has become whole may be ready by its earlier rows alone.
        (0..tasks).for_each(|task| self.index_group(id, task));
        self.close_if_whole(&key);
        if let Some(token) = token {
            self.remember(token, rows);
        }
        if let Some(words) = words {
            self.keep_record(words);
        }
    }

    pub(crate) fn keep_record(&mut self, words: String) {
        self.records_bytes += words.len();
        self.records.push_back(words);
    }

    pub(crate) fn records(&self) -> impl ExactSizeIterator<Item = &String> {
        self.records.iter()
    }

    pub(crate) fn forget_records(&mut self, count: usize) {
        for words in self.records.drain(..count.min(self.records.len())) {
            self.records_bytes -= words.len();
        }
    }

    /// Sets columns of rows aside that are about to be written; nothing is changed on an error.
    pub(crate) fn begin_columns(
        &mut self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
    ) -> Result<(), QueueError> {
        self.check_columns(columns)?;
        let mut claimed = HashSet::with_capacity(rows.len() * columns.len());
        for handle in rows {
            let row = self.row(*handle)?;
            for ColumnSpec { name, .. } in columns {
                let present = row.parts.iter().any(|part| part.columns.contains(name));
                let key = (*handle, name.clone());
                if present || self.columns_under_way.contains(&key) || !claimed.insert(key) {
                    return Err(QueueError::ColumnExists { column: name.clone() });
                }
            }
        }
        self.columns_under_way.extend(claimed);
        self.learn_columns(columns);
        Ok(())
    }

    /// The end of a writing of columns, whatever came of it.
    pub(crate) fn end_columns(&mut self, rows: &[RowHandle], columns: &[String]) {
        for handle in rows {
            for column in columns {
                self.columns_under_way.remove(&(*handle, column.clone()));
            }
        }
    }

    pub(crate) fn remember(&mut self, token: String, rows: Vec<RowHandle>) {
        if self.token_order.len() >= TOKENS_MAX
            && let Some(oldest) = self.token_order.pop_front()
        {
            self.tokens.remove(&oldest);
        }
        self.token_order.push_back(token.clone());
        self.tokens.insert(token, rows);
    }

    pub(crate) fn remembered(&self) -> Vec<(String, Vec<RowHandle>)> {
        let rows_of = |token: &String| self.tokens.get(token).map(|rows| (token.clone(), rows.clone()));
        self.token_order.iter().filter_map(rows_of).collect()
    }

    /// Adds columns to rows that are there, `kib` in all; those that are gone by now are left out. Returns the KiB that
    /// count from now on.
    pub(crate) fn add_columns(&mut self, rows: &[RowHandle], payload: &PayloadRecord, kib: u32) -> u32 {
        let columns: Arc<[String]> = payload.columns.clone().into();
        let (mut there, mut charged) = (0, 0);
        for (at, handle) in rows.iter().enumerate() {
            let Ok(row) = self.row_mut(*handle) else { continue };
            let more = even_part(kib, rows.len(), at);
            row.kib += more;
            charged += more;
            there += 1;
            row.parts.push(Part {
                chunk: payload.chunk,
                row: payload.chunk_row(at),
                columns: Arc::clone(&columns),
            });
            let chunk = self.chunks.entry(payload.chunk).or_default();
            chunk.rows.push(*handle);
            chunk.live += 1;
            self.complete(*handle);
        }
        self.count_columns_in(&columns, there);
        self.kib_live += charged;
        charged
    }

    /// Whether any row needs the chunk.
    pub(crate) fn needs(&self, chunk: ChunkId) -> bool {
        self.chunks.contains_key(&chunk)
    }

    /// Whether a row is there in a slot.
    pub(crate) fn is_taken(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.row.is_some())
    }

    /// Chunks that rows need.
    pub(crate) fn chunk_ids(&self) -> Vec<ChunkId> {
        self.chunks.keys().copied().collect()
    }

    /// Makes room for the rows of a journal record, at the slots that it names.
    pub(crate) fn reserve_for_replay(&mut self, rows: &[RowHandle], kib: u32) {
        self.rows_reserved += rows.len();
        self.kib_reserved += kib;
        for row in rows {
            let needed = row.slot as usize + 1;
            if self.slots.len() < needed {
                self.slots.resize_with(needed, Slot::default);
            }
            self.slots[row.slot as usize].generation = row.generation;
            self.generation_floor = self.generation_floor.max(row.generation + 1);
        }
    }

    /// Handles of before the restart name no row of after it, but for those that are still there.
    pub(crate) fn finish_replay(&mut self, generation_floor: u32) {
        self.generation_floor = self.generation_floor.max(generation_floor);
        self.free.clear();
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if state.row.is_none() {
                state.generation = self.generation_floor;
                self.free.push(slot as u32);
            }
        }
    }

    /// Above every generation that was given out.
    pub(crate) fn generation_floor(&self) -> u32 {
        self.slots.iter().map(|slot| slot.generation + 1).max().unwrap_or(0).max(self.generation_floor)
    }
}
