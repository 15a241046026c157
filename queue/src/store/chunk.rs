//! Chunks: rows that were put together.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::interleave::interleave_record_batch;

use super::{ChunkSizes, held_bytes, own_buffers};
use crate::error::QueueError;

/// Rows that were put together, in their original batches. All batches have the same schema, and there is at
/// least one batch. A chunk is cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    pieces: Arc<[RecordBatch]>,
}

impl Chunk {
    /// Creates a chunk from batches with equal schemas. Slices of much larger batches are copied.
    pub fn new(pieces: Vec<RecordBatch>) -> Result<Self, QueueError> {
        let schema = pieces.first().ok_or(QueueError::Empty)?.schema();
        let other = pieces.iter().find(|piece| *piece.schema_ref() != schema);
        if let Some(other) = other {
            return Err(QueueError::BadRequest {
                reason: format!(
                    "expected batches with equal schemas, found {schema} and {}",
                    other.schema_ref()
                ),
            });
        }
        let pieces = pieces.into_iter().map(own_buffers).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pieces: pieces.into() })
    }

    /// Joins chunks with equal schemas, in order, without copying rows.
    pub(crate) fn joined<'a>(chunks: impl Iterator<Item = &'a Self>) -> Self {
        Self { pieces: chunks.flat_map(|chunk| chunk.pieces.iter().cloned()).collect() }
    }

    /// The batches.
    pub fn pieces(&self) -> &[RecordBatch] {
        &self.pieces
    }

    /// The schema that all batches share.
    pub fn schema(&self) -> &SchemaRef {
        self.pieces[0].schema_ref()
    }

    /// Replaces the schema with an equal schema, which several chunks can then share.
    pub(crate) fn with_schema(self, schema: &SchemaRef) -> Self {
        if Arc::ptr_eq(self.schema(), schema) {
            return self;
        }
        let same = |piece: &RecordBatch| piece.clone().with_schema(Arc::clone(schema));
        match self.pieces.iter().map(same).collect::<Result<Arc<[_]>, _>>() {
            Ok(pieces) => Self { pieces },
            // The schema differs, so the chunk keeps its own schema.
            Err(_) => self,
        }
    }

    /// The number of rows in all batches.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(RecordBatch::num_rows).sum()
    }

    /// The number of bytes that the chunk keeps allocated.
    pub fn held_bytes(&self) -> usize {
        self.pieces.iter().map(held_bytes).sum()
    }

    /// Returns the index of the batch that contains a row, and the index of the row in that batch.
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

    /// Returns the number of bytes that the chunk keeps in memory, and the number that each row needs.
    pub(crate) fn sizes(&self) -> ChunkSizes {
        ChunkSizes::of(&self.pieces, self.held_bytes())
    }

    /// Returns consecutive rows. A few rows of a large batch are copied into their own buffers.
    pub fn slice(&self, first: usize, rows: usize) -> Result<Self, QueueError> {
        let (mut skipped, mut left) = (first, rows);
        let mut pieces = Vec::new();
        for piece in self.pieces.iter() {
            let start = skipped.min(piece.num_rows());
            let taken = left.min(piece.num_rows() - start);
            if taken > 0 {
                pieces.push(piece.slice(start, taken));
            }
            (skipped, left) = (skipped - start, left - taken);
        }
        Self::new(pieces)
    }

    /// Copies the given rows.
    pub(crate) fn select(&self, rows: &[u32]) -> Result<Self, QueueError> {
        let place = |row: &u32| {
            let missing = || QueueError::Arrow {
                reason: format!("expected a row below {} in the chunk, found row={row}", self.rows()),
            };
            self.locate(*row as usize).ok_or_else(missing)
        };
        let places = rows.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let pieces: Vec<&RecordBatch> = self.pieces.iter().collect();
        let (_, columns, _) = interleave_record_batch(&pieces, &places)?.into_parts();
        // For view types, interleaving copies no strings and keeps all strings of the source alive. The
        // result is therefore compacted.
        let compact = |mut column: ArrayRef| -> ArrayRef {
            match column.data_type() {
                DataType::Utf8View => Arc::new(column.as_string_view().gc()),
                DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
                _ => {
                    // A column that grew while it was filled may have up to twice the capacity that it needs.
                    column.shrink_to_fit();
                    column
                }
            }
        };
        let columns = columns.into_iter().map(compact).collect();
        Ok(Self { pieces: vec![RecordBatch::try_new(Arc::clone(self.schema()), columns)?].into() })
    }
}
