//! The rows that are put. The bytes of a row depend only on its id.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use rolldock_queue::{Lease, Put};

pub(crate) fn payload(ids: &[i64]) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
    let tokens = ids.iter().map(|id| Some((0..id % 7).map(move |at| Some((id * 10 + at) as i32))));
    let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens));
    RecordBatch::try_from_iter([("id", id), ("tokens", tokens)]).unwrap()
}

/// A put without rows, for the defaults of its other fields.
pub(crate) fn bare() -> Put {
    Put::group("", payload(&[]))
}

pub(crate) fn extra(ids: &[i64]) -> RecordBatch {
    let extra: ArrayRef = Arc::new(Float32Array::from_iter_values(ids.iter().map(|id| *id as f32)));
    RecordBatch::try_from_iter([("extra", extra)]).unwrap()
}

/// The ids of the rows of a lease. Checks every byte of their payload.
pub(crate) fn checked_ids(lease: &Lease) -> Vec<i64> {
    let mut ids = Vec::new();
    for batch in lease.batches() {
        let found: Vec<i64> = batch["id"].as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(batch["tokens"].as_list::<i32>().to_data(), payload(&found)["tokens"].to_data());
        if let Some(column) = batch.column_by_name("extra") {
            let values = column.as_primitive::<Float32Type>().values();
            assert!(values.iter().zip(&found).all(|(value, id)| *value == *id as f32));
        }
        ids.extend(found);
    }
    assert_eq!(ids.len(), lease.rows().len());
    ids
}
