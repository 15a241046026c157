//! From handles to batches.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};

use super::table::Part;
use super::{Partition, RowHandle};
use crate::QueueError;

/// Compactions that one read outlives: each at least halves a chunk, so that no read sees more.
const PLANS_MAX: usize = 32;

/// Why rows could not be read, and which of those that were asked for.
pub(super) struct ReadFailure {
    pub(super) rows: std::ops::Range<usize>,
    pub(super) error: QueueError,
}

/// Rows that follow each other in the same chunks: they come out as one batch.
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
}

impl Partition {
    /// The rows' columns, one batch for each stretch of rows that lie together. Payload is not copied.
    pub(super) async fn read(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, ReadFailure> {
        for _ in 0..PLANS_MAX {
            match self.read_once(rows, columns).await {
                // Compacted meanwhile: the rows lie elsewhere now.
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
        let mut batches = Vec::new();
        let mut at = 0;
        let stretches = self.stretches(rows).map_err(|error| ReadFailure { rows: 0..0, error })?;
        for stretch in stretches {
            let read = self.read_stretch(&stretch, columns).await;
            batches.push(read.map_err(|error| ReadFailure { rows: at..at + stretch.rows, error })?);
            at += stretch.rows;
        }
        Ok(batches)
    }

    /// The columns of rows, whoever holds them; an error if one is gone. Nothing is leased or consumed.
    ///
    /// Cancel-safe.
    pub async fn get(
        &self,
        rows: &[RowHandle],
        columns: Option<&[String]>,
    ) -> Result<Vec<RecordBatch>, QueueError> {
        self.read(rows, columns).await.map_err(|failure| failure.error)
    }

    /// All columns of rows that may be gone by now; what is gone is left out.
    pub(crate) async fn read_rows(&self, mut rows: Vec<RowHandle>) -> Result<Vec<RecordBatch>, QueueError> {
        {
            let table = self.shared.table.lock();
            rows.retain(|row| table.row(*row).is_ok());
        }
        self.read(&rows, None).await.map_err(|failure| failure.error)
    }

    fn stretches(&self, rows: &[RowHandle]) -> Result<Vec<Stretch>, QueueError> {
        let table = self.shared.table.lock();
        let mut stretches: Vec<Stretch> = Vec::new();
        for handle in rows {
            let row = table.row(*handle)?;
            match stretches.last_mut() {
                Some(last) if last.continues_with(&row.parts) => last.rows += 1,
                _ => stretches.push(Stretch { parts: row.parts.clone(), rows: 1 }),
            }
        }
        Ok(stretches)
    }

    async fn read_stretch(
        &self,
        stretch: &Stretch,
        columns: Option<&[String]>,
    ) -> Result<RecordBatch, QueueError> {
        let wanted = |name: &str| columns.is_none_or(|columns| columns.iter().any(|column| column == name));
        let mut fields: Vec<Arc<Field>> = Vec::new();
        let mut arrays = Vec::new();
        for part in stretch.parts.iter().filter(|part| part.columns.iter().any(|column| wanted(column))) {
            let chunk = self.shared.plane.store().read(part.chunk).await?;
            let slice = chunk.slice(part.row as usize, stretch.rows);
            for (field, array) in chunk.schema().fields().iter().zip(slice.columns()) {
                if wanted(field.name()) {
                    fields.push(Arc::clone(field));
                    arrays.push(Arc::clone(array));
                }
            }
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        let Some(columns) = columns else { return Ok(batch) };
        let places: Result<Vec<usize>, _> =
            columns.iter().map(|column| batch.schema_ref().index_of(column)).collect();
        Ok(batch.project(&places?)?)
    }
}
