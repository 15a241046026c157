//! Slots: the storage of rows, and the handles that name rows.
//!
//! Slots are reused in the order in which they became free, and only while many slots are free. A slot's
//! generation therefore grows slowly, even if rows are put and freed fast. A slot is retired before its
//! generation can overflow.
//!
//! # Invariants
//! - Each slot is in one state: free, reserved for a row that is not visible yet, filled with a row, or retired. A
//!   retired slot is never used again.
//! - No two rows ever have equal handles.

use std::collections::VecDeque;

use super::{Row, RowHandle, Table};
use crate::invariants::{self, Violation};

/// The generation at which a slot is retired.
pub(crate) const GENERATION_MAX: u32 = u32::MAX - (1 << 16);
/// The maximum number of rows of a partition, whatever its capacity.
pub(crate) const SLOTS_MAX: usize = 1 << 26;
/// The number of free slots that are kept back from reuse.
pub(crate) const SLOTS_AT_REST: usize = if cfg!(test) { 4 } else { 16_384 };

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// Whether the slot is reserved for a row that is not visible yet.
    is_reserved: bool,
    /// The row, or `None` if the slot is free, reserved or retired. The row is boxed, so that a slot without a row is
    /// small.
    row: Option<Box<Row>>,
}

/// All slots of a table.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The free slots, in the order in which they are reused.
    free: VecDeque<u32>,
    /// How often a slot became free since [`shrink`](Self::shrink) last checked its conditions.
    freed_since_check: usize,
    /// The generation of new slots.
    generation_floor: u32,
    /// A number greater than every generation that this process has used.
    generation_above: u32,
}

impl Slots {
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn row(&self, handle: RowHandle) -> Option<&Row> {
        let slot = self.slots.get(handle.slot as usize)?;
        slot.row.as_deref().filter(|_| slot.generation == handle.generation)
    }

    pub(super) fn row_mut(&mut self, handle: RowHandle) -> Option<&mut Row> {
        let slot = self.slots.get_mut(handle.slot as usize)?;
        slot.row.as_deref_mut().filter(|_| slot.generation == handle.generation)
    }

    /// All rows, in the order of their slots.
    pub(super) fn rows(&self) -> impl Iterator<Item = (RowHandle, &Row)> {
        self.slots.iter().enumerate().filter_map(|(slot, state)| {
            let handle = RowHandle { slot: slot as u32, generation: state.generation };
            Some((handle, state.row.as_deref()?))
        })
    }

    /// Reserves a slot for a row.
    pub(super) fn reserve(&mut self) -> RowHandle {
        let rested = (self.free.len() > SLOTS_AT_REST).then(|| self.free.pop_front()).flatten();
        let slot = rested.unwrap_or_else(|| {
            self.slots.push(Slot { generation: self.generation_floor, ..Slot::default() });
            (self.slots.len() - 1) as u32
        });
        let state = &mut self.slots[slot as usize];
        state.is_reserved = true;
        self.generation_above = self.generation_above.max(state.generation.saturating_add(1));
        RowHandle { slot, generation: state.generation }
    }

    /// Frees a reserved slot.
    pub(super) fn release(&mut self, handle: RowHandle) {
        self.free(handle.slot);
    }

    /// Puts a row into the slot that was reserved for it.
    pub(super) fn fill(&mut self, handle: RowHandle, row: Box<Row>) {
        let state = &mut self.slots[handle.slot as usize];
        state.is_reserved = false;
        state.row = Some(row);
    }

    /// Removes a row and frees its slot. Returns `None` if the handle names no row.
    pub(super) fn take(&mut self, handle: RowHandle) -> Option<Box<Row>> {
        let state = self.slots.get_mut(handle.slot as usize)?;
        let row = if state.generation == handle.generation { state.row.take() } else { None }?;
        self.free(handle.slot);
        Some(row)
    }

    /// Raises the generation of a slot, so that no later row gets the current handle. Then frees or retires the slot.
    fn free(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        state.is_reserved = false;
        self.freed_since_check += 1;
        state.generation = state.generation.saturating_add(1);
        if state.generation < GENERATION_MAX {
            self.free.push_back(slot);
        }
    }

    /// Removes the free slots after the last used slot. This happens only if at least three quarters of all
    /// slots are free, and at least a quarter of all slots come after the last used slot. New slots then
    /// begin with generations that the removed slots never used. `taken` is the number of slots that are
    /// reserved or have rows. The conditions are checked each time an eighth of the slots has become free, and
    /// whenever `taken` is 0. A table with at most twice [`SLOTS_AT_REST`] slots does not shrink.
    pub(super) fn shrink(&mut self, taken: usize) {
        let all = self.slots.len();
        let is_time = self.freed_since_check * 8 >= all || taken == 0;
        if !is_time || all <= 2 * SLOTS_AT_REST {
            return;
        }
        self.freed_since_check = 0;
        if taken * 4 > all {
            return;
        }
        let is_free = |slot: &&Slot| slot.row.is_none() && !slot.is_reserved;
        let behind = self.slots.iter().rev().take_while(is_free).count();
        let above = self.slots[all - behind..].iter().map(|slot| slot.generation).max().unwrap_or(0);
        if behind * 4 < all || above >= GENERATION_MAX / 2 {
            return;
        }
        self.generation_floor = self.generation_floor.max(above);
        self.slots.truncate(all - behind);
        self.slots.shrink_to_fit();
        self.free.retain(|slot| (*slot as usize) < all - behind);
        self.free.shrink_to_fit();
    }

    fn is_reserved(&self, handle: RowHandle) -> bool {
        let slot = self.slots.get(handle.slot as usize);
        slot.is_some_and(|slot| slot.is_reserved && slot.generation == handle.generation)
    }

    /// Adds the missing slots of a journal record, and gives its slots the generations of its rows.
    fn reserve_for_replay(&mut self, rows: &[RowHandle]) {
        for row in rows {
            let needed = row.slot as usize + 1;
            if self.slots.len() < needed {
                self.slots.resize_with(needed, Slot::default);
            }
            self.slots[row.slot as usize].generation = row.generation;
            self.generation_floor = self.generation_floor.max(row.generation.saturating_add(1));
        }
    }

    fn finish_replay(&mut self, generation_floor: u32) {
        self.generation_floor = self.generation_floor.max(generation_floor);
        self.free.clear();
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if state.row.is_none() {
                state.generation = self.generation_floor;
                self.free.push_back(slot as u32);
            }
        }
    }

    /// Checks that `live` slots have rows, that `reserved` slots are reserved, and that the other slots are
    /// free or retired. O(slots).
    pub(super) fn check(&self, live: usize, reserved: usize) -> Result<(), Violation> {
        let (mut rows, mut waiting, mut retired) = (0, 0, 0);
        for (number, slot) in self.slots.iter().enumerate() {
            match (slot.row.is_some(), slot.is_reserved) {
                (true, true) => {
                    return Err(Violation(format!("slot={number} has a row and is reserved for another")));
                }
                (true, false) => rows += 1,
                (false, true) => waiting += 1,
                (false, false) => retired += usize::from(slot.generation >= GENERATION_MAX),
            }
        }
        invariants::counts_agree("rows", rows, live)?;
        invariants::counts_agree("reserved slots", waiting, reserved)?;
        let free = self.slots.len() - rows - waiting - retired;
        if (free..=free + retired).contains(&self.free.len()) {
            return Ok(());
        }
        invariants::counts_agree("free slots", free, self.free.len())
    }
}

impl Table {
    /// Whether one of these rows is not visible yet. Puts without durability return before their rows are
    /// visible.
    pub(crate) fn any_is_reserved(&self, rows: &[RowHandle]) -> bool {
        rows.iter().any(|handle| self.slots.is_reserved(*handle))
    }

    /// The row in a slot.
    pub(crate) fn row_in(&self, slot: u32) -> Option<RowHandle> {
        let state = self.slots.slots.get(slot as usize).filter(|state| state.row.is_some())?;
        Some(RowHandle { slot, generation: state.generation })
    }

    /// Whether a slot has a row.
    pub(crate) fn has_row(&self, slot: u32) -> bool {
        self.row_in(slot).is_some()
    }

    /// Counts the rows of a journal record as rows of a put under way, and prepares their slots.
    pub(crate) fn reserve_for_replay(&mut self, rows: &[RowHandle], kib: u32) {
        self.puts.reserve_for_replay(rows.len(), kib);
        self.slots.reserve_for_replay(rows);
    }

    /// Ends a replay, or the creation of a table: forgets the fates, and gives each free slot a generation that no
    /// replayed row had.
    pub(crate) fn finish_replay(&mut self, generation_floor: u32) {
        self.fates.clear();
        self.slots.finish_replay(generation_floor);
    }

    /// A number greater than every generation that is in use or was used.
    pub(crate) fn generation_floor(&self) -> u32 {
        self.slots.generation_above.max(self.slots.generation_floor)
    }
}

#[cfg(test)]
mod tests;
