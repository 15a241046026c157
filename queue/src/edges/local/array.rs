//! Arrays by reference: a message contains the places of their buffers in regions, not their bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

use crate::QueueError;

/// A range of a region: the region's number, the offset and the length in bytes. An empty buffer is in no
/// region, and its number is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BufferPlace(pub(super) u64, pub(super) usize, pub(super) usize);

/// An array, as Arrow stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ArrayPlace {
    #[serde(rename = "n")]
    length: usize,
    #[serde(rename = "o", default, skip_serializing_if = "is_zero")]
    offset: usize,
    /// The validity bits: their buffer, and the index of the first bit.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    nulls: Option<(BufferPlace, usize)>,
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    buffers: Vec<BufferPlace>,
    #[serde(rename = "c", default, skip_serializing_if = "Vec::is_empty")]
    children: Vec<ArrayPlace>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The types of an array's children, in Arrow's order. `None` for types that are not sent by reference.
fn child_types(dtype: &DataType) -> Option<Vec<&DataType>> {
    match dtype {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => Some(vec![field.data_type()]),
        DataType::Struct(fields) => Some(fields.iter().map(|field| field.data_type()).collect()),
        DataType::Dictionary(_, values) => Some(vec![values]),
        DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Union(..)
        | DataType::RunEndEncoded(..) => None,
        _ => Some(Vec::new()),
    }
}

/// Returns the places of an array's buffers. Returns `None` if one of the buffers is in no region, or if
/// arrays of this type are not sent by reference.
pub(super) fn describe(
    data: &ArrayData,
    find: &mut impl FnMut(&Buffer) -> Option<BufferPlace>,
) -> Option<ArrayPlace> {
    let kinds = child_types(data.data_type())?;
    if kinds.len() != data.child_data().len() {
        return None;
    }
    let mut place =
        |buffer: &Buffer| if buffer.is_empty() { Some(BufferPlace(0, 0, 0)) } else { find(buffer) };
    let nulls = match data.nulls() {
        None => None,
        Some(nulls) => Some((place(nulls.buffer())?, nulls.offset())),
    };
    let buffers = data.buffers().iter().map(&mut place).collect::<Option<Vec<_>>>()?;
    let children = data.child_data().iter().map(|child| describe(child, find)).collect::<Option<Vec<_>>>()?;
    Some(ArrayPlace { length: data.len(), offset: data.offset(), nulls, buffers, children })
}

impl ArrayPlace {
    /// The number of bytes in the buffers of the array and its children, without validity bits.
    pub(super) fn bytes(&self) -> usize {
        let own = self.buffers.iter().map(|BufferPlace(_, _, length)| *length);
        own.chain(self.children.iter().map(Self::bytes)).fold(0, usize::saturating_add)
    }
}

fn bad(reason: &str) -> QueueError {
    QueueError::BadRequest { reason: format!("rows in shared memory: {reason}") }
}

fn buffer_at(
    BufferPlace(number, at, length): BufferPlace,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<Buffer, QueueError> {
    if length == 0 {
        return Ok(MutableBuffer::new(0).into());
    }
    let whole = region(number).ok_or_else(|| bad("a region that is not known"))?;
    let is_inside = at.checked_add(length).is_some_and(|end| end <= whole.len());
    if is_inside {
        Ok(whole.slice_with_length(at, length))
    } else {
        Err(bad("a place outside of its region"))
    }
}

fn rebuild_data(
    dtype: &DataType,
    place: &ArrayPlace,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<ArrayData, QueueError> {
    let kinds = child_types(dtype).filter(|kinds| kinds.len() == place.children.len());
    let kinds = kinds.ok_or_else(|| bad("an array without its children"))?;
    let children = kinds.iter().zip(&place.children).map(|(kind, child)| rebuild_data(kind, child, region));
    let nulls = match place.nulls {
        None => None,
        Some((bits, first)) => {
            let bits = buffer_at(bits, region)?;
            let is_long_enough =
                first.checked_add(place.length).is_some_and(|end| end.div_ceil(8) <= bits.len());
            if !is_long_enough {
                return Err(bad("too few validity bits"));
            }
            Some(NullBuffer::new(BooleanBuffer::new(bits, first, place.length)))
        }
    };
    let buffers = place.buffers.iter().map(|buffer| buffer_at(*buffer, region));
    let builder = ArrayDataBuilder::new(dtype.clone())
        .len(place.length)
        .offset(place.offset)
        .nulls(nulls)
        .buffers(buffers.collect::<Result<_, _>>()?)
        .child_data(children.collect::<Result<_, _>>()?)
        .align_buffers(true);
    // `build` checks everything on which readers rely.
    builder.build().map_err(|error| bad(&error.to_string()))
}

/// Builds the array at a place without copying. Reading the array is safe, whatever the place contains.
pub(super) fn rebuild(
    dtype: &DataType,
    place: &ArrayPlace,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<ArrayRef, QueueError> {
    // Arrow adds up numbers of the place before it checks them, and may panic.
    let rebuilt = catch_unwind(AssertUnwindSafe(|| rebuild_data(dtype, place, region)));
    Ok(make_array(rebuilt.map_err(|_| bad("an array that cannot be"))??))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow_array::types::{Float32Type, Int32Type, UInt8Type};
    use arrow_array::{
        Array, BooleanArray, DictionaryArray, FixedSizeListArray, Int64Array, ListArray, StringArray,
        StringViewArray, StructArray,
    };

    use super::*;

    /// Describes an array, with every allocation as a separate region, and rebuilds it.
    fn through(array: &ArrayRef) -> ArrayRef {
        let mut regions: HashMap<u64, Buffer> = HashMap::new();
        let place = describe(&array.to_data(), &mut |buffer| {
            let number = regions.len() as u64 + 1;
            regions.insert(number, buffer.clone());
            Some(BufferPlace(number, 0, buffer.len()))
        });
        let words = serde_json::to_string(&place.unwrap()).unwrap();
        let place: ArrayPlace = serde_json::from_str(&words).unwrap();
        rebuild(array.data_type(), &place, &|number| regions.get(&number).cloned()).unwrap()
    }

    #[test]
    fn arrays_and_slices_are_decoded_as_they_were_encoded() {
        let list = ListArray::from_iter_primitive::<Float32Type, _, _>(
            (0..9).map(|row| (row % 4 != 3).then(|| vec![Some(row as f32), None, Some(1.5)])),
        );
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
            (0..9).map(|row| Some([Some(row), None])),
            2,
        );
        let words = StringArray::from_iter((0..9).map(|row| (row != 5).then(|| format!("row {row}"))));
        let views = StringViewArray::from_iter_values((0..9).map(|row| format!("a rather long row {row}")));
        let flags = BooleanArray::from_iter((0..9).map(|row| Some(row % 2 == 0)));
        let kinds: DictionaryArray<UInt8Type> =
            ["a", "b", "a", "c", "a", "b", "b", "b", "a"].into_iter().collect();
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..9));
        let pair = StructArray::try_from(vec![("numbers", numbers), ("words", Arc::new(words.clone()) as _)]);
        let arrays: [ArrayRef; 7] = [
            Arc::new(list),
            Arc::new(fixed),
            Arc::new(words),
            Arc::new(views),
            Arc::new(flags),
            Arc::new(kinds),
            Arc::new(pair.unwrap()),
        ];
        for array in arrays {
            assert_eq!(through(&array).as_ref(), array.as_ref());
            let cut = array.slice(3, 4);
            assert_eq!(through(&cut).as_ref(), cut.as_ref(), "{}", array.data_type());
        }
    }

    #[test]
    fn impossible_places_are_errors() {
        let bytes = Buffer::from_vec(vec![1_i32, 5, 9, 2]);
        let region = |number: u64| (number == 1).then(|| bytes.clone());
        let place = |length, offset, buffer, nulls| ArrayPlace {
            length,
            offset,
            nulls,
            buffers: vec![buffer],
            children: Vec::new(),
        };
        let whole = BufferPlace(1, 0, 16);
        assert!(rebuild(&DataType::Int32, &place(4, 0, whole, None), &region).is_ok());
        let wrong = [
            place(5, 0, whole, None),
            place(4, 1, whole, None),
            place(4, usize::MAX, whole, None),
            place(4, 0, BufferPlace(2, 0, 16), None),
            place(4, 0, BufferPlace(1, 8, 16), None),
            place(4, 0, BufferPlace(1, usize::MAX, 16), None),
            place(4, 0, whole, Some((BufferPlace(1, 0, 16), usize::MAX))),
            place(4, 0, whole, Some((BufferPlace(1, 0, 1), 5))),
        ];
        for place in wrong {
            assert!(rebuild(&DataType::Int32, &place, &region).is_err(), "{place:?}");
            assert!(rebuild(&DataType::Utf8, &place, &region).is_err(), "{place:?}");
        }
    }
}
