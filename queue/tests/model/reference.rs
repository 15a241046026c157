//! The reference model: a list of rows that is searched from the front.

use std::cmp::Reverse;

use rolldock_queue::{Put, RowHandle, Sampler, Take};
use serde_json::Value;

use crate::rows::Versions;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum State {
    Free,
    Leased(u64),
    Acked,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelRow {
    pub(crate) id: i64,
    pub(crate) handle: RowHandle,
    pub(crate) group: usize,
    pub(crate) extra: bool,
    pub(crate) versions: Versions,
    pub(crate) key: Option<String>,
    pub(crate) tags: Value,
    pub(crate) states: [State; 2],
}

#[derive(Debug, Clone)]
pub(crate) struct ModelGroup {
    pub(crate) size: usize,
    pub(crate) put: usize,
    /// The greatest priority of its puts.
    pub(crate) priority: i64,
    /// The oldest version of its puts.
    pub(crate) policy_version: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) groups: Vec<ModelGroup>,
    /// All rows, ordered by their groups and then by their puts.
    pub(crate) rows: Vec<ModelRow>,
    /// Handles of removed rows, which must be refused.
    pub(crate) gone: Vec<RowHandle>,
    pub(crate) next_id: i64,
    /// The number of writes of columns so far.
    pub(crate) writes: i64,
}

impl Model {
    pub(crate) fn is_ready(row: &ModelRow, task: usize) -> bool {
        row.states[task] == State::Free && (task == 0 || row.extra)
    }

    /// The versions of a row's columns.
    pub(crate) fn versions(&self, id: i64) -> Versions {
        self.rows.iter().find(|row| row.id == id).map_or([-1; 2], |row| row.versions)
    }

    /// Groups in the order in which a take considers them.
    pub(crate) fn order(&self, take: &Take) -> Vec<usize> {
        let fresh = |group: &usize| self.groups[*group].policy_version >= take.min_policy_version;
        let mut order: Vec<usize> = (0..self.groups.len()).filter(fresh).collect();
        match take.sampler {
            Sampler::Priority => order.sort_by_key(|at| (Reverse(self.groups[*at].priority), *at)),
            Sampler::Freshest => order.sort_by_key(|at| Reverse((self.groups[*at].policy_version, *at))),
            _ => {}
        }
        order
    }

    pub(crate) fn rows_of(&self, group: usize) -> impl Iterator<Item = &ModelRow> {
        self.rows.iter().filter(move |row| row.group == group)
    }

    pub(crate) fn expected(&self, task: usize, groups: bool, count: usize, take: &Take) -> Vec<i64> {
        let order = self.order(take).into_iter();
        if !groups {
            let ready = order.flat_map(|group| self.rows_of(group)).filter(|row| Self::is_ready(row, task));
            return ready.take(count).map(|row| row.id).collect();
        }
        let whole = |group: &usize| {
            let mut rows = self.rows_of(*group).peekable();
            let state = &self.groups[*group];
            state.put == state.size && rows.peek().is_some() && rows.all(|row| Self::is_ready(row, task))
        };
        let chosen = order.filter(whole).take(count);
        chosen.flat_map(|group| self.rows_of(group)).map(|row| row.id).collect()
    }

    pub(crate) fn add(&mut self, group: usize, put: &Put, ids: &[i64], handles: &[RowHandle]) {
        let at = self.rows.partition_point(|row| row.group <= group);
        for (place, (id, handle)) in ids.iter().zip(handles).enumerate() {
            let row = ModelRow {
                id: *id,
                handle: *handle,
                group,
                extra: false,
                versions: [0; 2],
                key: put.keys.get(place).cloned(),
                tags: Value::Null,
                states: [State::Free; 2],
            };
            self.rows.insert(at + place, row);
        }
        let group = &mut self.groups[group];
        group.put += ids.len();
        group.priority = group.priority.max(put.priority);
        group.policy_version = group.policy_version.min(put.policy_version);
    }

    pub(crate) fn remove(&mut self, gone: impl Fn(&ModelRow) -> bool) {
        self.gone.extend(self.rows.iter().filter(|row| gone(row)).map(|row| row.handle));
        self.rows.retain(|row| !gone(row));
    }

    pub(crate) fn release(&mut self, lease: u64) {
        for state in self.rows.iter_mut().flat_map(|row| row.states.iter_mut()) {
            if *state == State::Leased(lease) {
                *state = State::Free;
            }
        }
    }
}
