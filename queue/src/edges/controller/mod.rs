//! The queue as the controller of its storage units.
//!
//! [Units](crate::units) know which unit has which rows. This module does what follows from it: what the
//! death and the return of a unit mean for the partitions, and the upkeep while there are units.

mod upkeep;

use crate::error::QueueError;
use crate::queue::TransferQueue;
use crate::record::Freed;
use crate::store::ChunkId;
use crate::units::UnitCard;

impl TransferQueue {
    /// A unit announces itself; one that was away gives its rows back.
    ///
    /// Not cancel-safe: what is not freed yet of a unit that was there before stays out of reach, and is
    /// freed later.
    pub(crate) async fn unit_registered(&self, card: UnitCard) -> Result<(), QueueError> {
        let unit = card.unit.clone();
        for gone in self.units().supplanted_by(&card) {
            // Requests to that address now reach another unit.
            tracing::warn!(unit = %gone, by = %unit, "a storage unit's address is another one's now");
            self.unit_died(&gone).await;
        }
        let was_dead = self.units().register(card)?;
        if was_dead {
            tracing::info!(%unit, "a storage unit is back");
            self.set_away(&self.units().chunks_of(&unit), false);
        }
        Ok(())
    }

    /// What a unit has is within reach after all.
    pub(crate) fn unit_answers(&self, unit: &str) {
        self.set_away(&self.units().chunks_of(unit), false);
    }

    /// A unit is silent: its rows are away, or lost with their whole groups if it kept them in memory.
    ///
    /// Not cancel-safe: what is not freed yet stays out of reach.
    pub(crate) async fn unit_died(&self, unit: &str) {
        let Some((chunks, is_durable)) = self.units().bury(unit) else { return };
        self.set_away(&chunks, true);
        if !is_durable {
            self.unit_is_gone(unit, &chunks).await;
        }
    }

    /// A dead unit will not come back, and its chunks are lost. What cannot be written down is tried again
    /// later.
    pub(crate) async fn unit_is_gone(&self, unit: &str, chunks: &[ChunkId]) {
        self.lose_chunks(chunks).await;
        self.units().remove(unit);
    }

    /// A unit will not come back: its rows are lost, and with them their whole groups.
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

    /// Moves chunks off the units that they lie on. Cancel-safe: a chunk has moved or it has not.
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
                tracing::warn!(partition = partition.name(), %error, "cannot write down that rows are lost");
            }
        }
    }
}
