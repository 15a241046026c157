//! The number of bytes that each row of a chunk needs. Rows may differ widely in size.

use arrow_array::{Array, RecordBatch};
use arrow_buffer::ArrowNativeType;
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::needed_bytes;

/// The memory that a chunk and its rows use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkSizes {
    /// The size of the allocations.
    pub(crate) held_bytes: u64,
    /// The number of bytes that each row needs.
    pub(crate) rows: Vec<u32>,
}

/// The number of bytes that each row of an array needs.
enum RowBytes {
    /// All rows need this many bytes.
    Even(u64),
    Each(Vec<u64>),
}

impl RowBytes {
    fn of(&self, row: usize) -> u64 {
        match self {
            Self::Even(bytes) => *bytes,
            Self::Each(bytes) => bytes.get(row).copied().unwrap_or(0),
        }
    }

    /// The sum of the sizes before each row, and the sum of all rows.
    fn sums(&self, rows: usize) -> Vec<u64> {
        let mut sums = Vec::with_capacity(rows + 1);
        let mut sum = 0;
        sums.push(sum);
        for row in 0..rows {
            sum += self.of(row);
            sums.push(sum);
        }
        sums
    }
}

impl ChunkSizes {
    pub(super) fn of(pieces: &[RecordBatch], held_bytes: usize) -> Self {
        let mut rows = Vec::with_capacity(pieces.iter().map(RecordBatch::num_rows).sum());
        for piece in pieces {
            let columns: Vec<RowBytes> =
                piece.columns().iter().map(|column| row_bytes(&column.to_data())).collect();
            let bytes = |row| columns.iter().map(|column| column.of(row)).sum::<u64>();
            rows.extend((0..piece.num_rows()).map(|row| u32::try_from(bytes(row)).unwrap_or(u32::MAX)));
        }
        Self { held_bytes: held_bytes as u64, rows }
    }
}

fn row_bytes(data: &ArrayData) -> RowBytes {
    if let Some(width) = data.data_type().primitive_width() {
        return RowBytes::Even(width as u64);
    }
    match (data.data_type(), data.child_data()) {
        (DataType::FixedSizeBinary(width), _) => RowBytes::Even(u64::try_from(*width).unwrap_or(0)),
        (DataType::Utf8 | DataType::Binary, _) => by_offsets::<i32>(data, &RowBytes::Even(1)),
        (DataType::LargeUtf8 | DataType::LargeBinary, _) => by_offsets::<i64>(data, &RowBytes::Even(1)),
        (DataType::List(_) | DataType::Map(..), [values]) => by_offsets::<i32>(data, &row_bytes(values)),
        (DataType::LargeList(_), [values]) => by_offsets::<i64>(data, &row_bytes(values)),
        (DataType::FixedSizeList(_, length), [values]) => {
            let length = usize::try_from(*length).unwrap_or(0);
            match row_bytes(values) {
                RowBytes::Even(bytes) => RowBytes::Even(bytes * length as u64),
                each @ RowBytes::Each(_) => {
                    let first = data.offset() * length;
                    let row = |row: usize| (0..length).map(|at| each.of(first + row * length + at)).sum();
                    RowBytes::Each((0..data.len()).map(row).collect())
                }
            }
        }
        (DataType::Struct(_), fields) => {
            let fields: Vec<RowBytes> = fields.iter().map(row_bytes).collect();
            let row = |row| fields.iter().map(|field| field.of(row)).sum();
            RowBytes::Each((0..data.len()).map(row).collect())
        }
        // The bytes are divided evenly among the rows.
        _ => RowBytes::Even(needed_bytes(data).unwrap_or(0) as u64 / data.len().max(1) as u64),
    }
}

/// The sizes of rows, each of which is a slice of `values`.
fn by_offsets<Offset: ArrowNativeType>(data: &ArrayData, values: &RowBytes) -> RowBytes {
    let width = size_of::<Offset>() as u64;
    let Some(buffer) = data.buffers().first() else { return RowBytes::Even(width) };
    let offsets = buffer.typed_data::<Offset>();
    let Some(offsets) = offsets.get(data.offset()..=data.offset() + data.len()) else {
        return RowBytes::Even(width);
    };
    let sums = match values {
        RowBytes::Even(_) => Vec::new(),
        RowBytes::Each(each) => values.sums(each.len()),
    };
    let bytes = |ends: &[Offset]| {
        let (first, last) = (ends[0].as_usize(), ends[1].as_usize());
        let of_values = match values {
            RowBytes::Even(bytes) => bytes * last.saturating_sub(first) as u64,
            RowBytes::Each(_) => match (sums.get(first), sums.get(last)) {
                (Some(before), Some(all)) => all - before,
                _ => 0,
            },
        };
        width + of_values
    };
    RowBytes::Each(offsets.windows(2).map(bytes).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, Int64Array, LargeListArray, ListArray, StringArray};

    use super::*;

    #[test]
    fn long_rows_count_as_what_they_are_also_in_a_cut() {
        let number: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4));
        let lists = [3, 1000, 0, 2].map(|length| Some((0..length).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "bc", "", "defg"]));
        let columns = [("number", number), ("lists", lists), ("words", words)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let expected = [8 + 4 + 12 + 4 + 1, 8 + 4 + 4000 + 4 + 2, 8 + 4 + 4, 8 + 4 + 8 + 4 + 4];
        assert_eq!(ChunkSizes::of(std::slice::from_ref(&batch), 0).rows, expected);
        assert_eq!(ChunkSizes::of(&[batch.slice(1, 3)], 0).rows, expected[1..]);
    }

    #[test]
    fn an_offset_of_a_large_list_has_8_bytes() {
        let lists: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(
            [3, 0].map(|length| Some((0..length).map(Some))),
        ));
        let batch = RecordBatch::try_from_iter([("lists", lists)]).unwrap();
        assert_eq!(ChunkSizes::of(std::slice::from_ref(&batch), 0).rows, [8 + 12, 8]);
        assert_eq!(super::super::payload_bytes(&batch).unwrap(), 8 + 12 + 8);
    }
}
