//! Puts columns directly on the units to which the groups of their rows belong.

use arrow_array::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;

use super::super::{Call, RemoteQueue, path};
use crate::edges::wire::ipc;
use crate::edges::wire::{PlacedColumns, PlacedColumnsBody, UnitsOfAnswer, UnitsOfBody};
use crate::put::columns_of;
use crate::store::{own_buffers, payload_bytes};
use crate::{QueueError, RowHandle, UnitCard};

/// Rows of several groups are sent to a unit together, up to about this many bytes.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// The maximum number of pieces that are in transit at the same time.
const AT_A_TIME: usize = 8;

/// Consecutive rows that are sent to a unit together.
struct Piece {
    card: UnitCard,
    batch: RecordBatch,
}

impl RemoteQueue {
    /// Puts columns on units and tells the controller to which rows they belong. Returns false if the columns must
    /// be sent through the controller.
    pub(in crate::edges::remote::client) async fn write_columns_direct(
        &self,
        partition: &str,
        rows: &[RowHandle],
        batch: &RecordBatch,
        token: &str,
    ) -> Result<bool, QueueError> {
        let cards = self.live_units(None).await;
        if cards.is_empty() || self.spec_of(partition, None).await?.row_bytes_max.is_some() {
            return Ok(false);
        }
        let asked = UnitsOfBody { rows: rows.to_vec() };
        let call = Call::json(path(partition, "/columns/units"), &asked)?.repeatable();
        let units: UnitsOfAnswer = self.link.json(call).await?;
        let begun = Instant::now();
        let Some(pieces) = cut(&cards, &units, batch)? else { return Ok(false) };
        let uploading = stream::iter(pieces).map(|piece| self.upload_piece(piece)).buffered(AT_A_TIME);
        let Some(uploaded) = uploading.try_collect::<Vec<_>>().await?.into_iter().collect::<Option<Vec<_>>>()
        else {
            return Ok(false);
        };
        let (clients, pieces): (Vec<Self>, Vec<PlacedColumns>) = uploaded.into_iter().unzip();
        let body = PlacedColumnsBody { rows: rows.to_vec(), columns: columns_of(batch.schema_ref()), pieces };
        let to = path(partition, &format!("/columns/placed?token={token}"));
        let give_up = Some(self.tell_until(begun));
        match self.link.done(Call { give_up, ..Call::json(to, &body)?.repeatable() }).await {
            Ok(()) => Ok(true),
            Err(error) if self.is_void(begun, &error) => Ok(false),
            Err(refusal) => {
                for (client, piece) in clients.iter().zip(&body.pieces) {
                    client.remove_refused(&piece.place, &refusal).await;
                }
                Err(refusal)
            }
        }
    }

    /// Puts a piece on its unit. Returns `None` if the unit accepts no rows.
    async fn upload_piece(&self, piece: Piece) -> Result<Option<(Self, PlacedColumns)>, QueueError> {
        let bytes = payload_bytes(&piece.batch)? as u64;
        let placed = self.upload_to(&piece.card, vec![piece.batch]).await?;
        Ok(placed.map(|(client, place)| (client, PlacedColumns { place, bytes })))
    }
}

/// Cuts the rows into pieces, each for one unit. Returns `None` if the controller names a unit that this
/// client does not know, or names no unit for some of the rows.
fn cut(
    cards: &[UnitCard],
    units: &UnitsOfAnswer,
    batch: &RecordBatch,
) -> Result<Option<Vec<Piece>>, QueueError> {
    let row_bytes = ipc::encoded_bytes(batch) / batch.num_rows().max(1);
    let mut runs: Vec<(&UnitCard, usize)> = Vec::new();
    for part in &units.units {
        let Some(card) = cards.iter().find(|card| card.unit == part.unit) else { return Ok(None) };
        match runs.last_mut() {
            Some((last, rows))
                if last.unit == card.unit && (*rows + part.rows) * row_bytes <= PIECE_BYTES_MAX =>
            {
                *rows += part.rows;
            }
            _ => runs.push((card, part.rows)),
        }
    }
    if runs.iter().map(|(_, rows)| rows).sum::<usize>() != batch.num_rows() {
        return Ok(None);
    }
    let mut first = 0;
    let pieces = runs.into_iter().map(|(card, rows)| {
        let batch = own_buffers(batch.slice(first, rows))?;
        first += rows;
        Ok(Piece { card: card.clone(), batch })
    });
    pieces.collect::<Result<Vec<_>, _>>().map(Some)
}
