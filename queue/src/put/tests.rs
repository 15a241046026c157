//! Token counts of rows, for each type of column that can count tokens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    FixedSizeListArray, Float32Array, Int16Array, Int64Array, LargeListArray, ListArray, RecordBatch,
    UInt8Array,
};

use super::*;

fn counted(column: ArrayRef) -> Result<Vec<u32>, QueueError> {
    let batch = RecordBatch::try_from_iter_with_nullable([("counted", column, true)]).unwrap();
    lengths_of(&batch, &["counted".to_owned()])
}

#[test]
fn a_number_counts_for_itself_where_it_can_be_a_length() {
    let numbers = Int64Array::from(vec![Some(7), None, Some(-1), Some(1 << 32), Some(u32::MAX.into())]);
    assert_eq!(counted(Arc::new(numbers)).unwrap(), [7, 0, 0, 0, u32::MAX]);
    assert_eq!(counted(Arc::new(UInt8Array::from(vec![0, 255]))).unwrap(), [0, 255]);
    assert_eq!(counted(Arc::new(Int16Array::from(vec![i16::MIN, i16::MAX]).slice(1, 1))).unwrap(), [32767]);
}

#[test]
fn a_list_counts_for_its_items_and_a_null_for_nothing() {
    let rows = || [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(3)])];
    let short = ListArray::from_iter_primitive::<Int8Type, _, _>(rows());
    assert_eq!(counted(Arc::new(short.slice(1, 3))).unwrap(), [0, 0, 1]);
    assert_eq!(counted(Arc::new(short)).unwrap(), [2, 0, 0, 1]);
    let large = LargeListArray::from_iter_primitive::<Int8Type, _, _>(rows());
    assert_eq!(counted(Arc::new(large)).unwrap(), [2, 0, 0, 1]);
    let pairs = [Some(vec![Some(1), Some(2)]), None];
    let even = FixedSizeListArray::from_iter_primitive::<Int8Type, _, _>(pairs, 2);
    assert_eq!(counted(Arc::new(even)).unwrap(), [2, 0]);
}

#[test]
fn what_is_neither_is_refused() {
    let refused = counted(Arc::new(Float32Array::from(vec![1.0]))).unwrap_err();
    assert!(matches!(&refused, QueueError::WrongType { column, .. } if column == "counted"), "{refused}");
}
