//! Room for puts: rows, and KiB of payload if the partition limits them.
//!
//! Waiting puts are served in order. A dropped [`Room`] is released, unless its put has become visible. In
//! that case, the room is released when the rows are freed.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Semaphore};

use super::Shared;
use super::table::{SLOTS_MAX, Size};
use crate::config::PartitionSpec;

/// The free room of a partition.
#[derive(Debug)]
pub(crate) struct FreeRoom {
    rows: Semaphore,
    kib: Option<Semaphore>,
    /// The KiB by which added columns exceed the capacity.
    debt_kib: Mutex<u32>,
}

impl FreeRoom {
    /// The free room of a partition in which `used` is occupied.
    pub(crate) fn new(spec: &PartitionSpec, used: Size) -> Self {
        // The capacity is limited before `used` is subtracted. Otherwise, room that is released later could
        // raise the free room above the limit.
        let rows = spec.capacity_rows.min(SLOTS_MAX).saturating_sub(used.rows);
        let kib_max = spec.capacity_kib();
        let kib = kib_max.map(|most| Semaphore::new(most.saturating_sub(used.kib) as usize));
        Self {
            rows: Semaphore::new(rows),
            kib,
            debt_kib: Mutex::new(kib_max.map_or(0, |most| used.kib.saturating_sub(most))),
        }
    }

    /// Waits for room. Cancel-safe.
    pub(crate) async fn acquire(&self, size: Size) -> Result<(), AcquireError> {
        let rows = self.rows.acquire_many(size.rows as u32).await?;
        if let Some(kib) = &self.kib {
            kib.acquire_many(size.kib).await?.forget();
        }
        rows.forget();
        Ok(())
    }

    /// Acquires room if it is free, without waiting.
    pub(crate) fn try_acquire(&self, size: Size) -> bool {
        let Ok(rows) = self.rows.try_acquire_many(size.rows as u32) else { return false };
        if let Some(kib) = &self.kib {
            let Ok(granted) = kib.try_acquire_many(size.kib) else { return false };
            granted.forget();
        }
        rows.forget();
        true
    }

    /// Counts KiB that were added without waiting for room.
    pub(crate) fn charge(&self, kib: u32) {
        if let Some(free) = &self.kib {
            let mut debt = self.debt_kib.lock();
            *debt += kib - free.forget_permits(kib as usize) as u32;
        }
    }

    pub(crate) fn release(&self, size: Size) {
        self.rows.add_permits(size.rows);
        if let Some(kib) = &self.kib {
            let mut debt = self.debt_kib.lock();
            let paid = size.kib.min(*debt);
            *debt -= paid;
            kib.add_permits((size.kib - paid) as usize);
        }
    }

    /// Ends all waits for room.
    pub(crate) fn close(&self) {
        self.rows.close();
        self.kib.iter().for_each(Semaphore::close);
    }
}

/// Room that a put has acquired. It is released on drop.
pub(super) struct Room {
    pub(super) shared: Arc<Shared>,
    size: Size,
}

impl Room {
    /// Wraps room that was acquired from `shared`.
    pub(super) fn granted(shared: &Arc<Shared>, size: Size) -> Self {
        Self { shared: Arc::clone(shared), size }
    }

    /// Leaves the room to the rows, which are visible now.
    pub(super) fn keep(&mut self) {
        self.size = Size::default();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.room.release(self.size);
    }
}
