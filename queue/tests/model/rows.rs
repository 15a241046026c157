//! The rows that are put. The bytes of a row depend only on its id.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use rolldock_queue::{Lease, Put};

/// The versions of the columns `tokens` and `extra` of a row. A version is 0 until a write sets the column,
/// and is then the number of the last write.
pub(crate) type Versions = [i64; 2];

fn ids_of(ids: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(ids.to_vec()))
}

fn tokens(rows: impl Iterator<Item = (i64, i64)>) -> ArrayRef {
    let list = |(id, version): (i64, i64)| {
        Some((0..(id + version) % 7).map(move |at| Some((version * 65_536 + id * 10 + at) as i32)))
    };
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.map(list)))
}

fn extras(rows: impl Iterator<Item = (i64, i64)>) -> ArrayRef {
    // `f32` represents whole numbers below 2^24 exactly.
    Arc::new(Float32Array::from_iter_values(rows.map(|(id, version)| (version * 4096 + id) as f32)))
}

pub(crate) fn payload(ids: &[i64]) -> RecordBatch {
    let tokens = tokens(ids.iter().map(|id| (*id, 0)));
    RecordBatch::try_from_iter([("id", ids_of(ids)), ("tokens", tokens)]).unwrap()
}

/// The columns whose values a write replaces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Replaced {
    Tokens,
    Extra,
    /// All columns of the put.
    Put,
    All,
}

impl Replaced {
    /// Whether the write has the columns `tokens` and `extra`.
    pub(crate) fn has(self) -> [bool; 2] {
        [self != Self::Extra, matches!(self, Self::Extra | Self::All)]
    }

    /// New values of some rows.
    pub(crate) fn rows(self, ids: &[i64], version: i64) -> RecordBatch {
        let each = || ids.iter().map(|id| (*id, version));
        let columns = match self {
            Self::Tokens => vec![("tokens", tokens(each()))],
            Self::Extra => vec![("extra", extras(each()))],
            Self::Put => vec![("id", ids_of(ids)), ("tokens", tokens(each()))],
            Self::All => vec![("extra", extras(each())), ("tokens", tokens(each())), ("id", ids_of(ids))],
        };
        RecordBatch::try_from_iter(columns).unwrap()
    }
}

/// A put without rows, for the defaults of its other fields.
pub(crate) fn bare() -> Put {
    Put::group("", payload(&[]))
}

/// The ids of the rows of a lease. Checks every byte of their payload, which depends on their ids and
/// versions.
pub(crate) fn checked_ids(lease: &Lease, versions: impl Fn(i64) -> Versions) -> Vec<i64> {
    let mut ids = Vec::new();
    for batch in lease.batches() {
        let found: Vec<i64> = batch["id"].as_primitive::<Int64Type>().values().to_vec();
        let each = |column: usize| found.iter().map(|id| (*id, versions(*id)[column])).collect::<Vec<_>>();
        assert_eq!(batch["tokens"].to_data(), tokens(each(0).into_iter()).to_data());
        if let Some(column) = batch.column_by_name("extra") {
            assert_eq!(column.to_data(), extras(each(1).into_iter()).to_data());
        }
        ids.extend(found);
    }
    assert_eq!(ids.len(), lease.rows().len());
    ids
}
