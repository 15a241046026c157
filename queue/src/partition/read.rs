//! From handles to batches.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};

use super::table::Part;
use super::{Partition, RowHandle};
use crate::QueueError;

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
    ) -> Result<Vec<RecordBatch>, QueueError> {
        let mut batches = Vec::new();
        for stretch in self.stretches(rows)? {
            batches.push(self.read_stretch(&stretch, columns).await?);
        }
        Ok(batches)
    }

    /// All columns of rows that may be gone by now; what is gone is left out.
    pub(crate) async fn read_rows(&self, mut rows: Vec<RowHandle>) -> Result<Vec<RecordBatch>, QueueError> {
        {
            let table = self.shared.table.lock();
            rows.retain(|row| table.row(*row).is_ok());
        }
        self.read(&rows, None).await
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
            columns.iter().map(|column| batch.schema().index_of(column)).collect();
        Ok(batch.project(&places?)?)
    }
}
