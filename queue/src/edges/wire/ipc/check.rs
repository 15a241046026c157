//! Checks the metadata of a message before Arrow reads it, in O(columns) and without touching the payload.
//!
//! Arrow's reader checks the contents of arrays (offsets, UTF-8, indexes), but it panics on impossible types,
//! on buffers outside of a body and on lengths whose products overflow. This module refuses such messages. It
//! also refuses data that the queue does not support: compressed buffers, parts of dictionaries, and values
//! in big-endian order.

use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    validate_decimal_precision_and_scale,
};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::{Endianness, MetadataVersion, Type};
use arrow_schema::{DataType, Schema, UnionMode};
use flatbuffers::VerifierOptions;

use super::{bad, broken};
use crate::QueueError;
use crate::config::inner_types;

/// The maximum number of tables in a head. A field takes two or three tables, and each of its metadata
/// entries takes one. A head may refer to one table many times, so the length of the head does not limit the
/// size of the result.
const TABLES_MAX: usize = 1 << 17;
/// The maximum number of values of an array, counted for each level of a nested array. With this limit, no
/// product with a width overflows.
const VALUES_MAX: i64 = 1 << 32;
/// An array may have this many values even without bytes for them, as in a column of nulls. A larger array
/// may have no more values than its body has bits, because Arrow may allocate a bit for each value.
const VALUES_WITHOUT_BYTES_MAX: i64 = 1 << 26;
/// The size of a view in bytes.
const VIEW_BYTES: usize = 16;
/// The maximum number of alternatives of a union whose type has no ids.
const ALTERNATIVES_MAX: usize = 128;

fn refused(reason: impl std::fmt::Display) -> QueueError {
    bad(format!("arrow stream: {reason}"))
}

/// Reads the head of a message.
pub(super) fn message(head: &[u8]) -> Result<arrow_ipc::Message<'_>, QueueError> {
    let options = VerifierOptions { max_tables: TABLES_MAX, ..VerifierOptions::default() };
    arrow_ipc::root_as_message_with_opts(&options, head).map_err(refused)
}

/// The length of a message's body.
pub(super) fn body_bytes(message: &arrow_ipc::Message<'_>) -> Result<usize, QueueError> {
    let length = message.bodyLength();
    usize::try_from(length).map_err(|_| refused(format!("expected the length of a body, found {length}")))
}

/// Reads the schema of a stream.
pub(super) fn schema(encoded: arrow_ipc::Schema<'_>) -> Result<Schema, QueueError> {
    if encoded.endianness() != Endianness::Little {
        return Err(refused("expected values in little-endian order, found big-endian order"));
    }
    encoded.fields().into_iter().flatten().try_for_each(check_unions)?;
    let schema = try_fb_to_schema(encoded).map_err(broken)?;
    schema.fields().iter().try_for_each(|field| check_type(field.data_type()))?;
    Ok(schema)
}

/// Refuses unions with more alternatives than there are ids.
fn check_unions(field: arrow_ipc::Field<'_>) -> Result<(), QueueError> {
    let count = field.children().map_or(0, |children| children.len());
    if field.type_type() == Type::Union && count > ALTERNATIVES_MAX {
        return Err(refused(format!(
            "expected a union with at most alternatives={ALTERNATIVES_MAX}, found {count}"
        )));
    }
    field.children().into_iter().flatten().try_for_each(check_unions)
}

fn check_decimal<T: DecimalType>(precision: u8, scale: i8) -> Result<(), QueueError> {
    validate_decimal_precision_and_scale::<T>(precision, scale).map_err(broken)
}

/// Refuses types for which Arrow cannot build an array.
fn check_type(dtype: &DataType) -> Result<(), QueueError> {
    let wrong = |expected: &str| refused(format!("expected {expected}, found type {dtype}"));
    match dtype {
        DataType::FixedSizeBinary(width) if *width < 0 => Err(wrong("a width of at least 0")),
        DataType::FixedSizeList(_, length) if *length < 0 => Err(wrong("a length of at least 0")),
        DataType::Decimal32(precision, scale) => check_decimal::<Decimal32Type>(*precision, *scale),
        DataType::Decimal64(precision, scale) => check_decimal::<Decimal64Type>(*precision, *scale),
        DataType::Decimal128(precision, scale) => check_decimal::<Decimal128Type>(*precision, *scale),
        DataType::Decimal256(precision, scale) => check_decimal::<Decimal256Type>(*precision, *scale),
        DataType::Map(entries, _) if !matches!(entries.data_type(), DataType::Struct(pair) if pair.len() == 2) => {
            Err(wrong("a map of pairs"))
        }
        DataType::RunEndEncoded(ends, _) if !ends.data_type().is_run_ends_type() => {
            Err(wrong("run ends of type Int16, Int32 or Int64"))
        }
        _ => inner_types(dtype).into_iter().try_for_each(check_type),
    }
}

/// Whether a type contains a union.
pub(super) fn has_union(dtype: &DataType) -> bool {
    matches!(dtype, DataType::Union(..)) || inner_types(dtype).into_iter().any(has_union)
}

/// The type of the values of a dictionary.
pub(super) fn dictionary_values(schema: &Schema, id: i64) -> Result<&DataType, QueueError> {
    #[expect(deprecated, reason = "arrow-ipc finds the type in the same way")]
    let fields = schema.fields_with_dict_id(id);
    match fields.first().map(|field| field.data_type()) {
        Some(DataType::Dictionary(_, values)) => Ok(values),
        _ => Err(refused(format!("expected a dictionary of the schema, found id={id}"))),
    }
}

/// Checks the arrays of a batch with columns of these types.
pub(super) fn batch<'a>(
    batch: arrow_ipc::RecordBatch<'_>,
    mut types: impl Iterator<Item = &'a DataType>,
    version: MetadataVersion,
    body: &Buffer,
) -> Result<(), QueueError> {
    if let Some(compression) = batch.compression() {
        return Err(refused(format!(
            "expected buffers without compression, found codec={}",
            compression.codec().variant_name().unwrap_or("unknown")
        )));
    }
    let bits = i64::try_from(body.len()).unwrap_or(i64::MAX).saturating_mul(8);
    let values_max = bits.clamp(VALUES_WITHOUT_BYTES_MAX, VALUES_MAX);
    let rows = batch.length();
    if !(0..=values_max).contains(&rows) {
        return Err(refused(format!("expected rows of at most {values_max}, found {rows}")));
    }
    let nodes = batch.nodes().ok_or_else(|| refused("expected the lengths of arrays, found none"))?;
    for node in nodes {
        let (length, nulls) = (node.length(), node.null_count());
        if !(0..=values_max).contains(&length) || !(0..=length).contains(&nulls) {
            return Err(refused(format!(
                "expected arrays of at most length={values_max} and no more nulls, found length={length} and \
                 nulls={nulls}"
            )));
        }
    }
    let buffers = batch.buffers().ok_or_else(|| refused("expected the places of buffers, found none"))?;
    let mut left = body.len();
    for buffer in buffers {
        let (_, length) = place(buffer, body)?;
        // Buffers that overlap would have more bytes in total than were received.
        left = left.checked_sub(length).ok_or_else(|| refused("expected buffers that do not overlap"))?;
    }
    let mut arrays = Arrays {
        nodes: nodes.iter(),
        buffers: buffers.iter(),
        variadic: batch.variadicBufferCounts().into_iter().flatten(),
        has_validity_of_unions: version < MetadataVersion::V5,
        body,
    };
    types.try_for_each(|dtype| arrays.check(dtype))
}

/// The offset and the length of a buffer in its body.
fn place(buffer: &arrow_ipc::Buffer, body: &Buffer) -> Result<(usize, usize), QueueError> {
    let (offset, length) = (usize::try_from(buffer.offset()), usize::try_from(buffer.length()));
    match (offset, length) {
        (Ok(offset), Ok(length)) if offset.checked_add(length).is_some_and(|end| end <= body.len()) => {
            Ok((offset, length))
        }
        _ => Err(refused(format!(
            "found a buffer of bytes={} at offset={}, expected it inside of its body of bytes={}",
            buffer.length(),
            buffer.offset(),
            body.len()
        ))),
    }
}

/// Walks the arrays of a batch in the order in which Arrow reads them, and checks the buffers that Arrow does
/// not check.
struct Arrays<'a, V> {
    nodes: flatbuffers::VectorIter<'a, arrow_ipc::FieldNode>,
    buffers: flatbuffers::VectorIter<'a, arrow_ipc::Buffer>,
    variadic: V,
    has_validity_of_unions: bool,
    body: &'a Buffer,
}

impl<V: Iterator<Item = i64>> Arrays<'_, V> {
    fn skip(&mut self, buffers: usize) -> Result<(), QueueError> {
        (0..buffers).try_for_each(|_| self.next().map(drop))
    }

    /// Checks a buffer that Arrow reads as numbers of this width: it must end with a whole number.
    fn numbers(&mut self, width: usize) -> Result<(), QueueError> {
        let (at, bytes) = self.next()?;
        if bytes.is_multiple_of(width) {
            return Ok(());
        }
        Err(refused(format!("expected numbers of bytes={width} at offset={at}, found bytes={bytes}")))
    }

    fn next(&mut self) -> Result<(usize, usize), QueueError> {
        let buffer = self
            .buffers
            .next()
            .ok_or_else(|| refused("expected more buffers for the columns of the schema"))?;
        place(buffer, self.body)
    }

    fn check(&mut self, dtype: &DataType) -> Result<(), QueueError> {
        let node =
            self.nodes.next().ok_or_else(|| refused("expected more arrays for the columns of the schema"))?;
        let length = node.length() as usize;
        match dtype {
            DataType::Null => Ok(()),
            DataType::Utf8 | DataType::Binary => self.offsets(4).and_then(|()| self.skip(1)),
            DataType::LargeUtf8 | DataType::LargeBinary => self.offsets(8).and_then(|()| self.skip(1)),
            DataType::Utf8View | DataType::BinaryView => {
                let count = self.variadic.next().and_then(|count| usize::try_from(count).ok());
                let count =
                    count.ok_or_else(|| refused("expected a count of buffers for each column of views"))?;
                self.offsets(VIEW_BYTES)?;
                self.skip(count)
            }
            DataType::List(field) | DataType::Map(field, _) => {
                self.offsets(4)?;
                self.check(field.data_type())
            }
            DataType::LargeList(field) => {
                self.offsets(8)?;
                self.check(field.data_type())
            }
            DataType::ListView(field) => {
                self.offsets(4)?;
                self.numbers(4)?;
                self.check(field.data_type())
            }
            DataType::LargeListView(field) => {
                self.offsets(8)?;
                self.numbers(8)?;
                self.check(field.data_type())
            }
            DataType::FixedSizeList(field, _) => {
                self.skip(1)?;
                self.check(field.data_type())
            }
            DataType::Struct(fields) => {
                self.skip(1)?;
                fields.iter().try_for_each(|field| self.check(field.data_type()))
            }
            DataType::RunEndEncoded(ends, values) => {
                self.check(ends.data_type())?;
                self.check(values.data_type())
            }
            DataType::Union(fields, mode) => {
                self.skip(usize::from(self.has_validity_of_unions))?;
                self.check_union(length, *mode)?;
                fields.iter().try_for_each(|(_, field)| self.check(field.data_type()))
            }
            DataType::Dictionary(indexes, _) => self.offsets(indexes.primitive_width().unwrap_or(1)),
            plain => self.offsets(plain.primitive_width().unwrap_or(1)),
        }
    }

    /// Checks validity bits, and after them offsets, views or values of this width.
    fn offsets(&mut self, width: usize) -> Result<(), QueueError> {
        self.skip(1)?;
        self.numbers(width)
    }

    /// Checks the buffers of a union. Arrow slices them without checking their lengths.
    fn check_union(&mut self, length: usize, mode: UnionMode) -> Result<(), QueueError> {
        let (_, ids) = self.next()?;
        if ids < length {
            return Err(refused(format!("expected ids for a union of length={length}, found ids={ids}")));
        }
        if mode == UnionMode::Dense {
            let (at, bytes) = self.next()?;
            // The decoder has aligned the body.
            if bytes / 4 < length || at % 4 != 0 {
                return Err(refused(format!(
                    "expected aligned offsets for a union of length={length}, found bytes={bytes} at offset={at}"
                )));
            }
        }
        Ok(())
    }
}
