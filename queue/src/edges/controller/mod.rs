//! The queue as the controller of its storage units.
//!
//! The module [`units`](crate::units) records which unit stores which rows. This module changes the
//! partitions when a unit dies or returns, and runs the upkeep of leases and units.

mod upkeep;

use crate::error::QueueError;
use crate::queue::TransferQueue;
use crate::record::Freed;
use crate::store::ChunkId;
use crate::units::UnitCard;

impl TransferQueue {
    /// Registers a unit that announces itself. If the unit was dead, its rows can be read again.
    ///
    /// Not cancel-safe: if another unit had this address before, a dropped call may leave rows of that unit
    /// unreadable. These rows are freed later.
    pub(crate) async fn unit_registered(&self, card: UnitCard) -> Result<(), QueueError> {
        let unit = card.unit.clone();
        for gone in self.units().supplanted_by(&card) {
            // Requests to that address now reach another unit.
            tracing::warn!(unit = %gone, by = %unit, "the address of a storage unit now belongs to another unit");
            self.unit_died(&gone).await;
        }
        let was_dead = self.units().register(card)?;
        if was_dead {
            tracing::info!(%unit, "a storage unit is back");
            self.set_away(&self.units().chunks_of(&unit), false);
        }
        Ok(())
    }

    /// Notes that a unit answers, so that its rows can be read.
    pub(crate) fn unit_answers(&self, unit: &str) {
        self.set_away(&self.units().chunks_of(unit), false);
    }

    /// Declares a unit dead: it does not answer, or another unit has its address. The unit's rows become
    /// unreadable (away). If the unit kept the rows in memory, they are lost with their whole groups.
    ///
    /// Not cancel-safe: rows that a dropped call has not freed yet are unreadable until the upkeep frees them
    /// or the unit returns.
    pub(crate) async fn unit_died(&self, unit: &str) {
        let Some((chunks, is_durable)) = self.units().bury(unit) else { return };
        self.set_away(&chunks, true);
        if !is_durable {
            self.unit_is_gone(unit, &chunks).await;
        }
    }

    /// Frees the rows of a dead unit that will not return. If the loss cannot be written to the journal, the
    /// write is repeated later.
    pub(crate) async fn unit_is_gone(&self, unit: &str, chunks: &[ChunkId]) {
        self.lose_chunks(chunks).await;
        self.units().remove(unit);
    }

    /// Removes a unit that will not return. Its rows are lost with their whole groups.
    pub(crate) async fn forget_unit(&self, unit: &str) -> Result<(), QueueError> {
        let is_known = self.units().inspect().iter().any(|known| known.card.unit == unit);
        if !is_known {
            return Err(QueueError::UnknownUnit { unit: unit.to_owned() });
        }
        let chunks = self.units().chunks_of(unit);
        self.units().bury(unit);
        self.set_away(&chunks, true);
        self.unit_is_gone(unit, &chunks).await;
        Ok(())
    }

    /// Moves chunks away from their units. Cancel-safe: each chunk moves completely or not at all.
    pub(crate) async fn move_off(&self, chunks: &[ChunkId]) -> Result<(), QueueError> {
        for chunk in chunks {
            for partition in self.partitions() {
                if partition.move_off(*chunk).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn set_away(&self, chunks: &[ChunkId], is_away: bool) {
        for partition in self.partitions() {
            partition.set_away(chunks, is_away);
        }
    }

    async fn lose_chunks(&self, chunks: &[ChunkId]) {
        for partition in self.partitions() {
            if let Err(error) = partition.free_groups_in(chunks, Freed::Lost).await {
                tracing::warn!(partition = partition.name(), %error, "cannot record that rows are lost");
            }
        }
    }
}
