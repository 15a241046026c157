//! The Arrow PyCapsule interface, which imports and exports rows and columns without a copy.

use std::ffi::{CStr, c_void};

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{Array, ArrayReader, ArrayRef, RecordBatch, RecordBatchIterator, make_array};
use arrow_schema::{Field, FieldRef, SchemaRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::of_arrow;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// Arrays of one type. Rows are arrays of structs.
pub(crate) struct Arrays {
    pub(crate) field: FieldRef,
    pub(crate) arrays: Vec<ArrayRef>,
}

/// Imports an object that has `__arrow_c_stream__` or `__arrow_c_array__`. `None` if it has neither.
pub(crate) fn import(object: &Bound<'_, PyAny>) -> PyResult<Option<Arrays>> {
    if object.hasattr("__arrow_c_stream__")? {
        return import_stream(&object.call_method0("__arrow_c_stream__")?).map(Some);
    }
    if object.hasattr("__arrow_c_array__")? {
        return import_array(&object.call_method0("__arrow_c_array__")?).map(Some);
    }
    Ok(None)
}

/// Imports the type of an object that has `__arrow_c_schema__`. `None` if it has no such method.
pub(crate) fn import_type(object: &Bound<'_, PyAny>) -> PyResult<Option<Field>> {
    if !object.hasattr("__arrow_c_schema__")? {
        return Ok(None);
    }
    let capsule = object.call_method0("__arrow_c_schema__")?;
    field_in(&capsule).map(Some)
}

#[expect(unsafe_code, reason = "the C Data Interface")]
fn field_in(capsule: &Bound<'_, PyAny>) -> PyResult<Field> {
    let schema = pointer(capsule, SCHEMA)?.cast::<FFI_ArrowSchema>();
    // SAFETY: a capsule of this name has a valid schema, and keeps it.
    Field::try_from(unsafe { &*schema }).map_err(of_arrow)
}

#[expect(unsafe_code, reason = "the C Data Interface")]
fn import_array(capsules: &Bound<'_, PyAny>) -> PyResult<Arrays> {
    let pair = capsules.cast::<PyTuple>()?;
    let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
    let field = field_in(&schema)?;
    let schema = pointer(&schema, SCHEMA)?.cast::<FFI_ArrowSchema>();
    let array = pointer(&array, ARRAY)?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names have a valid array and its schema. `from_raw` takes the
    // array and leaves a released one to the capsule.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array), &*schema) }.map_err(of_arrow)?;
    Ok(Arrays { field: field.into(), arrays: vec![make_array(data)] })
}

#[expect(unsafe_code, reason = "the C Stream Interface")]
fn import_stream(capsule: &Bound<'_, PyAny>) -> PyResult<Arrays> {
    let stream = pointer(capsule, STREAM)?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name has a valid stream. `from_raw` takes it and leaves a released one to the
    // capsule.
    let reader = unsafe { ArrayStreamReader::from_raw(stream) }.map_err(of_arrow)?;
    let field = reader.field().clone();
    let arrays = reader.collect::<Result<Vec<_>, _>>().map_err(of_arrow)?;
    Ok(Arrays { field, arrays })
}

/// The pointer of a capsule with this name.
#[expect(unsafe_code, reason = "a pointer of a capsule")]
fn pointer(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<*mut c_void> {
    // SAFETY: the object is alive, and the function checks that it is a capsule with this name.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
    match pointer.is_null() {
        true => Err(PyErr::fetch(capsule.py())),
        false => Ok(pointer),
    }
}

pub(crate) fn export_type<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(field).map_err(of_arrow)?;
    PyCapsule::new_with_value(py, schema, SCHEMA)
}

pub(crate) fn export_schema<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(of_arrow)?;
    PyCapsule::new_with_value(py, schema, SCHEMA)
}

pub(crate) type ArrayCapsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

pub(crate) fn export_array<'py>(
    py: Python<'py>,
    field: &Field,
    array: &dyn Array,
) -> PyResult<ArrayCapsules<'py>> {
    let schema = export_type(py, field)?;
    let array = FFI_ArrowArray::new(&array.to_data());
    Ok((schema, PyCapsule::new_with_value(py, array, ARRAY)?))
}

pub(crate) fn export_stream<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), SchemaRef::clone(schema));
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
}
