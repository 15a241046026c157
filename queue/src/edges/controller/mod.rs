//! The queue as the controller of its storage units.
//!
//! [Units](crate::units) know which unit has which rows. This module acts on it: it changes the partitions
//! when a unit dies or returns, and it does the upkeep while there are units.

mod upkeep;

use crate::error::QueueError;
use crate::queue::TransferQueue;
use crate::record::Freed;
use crate::store::ChunkId;
use crate::units::UnitCard;

impl TransferQueue {
    /// Registers a unit that announces itself. If it was away, its rows are within reach again.
    ///
    /// Not cancel-safe: if another unit had this address before, those of its rows that are not freed yet
    /// stay out of reach, and are freed later.
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

    /// Notes that a unit answers, so that its rows are within reach.
    pub(crate) fn unit_answers(&self, unit: &str) {
        self.set_away(&self.units().chunks_of(unit), false);
    }

    /// Declares a unit that does not answer dead: its rows are away, or they are lost with their whole groups
    /// if the unit kept them in memory.
    ///
    /// Not cancel-safe: rows that are not freed yet stay out of reach.
    pub(crate) async fn unit_died(&self, unit: &str) {
        let Some((chunks, is_durable)) = self.units().bury(unit) else { return };
        self.set_away(&chunks, true);
        if !is_durable {
            self.unit_is_gone(unit, &chunks).await;
        }
    }

    /// Gives up the chunks of a dead unit that will not come back. If their loss cannot be written to the
    /// journal, that is tried again later.
    pub(crate) async fn unit_is_gone(&self, unit: &str, chunks: &[ChunkId]) {
        self.lose_chunks(chunks).await;
        self.units().remove(unit);
    }

    /// Gives up a unit that will not come back: its rows are lost, and with them their whole groups.
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
