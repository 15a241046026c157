//! Reading the payload of rows.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};

use super::Partition;
use super::table::Part;
use crate::error::QueueError;
use crate::row::RowHandle;
use crate::store::{Found, Note, Wanted};

/// How often a read is repeated if its chunks were moved in the meantime. Each compaction at least halves a chunk,
/// and other moves of the same rows are rare.
const REPETITIONS_MAX: usize = 32;

/// An error, and the indices of the requested rows that could not be read.
pub(super) struct ReadFailure {
    pub(super) rows: std::ops::Range<usize>,
    pub(super) error: QueueError,
}

/// Some columns of rows that are stored on a storage unit.
pub(crate) struct PlacedPart {
    pub(crate) note: Note,
    /// The index of the first row in the chunk.
    pub(crate) first: usize,
    /// The number of consecutive rows.
    pub(crate) rows: usize,
    pub(crate) columns: Vec<String>,
}

/// Rows that are consecutive in all of their chunks.
struct Stretch {
    /// The parts that a reader gets, oldest first.
    parts: Vec<Part>,
    rows: usize,
}

/// Rows of a chunk, and the columns that are read from them.
struct Piece<'a> {
    batch: &'a RecordBatch,
    /// The index of the first row in the batch.
    place: usize,
    columns: &'a [String],
    /// Whether the columns are all columns of the chunk.
    is_whole: bool,
}

impl Stretch {
    fn continues_with(&self, parts: &[Part]) -> bool {
        let next = |ours: &Part, theirs: &Part| {
            ours.chunk == theirs.chunk && ours.row + self.rows as u32 == theirs.row
        };
        self.parts.len() == parts.len()
            && self.parts.iter().zip(parts).all(|(ours, theirs)| next(ours, theirs))
    }

    /// The columns of the part at index `at` that no later part has. Later parts replace the other columns.
    fn given(&self, at: usize) -> Arc<[String]> {
        let part = &self.parts[at];
        let is_replaced =
            |name: &String| self.parts[at + 1..].iter().any(|later| later.columns.contains(name));
        if !part.columns.iter().any(is_replaced) {
            return Arc::clone(&part.columns);
        }
        part.columns.iter().filter(|name| !is_replaced(name)).cloned().collect()
    }

    /// The rows of the stretch in each chunk from which any of the columns is read.
    fn wanted(&self, columns: Option<&[String]>) -> Vec<Wanted> {
        let needed = |name: &String| columns.is_none_or(|columns| columns.contains(name));
        let wanted = |at: usize| Wanted {
            chunk: self.parts[at].chunk,
            first: self.parts[at].row as usize,
            rows: self.rows,
            columns: self.given(at),
        };
        let wanted = (0..self.parts.len()).map(wanted);
        wanted.filter(|wanted| wanted.columns.iter().any(needed)).collect()
    }

    /// Reads the columns of `parts`, which were found for `wanted`. Returns several batches if the chunks
    /// have several pieces.
    fn read(
        &self,
        wanted: &[Wanted],
        parts: &[Found],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        let mut batches = Vec::new();
        let mut done = 0;
        while done < self.rows {
            let mut rows = self.rows - done;
            let mut pieces = Vec::with_capacity(parts.len());
            for (Wanted { columns, .. }, Found { chunk, first }) in wanted.iter().zip(parts) {
                let missing = || QueueError::Arrow {
                    reason: format!(
                        "expected row={} in a chunk, found a chunk with fewer rows",
                        first + done
                    ),
                };
                let (piece, place) = chunk.locate(first + done).ok_or_else(missing)?;
                let batch = &chunk.pieces()[piece];
                rows = rows.min(batch.num_rows() - place);
                let is_whole = self.parts.iter().any(|part| Arc::ptr_eq(&part.columns, columns));
                pieces.push(Piece { batch, place, columns, is_whole });
            }
            batches.push(side_by_side(&pieces, rows, columns)?);
            done += rows;
        }
        Ok(batches)
    }
}

impl Partition {
    /// Reads columns of rows, with the values that a lease sees, or with the current values. Returns one
    /// batch for each run of rows that are stored together. The payload is not copied.
    pub(super) async fn read(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
        lease: Option<u64>,
    ) -> Result<Vec<RecordBatch>, ReadFailure> {
        for _ in 0..REPETITIONS_MAX {
            match self.read_once(rows, columns, lease).await {
                // A chunk was compacted or moved in the meantime. The table has the new location.
                Err(failure) if matches!(failure.error, QueueError::ChunkGone { .. }) => {}
                outcome => return outcome,
            }
        }
        self.read_once(rows, columns, lease).await
    }

    async fn read_once(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
        lease: Option<u64>,
    ) -> Result<Vec<RecordBatch>, ReadFailure> {
        let stretches = self.stretches(rows, lease).map_err(|error| ReadFailure { rows: 0..0, error })?;
        let wanted: Vec<Vec<Wanted>> = stretches.iter().map(|stretch| stretch.wanted(columns)).collect();
        let all = wanted.concat();
        let found = self.shared.plane.get(&all, columns).await;
        for (wanted, found) in all.iter().zip(&found) {
            if let Err(QueueError::UnitAway { .. }) = found {
                self.shared.table.lock().set_away(wanted.chunk, true);
            }
        }
        let (mut batches, mut at, mut found) = (Vec::new(), 0, found.into_iter());
        for (stretch, wanted) in stretches.iter().zip(&wanted) {
            let parts: Result<Vec<Found>, QueueError> = found.by_ref().take(wanted.len()).collect();
            let read = parts.and_then(|parts| stretch.read(wanted, &parts, columns));
            batches.extend(read.map_err(|error| ReadFailure { rows: at..at + stretch.rows, error })?);
            at += stretch.rows;
        }
        Ok(in_one_order(batches))
    }

    /// Reads columns of rows, leased or not. If `columns` is absent, reads all columns. Returns an error if a
    /// row was freed. Nothing is leased or consumed.
    ///
    /// Cancel-safe.
    pub async fn get(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        self.visible(rows).await;
        self.read(rows, columns, None).await.map_err(|failure| failure.error)
    }

    /// Reads all columns of the rows that still exist.
    pub(crate) async fn read_rows(&self, mut rows: Vec<RowHandle>) -> Result<Vec<RecordBatch>, QueueError> {
        loop {
            self.retain_existing(&mut rows);
            match self.read(&rows, None, None).await {
                // A row was freed after the look at the table. Each round has fewer rows, so the loop ends.
                Err(ReadFailure { error: QueueError::StaleHandle { .. }, .. }) => {}
                outcome => return outcome.map_err(|failure| failure.error),
            }
        }
    }

    /// Reads all columns of the rows that still exist and whose payload is sound. Calls `damaged` for each
    /// damaged part, with the number of its rows.
    pub(crate) async fn read_sound_rows(
        &self,
        mut rows: Vec<RowHandle>,
        mut damaged: impl FnMut(usize, QueueError),
    ) -> Result<Vec<RecordBatch>, QueueError> {
        loop {
            self.retain_existing(&mut rows);
            match self.read(&rows, None, None).await {
                Err(ReadFailure { error: QueueError::StaleHandle { .. }, .. }) => {}
                Err(ReadFailure { rows: unreadable, error: error @ QueueError::Corrupt { .. } })
                    if !unreadable.is_empty() =>
                {
                    damaged(unreadable.len(), error);
                    rows.drain(unreadable);
                }
                outcome => return outcome.map_err(|failure| failure.error),
            }
        }
    }

    fn retain_existing(&self, rows: &mut Vec<RowHandle>) {
        let table = self.shared.table.lock();
        rows.retain(|row| table.row(*row).is_ok());
    }

    /// Returns the places of rows, if all of them are on storage units: for each stretch of rows, the parts
    /// and their columns. The values are the values that a lease sees, or the current values.
    pub(crate) fn places(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
        lease: Option<u64>,
    ) -> Result<Option<Vec<Vec<PlacedPart>>>, QueueError> {
        let mut placed = Vec::new();
        for stretch in self.stretches(rows, lease)? {
            let mut parts = Vec::with_capacity(stretch.parts.len());
            for Wanted { chunk, first, rows, columns: given } in stretch.wanted(columns) {
                let wanted = |name: &&String| columns.is_none_or(|columns| columns.contains(name));
                let columns: Vec<String> = given.iter().filter(wanted).cloned().collect();
                let Some(note) = self.shared.plane.note_on_unit(chunk) else { return Ok(None) };
                parts.push(PlacedPart { note, first, rows, columns });
            }
            if parts.is_empty() {
                return Ok(None);
            }
            placed.push(parts);
        }
        Ok(Some(placed))
    }

    /// Plans a read. All rows are looked up under one lock, so a write of several rows is seen in all of them
    /// or in none.
    fn stretches(&self, rows: &[RowHandle], lease: Option<u64>) -> Result<Vec<Stretch>, QueueError> {
        let table = self.shared.table.lock();
        let as_of = lease.and_then(|lease| table.as_of(lease));
        let mut stretches: Vec<Stretch> = Vec::new();
        for handle in rows {
            let parts = table.row(*handle)?.view(as_of);
            match stretches.last_mut() {
                Some(last) if last.continues_with(&parts) => last.rows += 1,
                _ => stretches.push(Stretch { parts: parts.into_owned(), rows: 1 }),
            }
        }
        Ok(stretches)
    }
}

/// Puts the columns of batches into the same order. Rows with replaced values may have another order of
/// columns.
fn in_one_order(mut batches: Vec<RecordBatch>) -> Vec<RecordBatch> {
    let Some((first, others)) = batches.split_first_mut() else { return batches };
    let order = first.schema();
    for batch in others {
        let schema = batch.schema();
        if Arc::ptr_eq(&schema, &order) || schema.fields().len() != order.fields().len() {
            continue;
        }
        let places: Option<Vec<usize>> =
            order.fields().iter().map(|field| schema.index_of(field.name()).ok()).collect();
        if let Some(places) = places.filter(|places| !places.is_sorted())
            && let Ok(ordered) = batch.project(&places)
        {
            *batch = ordered;
        }
    }
    batches
}

/// Joins columns of `rows` rows side by side.
fn side_by_side(
    pieces: &[Piece<'_>],
    rows: usize,
    columns: Option<&[String]>,
) -> Result<RecordBatch, QueueError> {
    let mut fields: Vec<Arc<Field>> = Vec::new();
    let mut arrays = Vec::new();
    let mut add = |piece: &Piece<'_>, column: usize| {
        fields.push(Arc::clone(&piece.batch.schema_ref().fields()[column]));
        arrays.push(piece.batch.column(column).slice(piece.place, rows));
    };
    match columns {
        None => {
            for piece in pieces {
                let is_given = |column: &usize| {
                    piece.is_whole || piece.columns.contains(piece.batch.schema_ref().field(*column).name())
                };
                (0..piece.batch.num_columns()).filter(is_given).for_each(|column| add(piece, column));
            }
        }
        Some(names) => {
            for name in names {
                let found = pieces.iter().filter(|piece| piece.columns.contains(name)).find_map(|piece| {
                    let column = piece.batch.schema_ref().index_of(name).ok()?;
                    Some((piece, column))
                });
                let missing = || QueueError::ColumnMissing { column: name.clone() };
                let (piece, column) = found.ok_or_else(missing)?;
                add(piece, column);
            }
        }
    }
    // A batch without columns needs an explicit number of rows.
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}
