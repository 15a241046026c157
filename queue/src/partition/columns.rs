//! Adding columns to existing rows, and replacing their values.

use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::write::Written;
use super::{Added, Admission, Partition, Released, Shared};
use crate::config::ColumnSpec;
use crate::error::QueueError;
use crate::put::{check_counts, columns_of, lengths_of, rows_of};
use crate::record::{PayloadRecord, Record};
use crate::row::{RowHandle, Runs};
use crate::store::{Chunk, ChunkId, ChunkSizes, Encoded, NewChunk, Note};

/// The approximate maximum size of a chunk of columns, in bytes. The rows of one group are never divided.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The reservation of columns that are about to be written. It is released when the write has ended.
struct ColumnsReservation {
    shared: Arc<Shared>,
    rows: Vec<RowHandle>,
    columns: Vec<String>,
    /// The columns with new names.
    new: Vec<ColumnSpec>,
    /// Whether values of the columns are replaced.
    overwrite: bool,
    /// The new number of tokens of each row. If empty, the numbers do not change.
    lengths: Vec<u32>,
    is_good: bool,
    token: Option<String>,
}

impl Drop for ColumnsReservation {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.end_columns(&self.rows, &self.columns, self.overwrite);
        table.settle_columns(&self.new, self.is_good);
        table.end_token(self.token.take(), self.is_good.then(Runs::default));
        self.shared.tell(&mut table);
    }
}

/// Columns of rows that a client has stored directly.
pub(crate) struct PlacedColumns {
    pub(crate) note: Note,
    pub(crate) rows: usize,
    /// The size of the payload in bytes.
    pub(crate) bytes: u64,
}

/// Rows whose columns are in one chunk.
struct Piece {
    rows: Range<usize>,
    payload: PayloadRecord,
    kib: u32,
    sizes: Option<ChunkSizes>,
}

impl Piece {
    fn new(rows: Range<usize>, chunk: ChunkId, note: Option<Note>, columns: &[String], kib: u32) -> Self {
        let columns = columns.to_vec();
        let payload = PayloadRecord { chunk, note, columns, chunk_rows: Vec::new() };
        Self { rows, payload, kib, sizes: None }
    }
}

/// A piece, with its bytes if the journal's writer writes them.
type StoredPiece = (Piece, Option<Encoded>);

impl ColumnsReservation {
    /// Makes the columns visible.
    fn publish(mut self, pieces: &[Piece]) {
        let mut freed = Vec::new();
        let small = {
            let mut table = self.shared.table.lock();
            for Piece { rows, payload, kib, sizes } in pieces {
                let added = Added {
                    rows: &self.rows[rows.clone()],
                    payload,
                    kib: *kib,
                    overwrite: self.overwrite,
                    lengths: self.lengths.get(rows.clone()).unwrap_or_default(),
                };
                let addition = table.add_columns(added);
                self.shared.room.charge(addition.kib);
                freed.push(addition.released);
                if let Some(sizes) = sizes {
                    table.size_chunk(payload.chunk, sizes);
                }
                self.shared.keep(&mut table, payload.chunk, payload.note.as_ref());
                if !table.needs(payload.chunk) {
                    // All of its rows were freed while the columns were written.
                    freed.push(Released { chunks: vec![payload.chunk], ..Released::default() });
                }
            }
            table.take_small_chunks()
        };
        self.is_good = true;
        freed.iter().for_each(|released| self.shared.reclaim(released));
        self.shared.pack(&small);
    }
}

impl Partition {
    /// Adds columns to existing rows. Row `i` of `batch` belongs to handle `i`. Returns
    /// [`QueueError::ColumnExists`] if a row has one of the columns already.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn write_columns(&self, rows: &[RowHandle], batch: RecordBatch) -> Result<(), QueueError> {
        self.write_columns_once(rows, vec![batch], false, None).await
    }

    /// Writes columns of existing rows, and replaces the values of rows that have them already. Row `i` of
    /// `batch` belongs to handle `i`.
    ///
    /// After the call has returned, every read and every new lease has the new values. Earlier leases keep
    /// the old values, even for members that have not fetched the lease yet, and their acks stay valid. If an
    /// earlier lease ends without an ack, the next lease of its rows has the new values. A task that has
    /// acked a row does not get the row again. The task sees the new values by [`get`](Self::get) and after a
    /// [`reset`](Self::reset). Simultaneous writes of the same value take effect one after the other, in the
    /// order in which they become durable.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all.
    pub async fn overwrite_columns(&self, rows: &[RowHandle], batch: RecordBatch) -> Result<(), QueueError> {
        self.write_columns_once(rows, vec![batch], true, None).await
    }

    /// Writes columns once: a call with the token of an earlier call changes nothing.
    pub(crate) async fn write_columns_once(
        &self,
        rows: &[RowHandle],
        batches: Vec<RecordBatch>,
        overwrite: bool,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        self.check_count(rows, rows_of(&batches))?;
        let all = Chunk::new(batches)?;
        self.check_row_bytes(all.pieces())?;
        self.kib_of(all.pieces())?;
        let columns = columns_of(all.schema());
        let Some(mut reservation) = self.reserve_columns(rows, &columns, overwrite, token).await? else {
            return Ok(());
        };
        if overwrite {
            reservation.lengths = self.lengths_with(rows, &all).await?;
        }
        let cut = self.cut(rows, all)?;
        let pieces = self.store_pieces(rows, cut, &reservation.columns).await?;
        self.commit_columns(reservation, pieces).await?;
        // Without durability the write above returns before the values are visible.
        if overwrite { self.settled().await } else { Ok(()) }
    }

    /// The tokens of each row with new values of some columns. Empty if the partition does not count the
    /// tokens of these columns.
    async fn lengths_with(&self, rows: &[RowHandle], new: &Chunk) -> Result<Vec<u32>, QueueError> {
        let counted = self.shared.table.lock().spec.length_columns.clone();
        let (written, others): (Vec<String>, Vec<String>) =
            counted.into_iter().partition(|name| new.schema().column_with_name(name).is_some());
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let lengths = new.pieces().iter().map(|batch| lengths_of(batch, &written));
        let mut lengths = lengths.collect::<Result<Vec<_>, _>>()?.concat();
        for other in others {
            let places = self.shared.table.lock().places_with(rows, &other);
            let having: Vec<RowHandle> = places.iter().map(|place| rows[*place]).collect();
            let read = self.get(&having, Some(from_ref(&other))).await?;
            let found = read.iter().map(|batch| lengths_of(batch, from_ref(&other)));
            for (place, length) in places.into_iter().zip(found.collect::<Result<Vec<_>, _>>()?.concat()) {
                lengths[place] = lengths[place].saturating_add(length);
            }
        }
        Ok(lengths)
    }

    /// Adds columns that a client has stored directly. The pieces are in the order of the rows.
    pub(crate) async fn write_placed_columns(
        &self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
        placed: Vec<PlacedColumns>,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        let found = placed.iter().map(|piece| piece.rows).fold(0, usize::saturating_add);
        self.check_count(rows, found)?;
        if columns.is_empty() || placed.iter().any(|piece| piece.rows == 0) {
            return Err(QueueError::Empty);
        }
        self.refuse_unread_rows()?;
        let kib = placed.iter().map(|piece| self.kib_of_bytes(piece.bytes)).collect::<Result<Vec<_>, _>>()?;
        let Some(reservation) = self.reserve_columns(rows, columns, false, token).await? else {
            return Ok(());
        };
        let (mut pieces, mut first) = (Vec::with_capacity(placed.len()), 0);
        for (PlacedColumns { note, rows, .. }, kib) in placed.into_iter().zip(kib) {
            let note = self.shared.plane.admit(note)?;
            let rows = first..first + rows;
            first = rows.end;
            let chunk = self.shared.new_chunk();
            pieces.push((Piece::new(rows, chunk, Some(note), &reservation.columns, kib), None));
        }
        self.commit_columns(reservation, pieces).await
    }

    fn check_count(&self, rows: &[RowHandle], found: usize) -> Result<(), QueueError> {
        check_counts(rows, found)?;
        self.shared.table.lock().check_rows(rows.len())
    }

    /// Reserves columns of rows for this call. Returns `None` if an earlier call with this token has written
    /// the columns.
    async fn reserve_columns(
        &self,
        rows: &[RowHandle],
        columns: &[ColumnSpec],
        overwrite: bool,
        token: Option<String>,
    ) -> Result<Option<ColumnsReservation>, QueueError> {
        self.visible(rows).await;
        let begin = |table: &mut super::Table| table.begin_columns(rows, columns, overwrite);
        let begun = self.begin_once(token.as_ref(), begin).await?;
        let reservation = |new| ColumnsReservation {
            shared: Arc::clone(&self.shared),
            rows: rows.to_vec(),
            columns: columns.iter().map(|column| column.name.clone()).collect(),
            new,
            overwrite,
            lengths: Vec::new(),
            is_good: false,
            token,
        };
        Ok(begun.map(reservation))
    }

    /// Writes the records of columns that are reserved and stored.
    async fn commit_columns(
        &self,
        reservation: ColumnsReservation,
        pieces: Vec<StoredPiece>,
    ) -> Result<(), QueueError> {
        let last = pieces.len() - 1;
        let (mut written, mut published) =
            (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        for (number, (piece, payload)) in pieces.into_iter().enumerate() {
            let record = Record::Columns {
                partition: self.shared.name.clone(),
                rows: reservation.rows[piece.rows.clone()].to_vec(),
                payload: piece.payload.clone(),
                kib: piece.kib,
                overwrite: reservation.overwrite,
                lengths: reservation.lengths.get(piece.rows.clone()).unwrap_or_default().to_vec(),
                token: reservation.token.clone().filter(|_| number == last),
            };
            written.push(Written { chunk: piece.payload.chunk, record, payload });
            published.push(piece);
        }
        let types = reservation.new.clone();
        self.write(types, written, move |durable| durable.map(|()| reservation.publish(&published))).await
    }

    /// The groups of rows, as runs: the name of each group, and its number of consecutive rows.
    pub(crate) async fn groups_of(&self, rows: &[RowHandle]) -> Result<Vec<(String, usize)>, QueueError> {
        self.visible(rows).await;
        let table = self.shared.table.lock();
        let groups = rows.iter().map(|row| Ok(table.row(*row)?.group));
        let groups = groups.collect::<Result<Vec<u64>, QueueError>>()?;
        let mut at = 0;
        let runs = groups.chunk_by(|left, right| left == right).map(|run| {
            let first = rows[at];
            at += run.len();
            (table.group_of(first), run.len())
        });
        Ok(runs.collect())
    }

    /// Cuts rows into pieces of about [`PIECE_BYTES_MAX`] bytes or less. It cuts only between groups: a
    /// larger group stays in one piece.
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

    /// Puts pieces into their stores. Returns the bytes of a piece if the journal's writer must write them.
    async fn store_pieces(
        &self,
        handles: &[RowHandle],
        cut: Vec<(Range<usize>, Chunk)>,
        names: &[String],
    ) -> Result<Vec<StoredPiece>, QueueError> {
        self.check_writable()?;
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
        let mut placed = Vec::with_capacity(stored.len());
        let pieces = cut.into_iter().zip(kib).zip(chunks.into_iter().zip(stored));
        for (((rows, piece), kib), (chunk, stored)) in pieces {
            let sizes = stored.is_held().then(|| piece.sizes());
            let (encoded, note) = stored.into_parts();
            placed.push((Piece { sizes, ..Piece::new(rows, chunk, note, names, kib) }, encoded));
        }
        Ok(placed)
    }

    /// Begins a change under the table's lock. If a change with the same token is in progress, or `begin`
    /// returns `None` because of another change, the call waits for that change first. Returns `None` if a
    /// change with the same token was already made.
    pub(super) async fn begin_once<T>(
        &self,
        token: Option<&String>,
        begin: impl Fn(&mut super::Table) -> Result<Option<T>, QueueError>,
    ) -> Result<Option<T>, QueueError> {
        loop {
            let settled = self.shared.changed.notified();
            tokio::pin!(settled);
            // The waiter is registered before the table is read, so that no change in between is missed.
            settled.as_mut().enable();
            {
                let mut table = self.shared.table.lock();
                match table.token_state(token.map(String::as_str)) {
                    Admission::Known(_) => return Ok(None),
                    Admission::UnderWay => {}
                    Admission::Fresh => {
                        if let Some(begun) = begin(&mut table)? {
                            table.begin_token(token);
                            return Ok(Some(begun));
                        }
                    }
                }
            }
            settled.await;
        }
    }
}
