//! Rows that were put together.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;

use super::{held_bytes, own_buffers};
use crate::QueueError;

/// Rows that were put together, in the batches that they came in: one schema, at least one batch. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    pieces: Arc<[RecordBatch]>,
}

impl Chunk {
    /// The rows of batches with the same columns, in buffers of their own.
    pub(crate) fn new(pieces: Vec<RecordBatch>) -> Result<Self, QueueError> {
        let schema = pieces.first().ok_or(QueueError::Empty)?.schema();
        let other = pieces.iter().find(|piece| *piece.schema_ref() != schema);
        if let Some(other) = other {
            return Err(QueueError::WrongType {
                column: "of a later batch".to_owned(),
                expected: schema.to_string(),
                found: other.schema_ref().to_string(),
            });
        }
        let pieces = pieces.into_iter().map(own_buffers).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pieces: pieces.into() })
    }

    /// The batches.
    pub fn pieces(&self) -> &[RecordBatch] {
        &self.pieces
    }

    /// The columns that all of them have.
    pub fn schema(&self) -> &SchemaRef {
        self.pieces[0].schema_ref()
    }

    /// Rows of all batches.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(RecordBatch::num_rows).sum()
    }

    /// Bytes that it keeps allocated.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pieces.iter().map(held_bytes).sum()
    }

    /// The number of the batch that a row lies in, and its place there.
    pub(crate) fn locate(&self, row: usize) -> Option<(usize, usize)> {
        let mut place = row;
        for (number, piece) in self.pieces.iter().enumerate() {
            if place < piece.num_rows() {
                return Some((number, place));
            }
            place -= piece.num_rows();
        }
        None
    }

    /// A copy of just these rows.
    pub(crate) fn select(&self, rows: impl IntoIterator<Item = u32>) -> Result<Self, QueueError> {
        let places: Vec<(usize, usize)> =
            rows.into_iter().filter_map(|row| self.locate(row as usize)).collect();
        let pieces: Vec<&RecordBatch> = self.pieces.iter().collect();
        let copy = interleave_record_batch(&pieces, &places)?;
        Ok(Self { pieces: vec![copy].into() })
    }
}
