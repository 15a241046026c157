//! A column: an Arrow array with its field. Its parts are buffers and further columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, GenericListArray, OffsetSizeTrait, StructArray, UInt64Array, make_array};
use arrow_buffer::{Buffer as Memory, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use arrow_select::concat::concat;
use arrow_select::take::take;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyString};

use crate::buffer::{BOOLEAN, Buffer, Number};
use crate::dtype;
use crate::errors::{bad, of_arrow};
use crate::input;
use crate::interchange::{self, ArrayCapsules};

/// Values of one type, one for each row.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Column {
    pub(crate) field: FieldRef,
    pub(crate) array: ArrayRef,
}

impl Column {
    pub(crate) fn new(array: ArrayRef) -> Self {
        let field = Field::new("", array.data_type().clone(), true).into();
        Self { field, array }
    }

    /// The offsets of the lists, the size of an offset in bytes, and the items.
    fn lists(&self) -> PyResult<(Memory, usize, Self)> {
        let of = |field: &FieldRef, values: &ArrayRef| Self { field: field.clone(), array: values.clone() };
        let array = without_hidden_items(&self.array)?;
        match array.data_type() {
            DataType::List(field) => {
                let lists = array.as_list::<i32>();
                Ok((lists.offsets().inner().inner().clone(), 4, of(field, lists.values())))
            }
            DataType::LargeList(field) => {
                let lists = array.as_list::<i64>();
                Ok((lists.offsets().inner().inner().clone(), 8, of(field, lists.values())))
            }
            other => Err(no_form(other, "lists")),
        }
    }

    fn strings<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let words = |word: Option<&str>| text(py, word);
        Ok(match self.array.data_type() {
            DataType::Utf8 => self.array.as_string::<i32>().iter().map(words).collect(),
            DataType::LargeUtf8 => self.array.as_string::<i64>().iter().map(words).collect(),
            DataType::Utf8View => self.array.as_string_view().iter().map(words).collect(),
            other => return Err(no_form(other, "strings")),
        })
    }

    fn binaries<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let words = |word: Option<&[u8]>| match word {
            Some(word) => PyBytes::new(py, word).into_any(),
            None => py.None().into_bound(py),
        };
        Ok(match self.array.data_type() {
            DataType::Binary => self.array.as_binary::<i32>().iter().map(words).collect(),
            DataType::LargeBinary => self.array.as_binary::<i64>().iter().map(words).collect(),
            DataType::BinaryView => self.array.as_binary_view().iter().map(words).collect(),
            DataType::FixedSizeBinary(_) => self.array.as_fixed_size_binary().iter().map(words).collect(),
            other => return Err(no_form(other, "bytes")),
        })
    }
}

/// Arrow allows a null list to have items, which have no meaning. Returns lists of which no null one has items. Only
/// columns with such lists are copied.
fn without_hidden_items(array: &ArrayRef) -> PyResult<ArrayRef> {
    let hides_items = match array.data_type() {
        DataType::List(_) => hides_items(array.as_list::<i32>()),
        DataType::LargeList(_) => hides_items(array.as_list::<i64>()),
        _ => false,
    };
    if !hides_items {
        return Ok(Arc::clone(array));
    }
    let places = UInt64Array::from_iter_values(0..array.len() as u64);
    take(array, &places, None).map_err(of_arrow)
}

fn hides_items<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> bool {
    let Some(nulls) = lists.nulls().filter(|nulls| nulls.null_count() > 0) else { return false };
    nulls.iter().zip(lists.offsets().lengths()).any(|(is_valid, length)| !is_valid && length > 0)
}

/// Returns the field of a struct with nulls where the struct is null.
fn field_of(structs: &StructArray, values: &ArrayRef) -> PyResult<ArrayRef> {
    if structs.null_count() == 0 {
        return Ok(Arc::clone(values));
    }
    let valid = NullBuffer::union(structs.nulls(), values.logical_nulls().as_ref());
    let data = values.to_data().into_builder().nulls(valid).build().map_err(of_arrow)?;
    Ok(make_array(data))
}

fn text<'py>(py: Python<'py>, word: Option<&str>) -> Bound<'py, PyAny> {
    match word {
        Some(word) => PyString::new(py, word).into_any(),
        None => py.None().into_bound(py),
    }
}

fn no_form(found: &DataType, expected: &str) -> PyErr {
    PyTypeError::new_err(format!("expected a column of {expected}, found dtype={found}"))
}

/// Gives the innermost values an extension type.
fn extended(field: &Field, data: ArrayData, name: &str) -> Result<(Field, ArrayData), ArrowError> {
    let DataType::FixedSizeList(items, size) = field.data_type() else {
        return Ok((dtype::extended(field.clone(), name), data));
    };
    let child = data.child_data().first().cloned();
    let child = child.ok_or_else(|| ArrowError::SchemaError("expected the items of lists".to_owned()))?;
    let (items, child) = extended(items, child, name)?;
    let dtype = DataType::FixedSizeList(items.into(), *size);
    let data = data.into_builder().data_type(dtype.clone()).child_data(vec![child]).build()?;
    Ok((field.clone().with_data_type(dtype), data))
}

#[pymethods]
impl Column {
    /// Numbers in C order: an array of NumPy, or an object with its `__array_interface__`. With more than one
    /// dimension each row is a list of fixed size. `copy` is needed if the array may change while rows are
    /// stored.
    #[staticmethod]
    fn from_numpy(array: &Bound<'_, PyAny>, copy: bool) -> PyResult<Self> {
        input::numbers(array, copy).map(Self::new)
    }

    /// Lists of `values`: row `i` has the values from `offsets[i]` to `offsets[i + 1]`.
    #[staticmethod]
    fn from_lists(values: &Self, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        input::lists(&values.field, &values.array, offsets).map(Self::new)
    }

    #[staticmethod]
    fn from_strings(words: Vec<Option<String>>) -> Self {
        Self::new(input::strings(words))
    }

    #[staticmethod]
    fn from_binaries(words: Vec<Option<Vec<u8>>>) -> Self {
        Self::new(input::binaries(words))
    }

    /// Imports an array or a stream of arrays through the Arrow PyCapsule interface. `None` if the object
    /// offers neither. The arrays of a stream are joined. If there are several, this copies them.
    #[staticmethod]
    fn from_arrow(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Some(imported) = interchange::import(object)? else { return Ok(None) };
        let arrays: Vec<&dyn Array> = imported.arrays.iter().map(AsRef::as_ref).collect();
        let array = match imported.arrays.as_slice() {
            [array] => array.clone(),
            [] => arrow_array::new_empty_array(imported.field.data_type()),
            _ => concat(&arrays).map_err(of_arrow)?,
        };
        Ok(Some(Self { field: imported.field, array }))
    }

    /// Returns the column with nulls in the rows for which `nulls`, an array of booleans, is true.
    fn with_nulls(&self, nulls: &Bound<'_, PyAny>) -> PyResult<Self> {
        let nulls = input::numbers(nulls, true)?;
        let nulls = nulls.as_boolean_opt().ok_or_else(|| bad("expected an array of booleans"))?;
        if nulls.len() != self.array.len() {
            let reason = format!("expected a mask of rows={}, found {}", self.array.len(), nulls.len());
            return Err(bad(reason));
        }
        let valid = NullBuffer::new(!nulls.values());
        let data = self.array.to_data().into_builder().nulls(Some(valid)).build().map_err(of_arrow)?;
        Ok(Self { field: Arc::clone(&self.field), array: make_array(data) })
    }

    /// Returns the column with an Arrow extension type for its innermost values.
    fn with_extension(&self, name: &str) -> PyResult<Self> {
        let (field, data) = extended(&self.field, self.array.to_data(), name).map_err(of_arrow)?;
        Ok(Self { field: field.into(), array: make_array(data) })
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// The Arrow type, as text.
    #[getter]
    fn dtype(&self) -> String {
        dtype::name_of(&self.field)
    }

    /// The name of the Arrow extension type of the values, if there is one. The values of lists of fixed size
    /// are their innermost items.
    #[getter]
    fn extension(&self) -> Option<&str> {
        let mut field = self.field.as_ref();
        while let DataType::FixedSizeList(items, _) = field.data_type() {
            field = items;
        }
        dtype::extension(field)
    }

    /// The kind of the values: `number`, `boolean`, `string`, `binary`, `list`, `fixed_list`, `struct` or
    /// `other`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.array.data_type() {
            DataType::Boolean => "boolean",
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string",
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => "binary",
            DataType::List(_) | DataType::LargeList(_) => "list",
            DataType::FixedSizeList(..) => "fixed_list",
            DataType::Struct(_) => "struct",
            dtype if Number::of(dtype).is_some() => "number",
            _ => "other",
        }
    }

    /// The numbers of the rows, or of their lists of fixed size, without a copy. Booleans are unpacked from
    /// bits to bytes, which copies them.
    fn values(&self) -> PyResult<Buffer> {
        let mut shape = vec![self.array.len()];
        let mut array = &self.array;
        while let DataType::FixedSizeList(_, size) = array.data_type() {
            shape.push(usize::try_from(*size).unwrap_or_default());
            array = array.as_fixed_size_list().values();
        }
        if let Some(booleans) = array.as_boolean_opt() {
            let bytes: Vec<u8> = booleans.values().iter().map(u8::from).collect();
            return Buffer::new(bytes.into(), BOOLEAN, shape);
        }
        let number = Number::of(array.data_type()).ok_or_else(|| no_form(array.data_type(), "numbers"))?;
        let data = array.to_data();
        let memory = data.buffers().first().ok_or_else(|| no_form(array.data_type(), "numbers"))?;
        let (from, length) = (data.offset() * number.bytes, data.len() * number.bytes);
        Buffer::new(memory.slice_with_length(from, length), number, shape)
    }

    /// An array that is true for each null: one value for each row, or one for each of the [`values`](Self::values)
    /// if items of lists of fixed size are null. `None` if no value is null.
    fn nulls(&self) -> PyResult<Option<Buffer>> {
        let mut array = &self.array;
        let (mut valid, mut shape) = (array.logical_nulls(), vec![array.len()]);
        let (mut of_items, mut shape_of_items, mut has_null_items) = (valid.clone(), shape.clone(), false);
        while let DataType::FixedSizeList(_, size) = array.data_type() {
            let size = usize::try_from(*size).unwrap_or_default();
            array = array.as_fixed_size_list().values();
            let items = array.logical_nulls();
            has_null_items |= array.logical_null_count() > 0;
            of_items = NullBuffer::union(of_items.map(|valid| valid.expand(size)).as_ref(), items.as_ref());
            shape_of_items.push(size);
        }
        if has_null_items {
            (valid, shape) = (of_items, shape_of_items);
        }
        let valid = valid.filter(|valid| valid.null_count() > 0);
        valid.map(|valid| Buffer::of_bits(valid.iter().map(|is_valid| !is_valid), shape)).transpose()
    }

    /// The offsets of the lists, without a copy. There is one offset more than rows. The first need not be 0.
    fn offsets(&self) -> PyResult<Buffer> {
        let (memory, bytes, _) = self.lists()?;
        let dtype = if bytes == 4 { DataType::Int32 } else { DataType::Int64 };
        let number = Number::of(&dtype).ok_or_else(|| no_form(&dtype, "numbers"))?;
        let rows = memory.len() / bytes;
        Buffer::new(memory, number, vec![rows])
    }

    /// All values of lists.
    fn items(&self) -> PyResult<Self> {
        self.lists().map(|(_, _, items)| items)
    }

    /// The fields of structs, with their names. The fields of a null struct are null.
    fn fields(&self) -> PyResult<Vec<(String, Self)>> {
        let structs = self.array.as_struct_opt().ok_or_else(|| no_form(self.array.data_type(), "structs"))?;
        let pairs = structs.fields().iter().zip(structs.columns());
        let column = |(field, array): (&FieldRef, &ArrayRef)| {
            Ok((field.name().clone(), Self { field: field.clone(), array: field_of(structs, array)? }))
        };
        pairs.map(column).collect()
    }

    /// The strings or bytes as a list, with `None` for nulls.
    fn words<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let words = if self.kind() == "string" { self.strings(py)? } else { self.binaries(py)? };
        PyList::new(py, words)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        interchange::export_type(py, &self.field)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<ArrayCapsules<'py>> {
        // Values are never cast, so a consumer that asks for another type casts them itself.
        let _ = requested_schema;
        interchange::export_array(py, &self.field, self.array.as_ref())
    }
}
