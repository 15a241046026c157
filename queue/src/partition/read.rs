//! Reading the payload of rows.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};

use super::Partition;
use super::table::Part;
use crate::error::QueueError;
use crate::row::RowHandle;
use crate::store::{Found, Note, Wanted};

/// The number of times that one read is repeated because of moved chunks. A compaction at least halves a
/// chunk, so no read needs more.
const PLANS_MAX: usize = 32;

/// An error, and the indices of the requested rows that could not be read.
pub(super) struct ReadFailure {
    pub(super) rows: std::ops::Range<usize>,
    pub(super) error: QueueError,
}

/// Some columns of rows that lie on a storage unit.
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
    parts: Vec<Part>,
    rows: usize,
}

impl Stretch {
    fn continues_with(&self, parts: &[Part]) -> bool {
        let next = |ours: &Part, theirs: &Part| {
            ours.chunk == theirs.chunk && ours.row + self.rows as u32 == theirs.row
        };
        self.parts.len() == parts.len()
            && self.parts.iter().zip(parts).all(|(ours, theirs)| next(ours, theirs))
    }

    /// The rows of the stretch in each chunk that has any of the columns.
    fn wanted(&self, columns: Option<&[String]>) -> Vec<Wanted> {
        let needed = |name: &String| columns.is_none_or(|columns| columns.contains(name));
        let parts = self.parts.iter().filter(|part| part.columns.iter().any(needed));
        let wanted = |part: &Part| Wanted {
            chunk: part.chunk,
            first: part.row as usize,
            rows: self.rows,
            columns: Arc::clone(&part.columns),
        };
        parts.map(wanted).collect()
    }

    /// Reads the columns. Returns several batches if the chunks have several pieces.
    fn read(&self, parts: &[Found], columns: Option<&[String]>) -> Result<Vec<RecordBatch>, QueueError> {
        let mut batches = Vec::new();
        let mut done = 0;
        while done < self.rows {
            let mut rows = self.rows - done;
            let mut pieces = Vec::with_capacity(parts.len());
            for Found { chunk, first } in parts {
                let missing =
                    || QueueError::Arrow { reason: format!("a chunk without row {}", first + done) };
                let (piece, place) = chunk.locate(first + done).ok_or_else(missing)?;
                let piece = &chunk.pieces()[piece];
                rows = rows.min(piece.num_rows() - place);
                pieces.push((piece, place));
            }
            batches.push(side_by_side(&pieces, rows, columns)?);
            done += rows;
        }
        Ok(batches)
    }
}

impl Partition {
    /// Reads columns of rows. Returns one batch for each run of rows that are stored together. The payload is
    /// not copied.
    pub(super) async fn read(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, ReadFailure> {
        for _ in 0..PLANS_MAX {
            match self.read_once(rows, columns).await {
                // A chunk was compacted or moved in the meantime. The table has the new place.
                Err(failure) if matches!(failure.error, QueueError::ChunkGone { .. }) => {}
                outcome => return outcome,
            }
        }
        self.read_once(rows, columns).await
    }

    async fn read_once(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, ReadFailure> {
        let stretches = self.stretches(rows).map_err(|error| ReadFailure { rows: 0..0, error })?;
        let wanted: Vec<Vec<Wanted>> = stretches.iter().map(|stretch| stretch.wanted(columns)).collect();
        let parts: Vec<usize> = wanted.iter().map(Vec::len).collect();
        let wanted = wanted.concat();
        let found = self.shared.plane.get(&wanted, columns).await;
        for (wanted, found) in wanted.iter().zip(&found) {
            if let Err(QueueError::UnitAway { .. }) = found {
                self.shared.table.lock().set_away(wanted.chunk, true);
            }
        }
        let (mut batches, mut at, mut found) = (Vec::new(), 0, found.into_iter());
        for (stretch, parts) in stretches.iter().zip(parts) {
            let parts: Result<Vec<Found>, QueueError> = found.by_ref().take(parts).collect();
            let read = parts.and_then(|parts| stretch.read(&parts, columns));
            batches.extend(read.map_err(|error| ReadFailure { rows: at..at + stretch.rows, error })?);
            at += stretch.rows;
        }
        Ok(batches)
    }

    /// Reads columns of rows, leased or not; all columns if `columns` is absent. Returns an error if a row is
    /// gone. Nothing is leased or consumed.
    ///
    /// Cancel-safe.
    pub async fn get(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        self.visible(rows).await;
        self.read(rows, columns).await.map_err(|failure| failure.error)
    }

    /// Reads all columns of those of the rows that still exist.
    pub(crate) async fn read_rows(&self, mut rows: Vec<RowHandle>) -> Result<Vec<RecordBatch>, QueueError> {
        self.retain_existing(&mut rows);
        self.read(&rows, None).await.map_err(|failure| failure.error)
    }

    /// Reads all columns of those of the rows that still exist and whose payload is sound. Calls `damaged` with
    /// the number of the others, for each damage.
    pub(crate) async fn read_sound_rows(
        &self,
        mut rows: Vec<RowHandle>,
        mut damaged: impl FnMut(usize, QueueError),
    ) -> Result<Vec<RecordBatch>, QueueError> {
        self.retain_existing(&mut rows);
        loop {
            match self.read(&rows, None).await {
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
    /// and their columns.
    pub(crate) fn places(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Option<Vec<Vec<PlacedPart>>>, QueueError> {
        let mut placed = Vec::new();
        for stretch in self.stretches(rows)? {
            let mut parts = Vec::with_capacity(stretch.parts.len());
            for part in &stretch.parts {
                let wanted = |name: &&String| columns.is_none_or(|columns| columns.contains(name));
                let columns: Vec<String> = part.columns.iter().filter(wanted).cloned().collect();
                if columns.is_empty() {
                    continue;
                }
                let Some(note) = self.shared.plane.note_on_unit(part.chunk) else { return Ok(None) };
                parts.push(PlacedPart { note, first: part.row as usize, rows: stretch.rows, columns });
            }
            if parts.is_empty() {
                return Ok(None);
            }
            placed.push(parts);
        }
        Ok(Some(placed))
    }

    fn stretches(&self, rows: &[RowHandle]) -> Result<Vec<Stretch>, QueueError> {
        let table = self.shared.table.lock();
        let mut stretches: Vec<Stretch> = Vec::new();
        for handle in rows {
            let row = table.row(*handle)?;
            match stretches.last_mut() {
                Some(last) if last.continues_with(&row.parts) => last.rows += 1,
                _ => stretches.push(Stretch { parts: row.parts.to_vec(), rows: 1 }),
            }
        }
        Ok(stretches)
    }
}

/// Joins columns of `rows` rows side by side. Each piece has its first row at the given index.
fn side_by_side(
    pieces: &[(&RecordBatch, usize)],
    rows: usize,
    columns: Option<&[String]>,
) -> Result<RecordBatch, QueueError> {
    let mut fields: Vec<Arc<Field>> = Vec::new();
    let mut arrays = Vec::new();
    let mut add = |piece: &RecordBatch, place: usize, column: usize| {
        fields.push(Arc::clone(&piece.schema_ref().fields()[column]));
        arrays.push(piece.column(column).slice(place, rows));
    };
    match columns {
        None => pieces.iter().for_each(|(piece, place)| {
            (0..piece.num_columns()).for_each(|column| add(piece, *place, column));
        }),
        Some(names) => {
            for name in names {
                let found = pieces.iter().find_map(|(piece, place)| {
                    let column = piece.schema_ref().index_of(name).ok()?;
                    Some((piece, *place, column))
                });
                let missing = || QueueError::ColumnMissing { column: name.clone() };
                let (piece, place, column) = found.ok_or_else(missing)?;
                add(piece, place, column);
            }
        }
    }
    // A batch without columns needs an explicit number of rows.
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}
