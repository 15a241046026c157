//! Where rows are kept, and the handles that name them.
//!
//! A slot is used again in the order in which slots became free, and not before many of them are: so a slot's generation
//! grows slowly however fast rows come and go. Before it comes to its end the slot is given up.

use super::{RowHandle, Slot, Table};

/// Generations of a slot.
pub(crate) const GENERATION_MAX: u32 = u32::MAX - (1 << 16);
/// Rows that a partition may have at once, whatever its capacity.
pub(crate) const SLOTS_MAX: usize = 1 << 26;
/// Free slots that wait until they are used again.
pub(crate) const SLOTS_AT_REST: usize = if cfg!(test) { 4 } else { 16_384 };

impl Table {
    /// Sets a slot aside for a row.
    pub(super) fn take_slot(&mut self) -> RowHandle {
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

    /// What a handle named is gone: no other row will have it.
    pub(super) fn free_slot(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        state.is_reserved = false;
        self.freed_since_look += 1;
        state.generation = state.generation.saturating_add(1);
        if state.generation < GENERATION_MAX {
            self.free.push_back(slot);
        }
    }

    /// Gives the free slots behind the last row back, once most slots are free and a quarter of all are behind it. New ones
    /// begin above the generations that these had. Looks for them once for every eighth of the slots that becomes free.
    pub(super) fn shrink_slots(&mut self) {
        let (all, taken) = (self.slots.len(), self.rows_live + self.rows_reserved);
        let is_time = self.freed_since_look * 8 >= all || taken == 0;
        if !is_time || all <= 2 * SLOTS_AT_REST {
            return;
        }
        self.freed_since_look = 0;
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

    /// Whether any of these rows is not there yet, though its put has returned, as puts without durability do.
    pub(crate) fn are_on_their_way(&self, rows: &[RowHandle]) -> bool {
        rows.iter().any(|handle| {
            let slot = self.slots.get(handle.slot as usize);
            slot.is_some_and(|slot| slot.is_reserved && slot.generation == handle.generation)
        })
    }

    /// Whether a row is there in a slot.
    pub(crate) fn is_taken(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.row.is_some())
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
            self.generation_floor = self.generation_floor.max(row.generation.saturating_add(1));
        }
    }

    /// Handles of before the restart name no row of after it, but for those that are still there.
    pub(crate) fn finish_replay(&mut self, generation_floor: u32) {
        self.generation_floor = self.generation_floor.max(generation_floor);
        self.free.clear();
        self.fates.clear();
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if state.row.is_none() {
                state.generation = self.generation_floor;
                self.free.push_back(slot as u32);
            }
        }
    }

    /// Above every generation that was given out.
    pub(crate) fn generation_floor(&self) -> u32 {
        self.generation_above.max(self.generation_floor)
    }
}
