//! Adding columns to rows that are there.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::put::rows_of;
use super::write::Written;
use super::{Admission, Partition, RowHandle, Shared};
use crate::journal::{PayloadRecord, Record, Runs};
use crate::partition::put::columns_of;
use crate::store::{Chunk, ChunkSizes, Encoded, NewChunk, Store, Within};
use crate::{ChunkId, ColumnSpec, QueueError};

/// Columns of several groups are cut into chunks of about this size; bytes.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Columns that are about to be written; let go of when that has come to an end.
struct ColumnsReservation {
    shared: Arc<Shared>,
    rows: Vec<RowHandle>,
    columns: Vec<String>,
    /// Those of them that nobody knew before.
    new: Vec<ColumnSpec>,
    is_good: bool,
    token: Option<String>,
}

impl Drop for ColumnsReservation {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.end_columns(&self.rows, &self.columns);
        table.settle_columns(&self.new, self.is_good);
        table.end_token(self.token.take(), self.is_good.then(Runs::default));
        self.shared.tell(&mut table);
    }
}

/// Rows whose columns lie in one chunk.
struct Piece {
    rows: Range<usize>,
    payload: PayloadRecord,
    kib: u32,
    sizes: Option<ChunkSizes>,
}

/// A piece, and its place in what goes to the disk.
type StoredPiece = (Piece, Option<Within>);

impl ColumnsReservation {
    /// Makes the columns visible.
    fn publish(mut self, pieces: &[Piece]) {
        let mut unneeded = Vec::new();
        {
            let mut table = self.shared.table.lock();
            for Piece { rows, payload, kib, sizes } in pieces {
                let charged = table.add_columns(&self.rows[rows.clone()], payload, *kib);
                self.shared.room.charge(charged);
                if let Some(sizes) = sizes {
                    table.size_chunk(payload.chunk, sizes);
                }
                self.shared.learn_place(&mut table, payload.chunk, payload.unit.clone());
                if !table.needs(payload.chunk) {
                    unneeded.push(payload.chunk);
                }
            }
        }
        self.is_good = true;
        // Every row of these was freed while the columns were on their way.
        self.shared.plane.free(&unneeded);
    }
}

impl Partition {
    /// Adds columns to rows that are there: row `i` of `batch` belongs to handle `i`.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub async fn write_columns(&self, rows: &[RowHandle], batch: RecordBatch) -> Result<(), QueueError> {
        self.write_columns_once(rows, vec![batch], None).await
    }

    /// The same; repeating it with the same token changes nothing.
    pub(crate) async fn write_columns_once(
        &self,
        rows: &[RowHandle],
        batches: Vec<RecordBatch>,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        if rows.is_empty() || rows.len() != rows_of(&batches) {
            return Err(QueueError::Empty);
        }
        self.shared.table.lock().check_rows(rows.len())?;
        let all = Chunk::new(batches)?;
        let columns = columns_of(all.schema());
        self.check_row_bytes(all.pieces())?;
        self.kib_of(all.pieces())?;
        self.visible(rows).await;
        let begun = self.begin_once(token.as_ref(), |table| table.begin_columns(rows, &columns)).await?;
        let Some(new) = begun else { return Ok(()) };
        let names: Vec<String> = columns.into_iter().map(|column| column.name).collect();
        let reservation = ColumnsReservation {
            shared: Arc::clone(&self.shared),
            rows: rows.to_vec(),
            columns: names.clone(),
            new,
            is_good: false,
            token: token.clone(),
        };
        let cut = self.cut(rows, all)?;
        let (payload, pieces) = self.store_pieces(rows, cut, &names).await?;
        let last = pieces.len() - 1;
        let written = |(number, (piece, within)): (usize, &StoredPiece)| Written {
            chunk: piece.payload.chunk,
            record: Record::Columns {
                partition: self.shared.name.clone(),
                rows: rows[piece.rows.clone()].to_vec(),
                payload: piece.payload.clone(),
                kib: piece.kib,
                token: token.clone().filter(|_| number == last),
            },
            within: *within,
        };
        let parts = pieces.iter().enumerate().map(written).collect();
        let pieces: Vec<Piece> = pieces.into_iter().map(|(piece, _)| piece).collect();
        self.write(payload, parts, move |durable| durable.map(|()| reservation.publish(&pieces))).await
    }

    /// Rows in pieces of at most about [`PIECE_BYTES_MAX`], or of one group.
    fn cut(&self, rows: &[RowHandle], all: Chunk) -> Result<Vec<(Range<usize>, Chunk)>, QueueError> {
        if all.held_bytes() <= PIECE_BYTES_MAX {
            return Ok(vec![(0..rows.len(), all)]);
        }
        let bytes = all.sizes().rows;
        let groups: Vec<Option<u64>> = {
            let table = self.shared.table.lock();
            rows.iter().map(|row| table.row(*row).ok().map(|row| row.group)).collect()
        };
        let (mut ends, mut held) = (Vec::new(), 0);
        for (at, bytes) in bytes.iter().enumerate() {
            held += *bytes as usize;
            if held > PIECE_BYTES_MAX && at > 0 && groups[at] != groups[at - 1] {
                ends.push(at);
                held = *bytes as usize;
            }
        }
        if ends.is_empty() {
            return Ok(vec![(0..rows.len(), all)]);
        }
        ends.push(rows.len());
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let ranges = starts.zip(ends.iter().copied());
        ranges.map(|(start, end)| Ok((start..end, all.slice(start, end - start)?))).collect()
    }

    /// Hands pieces to where payload lies; what of them is to be written comes back in one.
    async fn store_pieces(
        &self,
        handles: &[RowHandle],
        cut: Vec<(Range<usize>, Chunk)>,
        names: &[String],
    ) -> Result<(Option<Encoded>, Vec<StoredPiece>), QueueError> {
        let kib = cut.iter().map(|(_, piece)| self.kib_of(piece.pieces())).collect::<Result<Vec<_>, _>>()?;
        let new: Vec<NewChunk> = {
            let table = self.shared.table.lock();
            let new = |(rows, piece): &(Range<usize>, Chunk)| NewChunk {
                chunk: self.shared.new_chunk(),
                rows: piece.clone(),
                group: table.group_of(handles[rows.start]),
            };
            cut.iter().map(new).collect()
        };
        let chunks: Vec<ChunkId> = new.iter().map(|new| new.chunk).collect();
        let stored = self.shared.plane.put(new).await?;
        let mut written: Option<Encoded> = None;
        let mut pieces = Vec::with_capacity(stored.len());
        for (((rows, piece), kib), (chunk, stored)) in
            cut.into_iter().zip(kib).zip(chunks.into_iter().zip(stored))
        {
            let sizes = stored.is_held().then(|| piece.sizes());
            let (encoded, unit) = stored.into_parts();
            let within = encoded.map(|encoded| written.get_or_insert_default().append(encoded));
            let columns = names.to_vec();
            let payload = PayloadRecord { chunk, location: None, unit, columns, chunk_rows: Vec::new() };
            pieces.push((Piece { rows, payload, kib, sizes }, within));
        }
        Ok((written, pieces))
    }

    /// Begins a change under the table's lock unless its token says that it was made before, which waits for one that is
    /// under way. `None`: it was made before.
    pub(super) async fn begin_once<T>(
        &self,
        token: Option<&String>,
        begin: impl Fn(&mut super::Table) -> Result<T, QueueError>,
    ) -> Result<Option<T>, QueueError> {
        loop {
            let settled = self.shared.changed.notified();
            tokio::pin!(settled);
            // Registered before the table is read, so that no change between the two is missed.
            settled.as_mut().enable();
            {
                let mut table = self.shared.table.lock();
                match table.token_state(token.map(String::as_str)) {
                    Admission::Known(_) => return Ok(None),
                    Admission::UnderWay => {}
                    Admission::Fresh => {
                        let begun = begin(&mut table)?;
                        table.begin_token(token);
                        return Ok(Some(begun));
                    }
                }
            }
            settled.await;
        }
    }
}
