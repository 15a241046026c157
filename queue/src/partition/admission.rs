//! Admission of puts: the checks, the reservation, and the wait for room.

use tokio::time::Instant;

use super::room::Room;
use super::{Admission, Claim, Partition, Size};
use crate::config::{ColumnSpec, OnFull};
use crate::error::QueueError;
use crate::put::Put;
use crate::record::{Freed, PutRecord};
use crate::row::RowHandle;
use crate::store::{ChunkSizes, Note};

/// The properties of a put that admission checks.
pub(super) struct Incoming {
    pub(super) columns: Vec<ColumnSpec>,
    pub(super) rows: usize,
    pub(super) kib: u32,
    /// The tokens of each row. Empty if they are not counted.
    pub(super) lengths: Vec<u32>,
    /// The note of the payload, if a client has stored it already.
    pub(super) note: Option<Note>,
}

/// The resources that are reserved for a put. They are released on drop unless the put is published.
pub(super) struct Reservation {
    room: Room,
    claim: Option<Claim>,
}

impl Reservation {
    /// The columns that are new with the put.
    pub(super) fn new_columns(&self) -> &[ColumnSpec] {
        self.claim.as_ref().map_or(&[], Claim::columns)
    }

    /// Makes the rows visible. Returns an error if their group was closed or lost rows in the meantime.
    pub(super) fn publish(mut self, put: PutRecord, sizes: Option<&ChunkSizes>) -> Result<(), QueueError> {
        let claim = self.claim.take();
        self.room.keep();
        let shared = &self.room.shared;
        let (chunk, note, group) = (put.payload.chunk, put.payload.note.clone(), put.group.clone());
        let mut table = shared.table.lock();
        if let Some(claim) = claim {
            table.settle_columns(claim.columns(), true);
        }
        let published = table.publish(put);
        if let Some(sizes) = sizes {
            table.size_chunk(chunk, sizes);
        }
        // The chunk is kept even if the rows no longer exist. In that case, `reclaim` frees the chunk.
        shared.keep(&mut table, chunk, note.as_ref());
        shared.tell(&mut table);
        let small = table.take_small_chunks();
        drop(table);
        shared.pack(&small);
        published.map_err(|released| {
            shared.reclaim(&released);
            QueueError::GroupClosed { group }
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let mut table = self.room.shared.table.lock();
            table.release(&claim);
            self.room.shared.tell(&mut table);
        }
    }
}

/// The result of admission.
pub(super) enum Admitted {
    Reserved(Reservation, Vec<RowHandle>),
    Known(Vec<RowHandle>),
}

impl Partition {
    /// Checks a put and reserves its resources. The checks are repeated after each wait.
    pub(super) async fn admit(
        &self,
        put: &Put,
        incoming: &Incoming,
        deadline: Option<Instant>,
    ) -> Result<Admitted, QueueError> {
        let Incoming { columns, rows, kib, .. } = incoming;
        let (rows, kib) = (*rows, *kib);
        loop {
            let settled = self.shared.changed.notified();
            tokio::pin!(settled);
            // The waiter is registered before the table is read, so that no change in between is missed.
            settled.as_mut().enable();
            let mut admission = self.shared.table.lock().admit(put, rows, columns)?;
            if matches!(admission, Admission::Fresh) {
                let size = Size { rows, kib };
                let room = self.make_room(size, deadline).await?;
                let mut table = self.shared.table.lock();
                admission = table.admit(put, rows, columns)?;
                if matches!(admission, Admission::Fresh) {
                    let claim = table.reserve(put, rows, kib, columns);
                    self.shared.check_table(&table);
                    let handles = claim.rows.clone();
                    return Ok(Admitted::Reserved(Reservation { room, claim: Some(claim) }, handles));
                }
            }
            match admission {
                Admission::Known(rows) => return Ok(Admitted::Known(rows)),
                // The table is read again, whether the other put succeeded or failed.
                _ => match deadline {
                    None => settled.await,
                    Some(deadline) => {
                        let waited = tokio::time::timeout_at(deadline, settled).await;
                        waited.map_err(|_| self.late("end of the first put with this token"))?;
                    }
                },
            }
        }
    }

    async fn make_room(&self, size: Size, deadline: Option<Instant>) -> Result<Room, QueueError> {
        let shared = &self.shared;
        let (on_full, capacity) = {
            let table = shared.table.lock();
            (table.spec.on_full, table.spec.capacity_rows)
        };
        let full = || QueueError::Full { partition: shared.name.clone(), capacity };
        match on_full {
            OnFull::Block => {
                let waiting = shared.room.acquire(size);
                let granted = match deadline {
                    None => waiting.await,
                    Some(deadline) => {
                        tokio::time::timeout_at(deadline, waiting).await.map_err(|_| self.late("room"))?
                    }
                };
                granted.map_err(|_| QueueError::Closed { partition: shared.name.clone() })?;
            }
            OnFull::Refuse if shared.room.try_acquire(size) => {}
            OnFull::Refuse => return Err(full()),
            OnFull::DropOldest => {
                while !shared.room.try_acquire(size) {
                    let oldest = shared.table.lock().begin_drop().ok_or_else(full)?;
                    tracing::warn!(partition = %shared.name, rows = oldest.len(), "the partition is full; its oldest group is dropped");
                    self.free(oldest, Freed::Dropped).await?;
                }
            }
        }
        Ok(Room::granted(shared, size))
    }
}
