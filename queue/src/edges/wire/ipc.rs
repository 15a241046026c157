//! Rows as Arrow IPC streams.

mod check;
mod decoder;
mod labels;
mod messages;
mod recycled;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::writer::{StreamEncoder, StreamWriter};
use arrow_schema::{Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

use crate::QueueError;
use crate::batches::{common_schema, conformed};
use crate::store::gathered;

pub(crate) use decoder::{Decoder, decode_batches};
pub(crate) use labels::{
    Labelled, labelled, labelled_schema, labels, put_with_labels, put_with_record, split_all, split_handles,
    split_keys, split_labels, split_record, split_tags, with_handles,
};
pub(crate) use recycled::Blocks;

fn bad(reason: impl ToString) -> QueueError {
    QueueError::BadRequest { reason: reason.to_string() }
}

/// Rows are sent in pieces of about this size. Such pieces stay in the caches and need no large buffer on
/// either side.
const PIECE_BYTES: usize = 1 << 20;

/// The number of rows of a batch that make a piece.
pub(crate) fn rows_of_a_piece(batch: &RecordBatch) -> usize {
    (batch.num_rows() * PIECE_BYTES / encoded_bytes(batch)).max(1)
}

/// Whether a batch is small enough to be one piece.
pub(crate) fn is_one_piece(batch: &RecordBatch) -> bool {
    encoded_bytes(batch) <= PIECE_BYTES
}

/// A sequence of bytes in several buffers.
#[derive(Debug, Default)]
pub(crate) struct Segments(VecDeque<Bytes>);

impl Segments {
    fn of(buffers: Vec<Buffer>) -> Self {
        Self(gathered(buffers).into_iter().map(Bytes::from_owner).collect())
    }
}

impl From<Segments> for Bytes {
    /// Returns the bytes in one buffer. They are copied if they are in several buffers.
    fn from(mut segments: Segments) -> Self {
        segments.copy_to_bytes(segments.remaining())
    }
}

impl From<Bytes> for Segments {
    fn from(bytes: Bytes) -> Self {
        Self(VecDeque::from([bytes]))
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map_or(&[], |segment| segment)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let slices = self.0.iter().zip(into.iter_mut());
        slices.map(|(segment, slice)| *slice = IoSlice::new(segment)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.0.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.0.pop_front();
        }
        debug_assert_eq!(count, 0, "expected to advance by no more than the remaining bytes");
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if let [only] = self.0.make_contiguous()
            && only.len() == count
        {
            return std::mem::take(only);
        }
        let mut bytes = BytesMut::with_capacity(count);
        bytes.put(self.take(count));
        bytes.freeze()
    }
}

/// Encodes batches with the same columns as one stream, piece by piece.
pub(crate) struct Pieces {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// The number of rows of the current batch that were already encoded.
    next_row: usize,
    encoder: Option<Encoder>,
    is_over: bool,
}

impl Pieces {
    pub(crate) fn new(schema: SchemaRef, mut batches: Vec<RecordBatch>) -> Self {
        // Batches are taken from the end.
        batches.reverse();
        Self { schema, batches, next_row: 0, encoder: None, is_over: false }
    }

    /// Returns the next bytes. Returns `None` at the end and after an error.
    pub(crate) fn next(&mut self) -> Result<Option<Segments>, QueueError> {
        if self.is_over {
            return Ok(None);
        }
        let piece = self.encode_next();
        self.is_over |= piece.is_err();
        piece.map(Some)
    }

    fn encode_next(&mut self) -> Result<Segments, QueueError> {
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => Encoder::new(&self.schema)?,
        };
        let Some(batch) = self.batches.last() else {
            self.is_over = true;
            return encoder.end();
        };
        let rows = rows_of_a_piece(batch).min(batch.num_rows() - self.next_row);
        let piece = encoder.batch(&batch.slice(self.next_row, rows))?;
        self.encoder = Some(encoder);
        self.next_row += rows;
        if self.next_row == batch.num_rows() {
            self.batches.pop();
            self.next_row = 0;
        }
        Ok(piece)
    }
}

fn broken(error: arrow_schema::ArrowError) -> QueueError {
    bad(format!("arrow stream: {error}"))
}

/// An estimate of the encoded size of a batch. A buffer of this capacity need not grow, so its contents are
/// not copied.
pub(crate) fn encoded_bytes(batch: &RecordBatch) -> usize {
    let payload = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0));
    payload.sum::<usize>() + 256 * batch.num_columns() + 1024
}

/// Encodes batches one at a time. Long buffers are not copied: the segments share the batch's memory.
pub(crate) struct Encoder(StreamEncoder);

impl Encoder {
    pub(crate) fn new(schema: &Schema) -> Result<Self, QueueError> {
        Ok(Self(StreamEncoder::try_new(schema)?))
    }

    /// The bytes up to the end of the batch.
    pub(crate) fn batch(&mut self, batch: &RecordBatch) -> Result<Segments, QueueError> {
        Ok(Segments::of(self.0.encode(batch)?))
    }

    /// The bytes of the stream's end.
    pub(crate) fn end(self) -> Result<Segments, QueueError> {
        Ok(Segments::of(self.0.finish()?))
    }
}

/// A whole stream of one batch.
pub(crate) fn encode(batch: &RecordBatch) -> Result<Bytes, QueueError> {
    let mut writer = StreamWriter::try_new(Vec::with_capacity(encoded_bytes(batch)), &batch.schema())?;
    writer.write(batch)?;
    Ok(writer.into_inner()?.into())
}

/// A random token, by which the repetition of a call is recognised.
///
/// It comes from the operating system. The generator of a thread is copied by `fork`, so parent and child would make
/// equal tokens, and the server would take the put of one process for a repetition of the other's.
pub(crate) fn fresh_token() -> String {
    format!("{:032x}", UnwrapErr(SysRng).random::<u128>())
}

/// Joins batches into one. Several batches are copied.
pub(crate) fn one(batches: &[RecordBatch]) -> Result<RecordBatch, QueueError> {
    match batches {
        [] => Err(QueueError::Empty),
        [batch] => Ok(batch.clone()),
        [first, ..] => Ok(concat_batches(&first.schema(), batches)?),
    }
}

/// The columns of batches with the same rows, in the order of `columns` if it is given.
pub(crate) fn side_by_side(
    batches: &[RecordBatch],
    columns: Option<&[String]>,
) -> Result<RecordBatch, QueueError> {
    let all = || batches.iter().flat_map(|batch| batch.schema_ref().fields().iter().zip(batch.columns()));
    let (fields, arrays): (Vec<_>, Vec<_>) = match columns {
        None => all().map(|(field, array)| (Arc::clone(field), Arc::clone(array))).unzip(),
        Some(names) => {
            let named = |name: &String| {
                let found = all().find(|(field, _)| field.name() == name);
                let (field, array) = found.ok_or_else(|| bad(format!("expected rows with column={name}")))?;
                Ok((Arc::clone(field), Arc::clone(array)))
            };
            names.iter().map(named).collect::<Result<Vec<_>, QueueError>>()?.into_iter().unzip()
        }
    };
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

/// Encodes batches as one stream with their common schema.
pub(crate) fn stream_of(batches: &[RecordBatch]) -> Result<Vec<u8>, QueueError> {
    let schema = common_schema(batches);
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    for batch in batches {
        writer.write(&conformed(batch, &schema)?)?;
    }
    Ok(writer.into_inner()?)
}
