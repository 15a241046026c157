//! The rows that the measurements put and take. `bench/peers/transferqueue_peer.py` creates equal rows for
//! the peer.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::Field;

pub(super) const LARGE_ROWS: usize = 512;
pub(super) const PROMPT_TOKENS: usize = 1024;
pub(super) const RESPONSE_TOKENS: usize = 4096;
/// The payload of a row of about 1 KB.
pub(super) const SMALL_BYTES: usize = 1016;

fn list(values: ArrayRef, rows: usize) -> ArrayRef {
    let lengths = std::iter::repeat_n(values.len() / rows, rows);
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None))
}

/// The rows of a training batch: 512 rows of 29 MB in total.
pub(super) fn large() -> anyhow::Result<RecordBatch> {
    let ids = |tokens: usize| -> ArrayRef {
        let values = ScalarBuffer::from_iter((0..(LARGE_ROWS * tokens) as i64).map(|id| id % 150_000));
        list(Arc::new(Int64Array::new(values, None)), LARGE_ROWS)
    };
    let logprobs =
        Float32Array::from_iter_values((0..LARGE_ROWS * RESPONSE_TOKENS).map(|at| -(at as f32) * 1e-7));
    let rewards = Float32Array::from_iter_values((0..LARGE_ROWS).map(|row| row as f32));
    Ok(RecordBatch::try_from_iter([
        ("input_ids", ids(PROMPT_TOKENS)),
        ("responses", ids(RESPONSE_TOKENS)),
        ("log_probs", list(Arc::new(logprobs), LARGE_ROWS)),
        ("reward", Arc::new(rewards) as ArrayRef),
    ])?)
}

/// Rows of 1 KB.
pub(super) fn small(rows: usize) -> anyhow::Result<RecordBatch> {
    let payload = FixedSizeBinaryArray::try_from_iter((0..rows).map(|row| vec![row as u8; SMALL_BYTES]))?;
    let rewards = Float32Array::from_iter_values((0..rows).map(|row| row as f32));
    Ok(RecordBatch::try_from_iter([
        ("payload", Arc::new(payload) as ArrayRef),
        ("reward", Arc::new(rewards) as ArrayRef),
    ])?)
}

pub(super) fn payload_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}
