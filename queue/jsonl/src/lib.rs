//! Writes Arrow record batches as lines of JSON, one object per row.
//!
//! `arrow-json` writes the same lines. It also reads JSON, so it needs the casts of `arrow-cast` and the
//! comparisons of `arrow-ord`, which take longer to compile than most of our own crates. Here is only the writer.
//! The tests compare each type of column with `arrow-json`.
//!
//! | Arrow | JSON |
//! |---|---|
//! | booleans, integers, text | booleans, numbers, strings |
//! | floating-point numbers | numbers; `null` if they are infinite or NaN |
//! | decimals | numbers with all their digits |
//! | bytes | strings of hexadecimal digits |
//! | dates, times, timestamps, durations | strings in the form of ISO 8601 |
//! | intervals | objects with the members `months`, `days`, `milliseconds` or `nanoseconds` |
//! | lists, structs | arrays, objects |
//! | maps | objects; arrays of objects with a key and a value if the keys are not text |
//! | dictionaries, run-end encoded values, unions | like their values |
//!
//! A timestamp with a time zone that is not an offset, such as `Europe/Paris`, is written in UTC. A date or time that
//! is outside the range of chrono is written as its number.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray};
//! use rolldock_jsonl::{Nulls, write_lines};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let uids: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
//! let rewards: ArrayRef = Arc::new(Float32Array::from(vec![Some(1.0), None]));
//! let batch = RecordBatch::try_from_iter([("uid", uids), ("reward", rewards)])?;
//! let mut lines = Vec::new();
//! write_lines(&batch, Nulls::Omitted, &mut lines);
//! assert_eq!(String::from_utf8(lines)?, "{\"uid\":\"a\",\"reward\":1.0}\n{\"uid\":\"b\"}\n");
//! # Ok(())
//! # }
//! ```

mod moments;

use std::collections::BTreeMap;
use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, RunEndIndexType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayAccessor, ArrayRef, ListLikeArray, MapArray, RecordBatch, UnionArray};
use arrow_buffer::{ArrowNativeType, NullBuffer};
use arrow_schema::{DataType, FieldRef, Fields};
use serde::Serialize;

/// How an object shows a column that is null in its row. A null in a list is always written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    /// The object has no such member.
    Omitted,
    /// The member is `null`.
    Written,
}

/// Appends one line for each row of `batch` to `lines`. Every line ends with a line feed.
pub fn write_lines(batch: &RecordBatch, nulls: Nulls, lines: &mut Vec<u8>) {
    let row = Members::new(batch.schema_ref().fields(), batch.columns(), nulls);
    for number in 0..batch.num_rows() {
        row.write(number, lines);
        lines.push(b'\n');
    }
}

/// Writes the value at a place of an array, which is not null.
type WriteValue<'a> = Box<dyn Fn(usize, &mut Vec<u8>) + 'a>;

/// A column, or what a list, struct or map consists of.
struct Values<'a> {
    nulls: Option<NullBuffer>,
    write_value: WriteValue<'a>,
}

impl<'a> Values<'a> {
    fn new(array: &'a dyn Array, nulls: Nulls) -> Self {
        Self { nulls: array.logical_nulls(), write_value: writer(array, nulls) }
    }

    fn is_null(&self, place: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(place))
    }

    fn write(&self, place: usize, out: &mut Vec<u8>) {
        if self.is_null(place) {
            out.extend_from_slice(b"null");
        } else {
            (self.write_value)(place, out);
        }
    }
}

/// The members of a JSON object: the columns of a batch or the fields of a struct.
struct Members<'a> {
    /// The names, as JSON with a colon, and the values.
    members: Vec<(Vec<u8>, Values<'a>)>,
    nulls: Nulls,
}

impl<'a> Members<'a> {
    fn new(fields: &'a Fields, columns: &'a [ArrayRef], nulls: Nulls) -> Self {
        let member = |(field, column): (&'a FieldRef, &'a ArrayRef)| {
            let mut name = Vec::new();
            write_json(field.name(), &mut name);
            name.push(b':');
            (name, Values::new(column, nulls))
        };
        Self { members: fields.iter().zip(columns).map(member).collect(), nulls }
    }

    fn write(&self, place: usize, out: &mut Vec<u8>) {
        let shown =
            self.members.iter().filter(|(_, values)| self.nulls == Nulls::Written || !values.is_null(place));
        write_separated(b"{}", shown, out, |(name, values), out| {
            out.extend_from_slice(name);
            values.write(place, out);
        });
    }
}

/// Writes `items` with commas between them, inside a pair of brackets.
fn write_separated<T>(
    brackets: &[u8; 2],
    items: impl Iterator<Item = T>,
    out: &mut Vec<u8>,
    write: impl Fn(T, &mut Vec<u8>),
) {
    out.push(brackets[0]);
    for (number, item) in items.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(brackets[1]);
}

/// Writes a scalar. An infinite number or NaN is `null`.
fn write_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    // Only a map with other keys than text, or a failing writer, is an error. A vector does not fail.
    let _ = serde_json::to_writer(out, value);
}

/// How the values of an array are written.
fn writer<'a>(array: &'a dyn Array, nulls: Nulls) -> WriteValue<'a> {
    match array.data_type() {
        DataType::Null => Box::new(|_, out| out.extend_from_slice(b"null")),
        DataType::Boolean => {
            let array = array.as_boolean();
            Box::new(move |place, out| write_json(&array.value(place), out))
        }
        DataType::Int8 => numbers::<Int8Type>(array),
        DataType::Int16 => numbers::<Int16Type>(array),
        DataType::Int32 => numbers::<Int32Type>(array),
        DataType::Int64 => numbers::<Int64Type>(array),
        DataType::UInt8 => numbers::<UInt8Type>(array),
        DataType::UInt16 => numbers::<UInt16Type>(array),
        DataType::UInt32 => numbers::<UInt32Type>(array),
        DataType::UInt64 => numbers::<UInt64Type>(array),
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>().values();
            Box::new(move |place, out| write_json(&values[place].to_f32(), out))
        }
        DataType::Float32 => numbers::<Float32Type>(array),
        DataType::Float64 => numbers::<Float64Type>(array),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(array),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(array),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(array),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(array),
        DataType::Utf8 => texts(array.as_string::<i32>()),
        DataType::LargeUtf8 => texts(array.as_string::<i64>()),
        DataType::Utf8View => texts(array.as_string_view()),
        DataType::Binary => bytes(array.as_binary::<i32>()),
        DataType::LargeBinary => bytes(array.as_binary::<i64>()),
        DataType::BinaryView => bytes(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary()),
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Interval(_) => moments::writer(array),
        DataType::List(_) => lists(array.as_list::<i32>(), nulls),
        DataType::LargeList(_) => lists(array.as_list::<i64>(), nulls),
        DataType::ListView(_) => lists(array.as_list_view::<i32>(), nulls),
        DataType::LargeListView(_) => lists(array.as_list_view::<i64>(), nulls),
        DataType::FixedSizeList(..) => lists(array.as_fixed_size_list(), nulls),
        DataType::Struct(fields) => {
            let members = Members::new(fields, array.as_struct().columns(), nulls);
            Box::new(move |place, out| members.write(place, out))
        }
        DataType::Map(..) => maps(array.as_map(), nulls),
        DataType::Union(..) => unions(array.as_union(), nulls),
        DataType::Dictionary(..) => dictionaries(array, nulls),
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(array, nulls),
            DataType::Int32 => runs::<Int32Type>(array, nulls),
            _ => runs::<Int64Type>(array, nulls),
        },
    }
}

fn numbers<T: ArrowPrimitiveType<Native: Serialize>>(array: &dyn Array) -> WriteValue<'_> {
    let values = array.as_primitive::<T>().values();
    Box::new(move |place, out| write_json(&values[place], out))
}

fn decimals<T: DecimalType>(array: &dyn Array) -> WriteValue<'_> {
    let array = array.as_primitive::<T>();
    Box::new(move |place, out| out.extend_from_slice(array.value_as_string(place).as_bytes()))
}

fn texts<'a>(array: impl ArrayAccessor<Item = &'a str> + 'a) -> WriteValue<'a> {
    Box::new(move |place, out| write_json(array.value(place), out))
}

fn bytes<'a>(array: impl ArrayAccessor<Item = &'a [u8]> + 'a) -> WriteValue<'a> {
    Box::new(move |place, out| {
        out.push(b'"');
        for byte in array.value(place) {
            // A vector does not fail.
            let _ = write!(out, "{byte:02x}");
        }
        out.push(b'"');
    })
}

fn lists<L: ListLikeArray>(array: &L, nulls: Nulls) -> WriteValue<'_> {
    let items = Values::new(array.values(), nulls);
    Box::new(move |place, out| {
        write_separated(b"[]", array.element_range(place), out, |item, out| items.write(item, out));
    })
}

fn maps(array: &MapArray, nulls: Nulls) -> WriteValue<'_> {
    let entries_of = |place: usize| array.offsets()[place].as_usize()..array.offsets()[place + 1].as_usize();
    let (keys, values) = (array.keys(), Values::new(array.values(), nulls));
    let are_text = matches!(keys.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if !are_text || keys.null_count() > 0 {
        let entries = Members::new(array.entries().fields(), array.entries().columns(), nulls);
        return Box::new(move |place, out| {
            write_separated(b"[]", entries_of(place), out, |entry, out| entries.write(entry, out));
        });
    }
    let keys = Values::new(keys, nulls);
    Box::new(move |place, out| {
        let shown = entries_of(place).filter(|entry| nulls == Nulls::Written || !values.is_null(*entry));
        write_separated(b"{}", shown, out, |entry, out| {
            keys.write(entry, out);
            out.push(b':');
            values.write(entry, out);
        });
    })
}

fn unions(array: &UnionArray, nulls: Nulls) -> WriteValue<'_> {
    let DataType::Union(fields, _) = array.data_type() else {
        return Box::new(|_, out| out.extend_from_slice(b"null"));
    };
    let children: BTreeMap<i8, Values<'_>> =
        fields.iter().map(|(id, _)| (id, Values::new(array.child(id), nulls))).collect();
    Box::new(move |place, out| children[&array.type_id(place)].write(array.value_offset(place), out))
}

fn dictionaries(array: &dyn Array, nulls: Nulls) -> WriteValue<'_> {
    let array = array.as_any_dictionary();
    let values = Values::new(array.values(), nulls);
    // With no values, all rows are null, and no key is looked up.
    let keys = if array.values().is_empty() { Vec::new() } else { array.normalized_keys() };
    Box::new(move |place, out| values.write(keys[place], out))
}

fn runs<E: RunEndIndexType>(array: &dyn Array, nulls: Nulls) -> WriteValue<'_> {
    let array = array.as_run::<E>();
    let values = Values::new(array.values(), nulls);
    Box::new(move |place, out| values.write(array.get_physical_index(place), out))
}

#[cfg(test)]
mod tests;
