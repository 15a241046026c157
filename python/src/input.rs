//! Makes columns from values of Python.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, OffsetSizeTrait, make_array};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, GenericListArray, StringArray};
use arrow_buffer::{BooleanBuffer, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::Number;
use crate::dtype::items;
use crate::errors::{bad, of_arrow};
use crate::releases::Owner;

/// Reads an array of NumPy. Its rows are numbers, or lists of fixed size if it has more dimensions.
pub(crate) fn numbers(array: &Bound<'_, PyAny>, copy: bool) -> PyResult<ArrayRef> {
    let interface = array.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>()?;
    let entry = |name: &str| -> PyResult<Bound<'_, PyAny>> {
        interface.get_item(name)?.ok_or_else(|| bad(format!("expected an array interface with {name}")))
    };
    let shape: Vec<usize> = entry("shape")?.extract()?;
    let typestr: String = entry("typestr")?.extract()?;
    let (address, _): (usize, bool) = entry("data")?.extract()?;
    let strides = interface.get_item("strides")?;
    if strides.is_some_and(|strides| !strides.is_none()) {
        return Err(bad("expected an array in C order without gaps"));
    }
    let Some((&rows, inner)) = shape.split_first() else {
        return Err(bad("expected an array with one row or more, found a single value"));
    };
    let (number, dtype) = Number::named(&typestr).ok_or_else(|| {
        bad(format!("expected booleans, integers or floating-point numbers, found typestr={typestr:?}"))
    })?;
    let count = shape.iter().product::<usize>();
    let memory = memory(array, address, count * number.bytes, copy);
    let values = match dtype {
        DataType::Boolean => {
            let bytes = memory.as_slice();
            let bits =
                BooleanBuffer::collect_bool(count, |index| bytes.get(index).is_some_and(|byte| *byte != 0));
            Arc::new(BooleanArray::new(bits, None)) as ArrayRef
        }
        dtype => {
            let data = ArrayData::builder(dtype).len(count).add_buffer(memory).align_buffers(true);
            make_array(data.build().map_err(of_arrow)?)
        }
    };
    nested(values, rows, inner)
}

/// Wraps numbers in one list of fixed size for each further dimension.
fn nested(values: ArrayRef, rows: usize, inner: &[usize]) -> PyResult<ArrayRef> {
    let mut array = values;
    for (depth, size) in inner.iter().enumerate().rev() {
        let length = i32::try_from(*size).ok().filter(|length| *length > 0);
        let length = length.ok_or_else(|| bad(format!("expected dimensions above 0, found {size}")))?;
        let lists = rows * inner[..depth].iter().product::<usize>();
        let field = items(array.data_type().clone());
        let wrapped = FixedSizeListArray::try_new_with_length(field, length, array, None, lists);
        array = Arc::new(wrapped.map_err(of_arrow)?);
    }
    Ok(array)
}

/// The bytes of an array: the memory of the object itself, or a copy of it.
#[expect(unsafe_code, reason = "NumPy gives the address of an array's memory")]
fn memory(array: &Bound<'_, PyAny>, address: usize, bytes: usize, copy: bool) -> Buffer {
    let Some(pointer) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address)) else {
        return Buffer::from_vec(Vec::<u8>::new());
    };
    if bytes == 0 {
        return Buffer::from_vec(Vec::<u8>::new());
    }
    if copy {
        // SAFETY: the array interface promises `bytes` bytes at this address while the object is alive, and
        // the GIL is held.
        let slice = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), bytes) };
        return Buffer::from_slice_ref(slice);
    }
    let owner = Arc::new(Owner::new(array));
    // SAFETY: as above; the buffer keeps the object alive. A caller that may change the array asks for a
    // copy.
    unsafe { Buffer::from_custom_allocation(pointer, bytes, owner) }
}

/// Lists of values between offsets, which are an array of `int32` (`list`) or `int64` (`large_list`).
pub(crate) fn lists(field: &FieldRef, values: &ArrayRef, offsets: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let offsets = numbers(offsets, true)?;
    let item = Arc::new(field.as_ref().clone().with_name("item").with_nullable(true));
    if let Some(offsets) = offsets.as_primitive_opt::<Int32Type>() {
        return listed(item, values, offsets.values().clone());
    }
    match offsets.as_primitive_opt::<Int64Type>() {
        Some(offsets) => listed(item, values, offsets.values().clone()),
        None => Err(bad(format!("expected offsets of int32 or int64, found {}", offsets.data_type()))),
    }
}

fn listed<O: OffsetSizeTrait>(
    item: FieldRef,
    values: &ArrayRef,
    offsets: ScalarBuffer<O>,
) -> PyResult<ArrayRef> {
    let first = offsets.first().is_some_and(|first| *first >= O::zero());
    let rises = offsets.iter().zip(offsets.iter().skip(1)).all(|(from, to)| from <= to);
    let inside = offsets.last().is_some_and(|last| last.as_usize() <= values.len());
    if !(first && rises && inside) {
        let reason = format!("expected offsets that rise from 0 or more to at most {}", values.len());
        return Err(bad(reason));
    }
    let lists = GenericListArray::try_new(item, OffsetBuffer::new(offsets), Arc::clone(values), None);
    Ok(Arc::new(lists.map_err(of_arrow)?))
}

pub(crate) fn strings(words: Vec<Option<String>>) -> ArrayRef {
    Arc::new(StringArray::from(words))
}

pub(crate) fn binaries(words: Vec<Option<Vec<u8>>>) -> ArrayRef {
    Arc::new(words.iter().map(Option::as_deref).collect::<BinaryArray>())
}
