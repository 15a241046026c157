//! Types of columns by name, such as `int64`, `list<uint32>` or `float32[16]`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, FieldRef};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rolldock_queue::{ColumnSpec, ExtensionSpec, SCALAR_TYPES};

use crate::errors::bad;
use crate::interchange;

/// The types whose offsets have 64 bits, beside the types of [`SCALAR_TYPES`].
static LARGE_TYPES: [(&str, DataType); 2] =
    [("large_string", DataType::LargeUtf8), ("large_binary", DataType::LargeBinary)];

/// A type that Arrow and NumPy lack. A column of this type has the bits as `uint16`, with an extension type.
const BFLOAT16: &str = "bfloat16";
const BFLOAT16_EXTENSION: &str = "rolldock.bfloat16";

/// The maximum nesting of a type. The queue has the same maximum.
const DEPTH_MAX: usize = 32;

/// The type of a column.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Dtype {
    field: FieldRef,
}

impl Dtype {
    /// The declaration of a column of this type.
    pub(crate) fn column(&self, name: String) -> ColumnSpec {
        let extension = extension(&self.field).map(|extension| ExtensionSpec {
            name: extension.to_owned(),
            metadata: self.field.metadata().get(EXTENSION_TYPE_METADATA_KEY).cloned().unwrap_or_default(),
        });
        ColumnSpec { name, dtype: self.field.data_type().clone(), extension }
    }
}

#[pymethods]
impl Dtype {
    /// The type that a name or an object with `__arrow_c_schema__` describes.
    #[new]
    fn new(dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(field) = interchange::import_type(dtype)? {
            return Ok(Self { field: field.into() });
        }
        let name: String = dtype.extract()?;
        let field = parse(&name, DEPTH_MAX).ok_or_else(|| {
            bad(format!("expected a type such as int64, list<uint32>, float32[16] or string, found {name:?}"))
        })?;
        Ok(Self { field: field.into() })
    }

    fn __repr__(&self) -> String {
        format!("Dtype('{}')", name_of(&self.field))
    }

    fn __str__(&self) -> String {
        name_of(&self.field)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        interchange::export_type(py, &self.field)
    }
}

/// The field of a value of a type, with the name that Arrow gives to the items of lists.
fn item(dtype: DataType) -> Field {
    Field::new("item", dtype, true)
}

/// The items of lists.
pub(crate) fn items(dtype: DataType) -> FieldRef {
    Arc::new(item(dtype))
}

/// The types that have a name of one word, with their names.
fn named() -> impl Iterator<Item = &'static (&'static str, DataType)> {
    SCALAR_TYPES.iter().chain(&LARGE_TYPES)
}

fn parse(name: &str, depth: usize) -> Option<Field> {
    let (name, depth) = (name.trim(), depth.checked_sub(1)?);
    if name == BFLOAT16 {
        return Some(extended(item(DataType::UInt16), BFLOAT16_EXTENSION));
    }
    if let Some((_, dtype)) = named().find(|(known, _)| *known == name) {
        return Some(item(dtype.clone()));
    }
    let inside = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inside("list<") {
        return Some(item(DataType::List(parse(inner, depth)?.into())));
    }
    if let Some(inner) = inside("large_list<") {
        return Some(item(DataType::LargeList(parse(inner, depth)?.into())));
    }
    // The sizes follow the last angle bracket, if there is one.
    let open = name.rfind('>').unwrap_or_default();
    let open = open + name.get(open..)?.find('[')?;
    let (inner, sizes) = name.split_at(open);
    let sizes = sizes.strip_prefix('[')?.strip_suffix(']')?.split("][");
    let sizes = sizes.map(|size| size.parse::<i32>().ok().filter(|size| *size > 0));
    let sizes = sizes.collect::<Option<Vec<i32>>>().filter(|sizes| sizes.len() <= depth)?;
    let inner = parse(inner, depth - sizes.len())?;
    // The last size is the innermost: `float32[2][3]` has the shape (2, 3).
    let wrap = |field: Field, size| item(DataType::FixedSizeList(field.into(), size));
    Some(sizes.into_iter().rev().fold(inner, wrap))
}

/// The name of a type, or Arrow's text for a type without a name. [`Dtype`] makes the type from its name.
pub(crate) fn name_of(field: &Field) -> String {
    let dtype = field.data_type();
    if extension(field) == Some(BFLOAT16_EXTENSION) {
        return BFLOAT16.to_owned();
    }
    if let Some((name, _)) = named().find(|(_, known)| known == dtype) {
        return (*name).to_owned();
    }
    match dtype {
        DataType::List(items) => format!("list<{}>", name_of(items)),
        DataType::LargeList(items) => format!("large_list<{}>", name_of(items)),
        DataType::FixedSizeList(..) => {
            let (mut inner, mut sizes) = (field, String::new());
            while let DataType::FixedSizeList(items, size) = inner.data_type() {
                sizes.push_str(&format!("[{size}]"));
                inner = items;
            }
            format!("{}{sizes}", name_of(inner))
        }
        other => other.to_string(),
    }
}

/// The name of the extension type of a field.
pub(crate) fn extension(field: &Field) -> Option<&str> {
    field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str)
}

/// Gives a field an extension type.
pub(crate) fn extended(field: Field, name: &str) -> Field {
    let name = (EXTENSION_TYPE_NAME_KEY.to_owned(), name.to_owned());
    field.with_metadata(HashMap::from([name]))
}
