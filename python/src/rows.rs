//! Rows: record batches of one schema.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray, UInt32Array};
use arrow_schema::{Field, Schema, SchemaRef};
use arrow_select::concat::concat;
use arrow_select::take::take_record_batch;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rolldock_queue::joined;

use crate::column::Column;
use crate::errors::{bad, of_arrow, raised};
use crate::interchange::{self, ArrayCapsules, Arrays};

/// Rows in one or several pieces. A piece is a run of rows that are stored together.
#[pyclass(frozen, module = "rolldock._rolldock")]
pub(crate) struct Rows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Rows {
    /// Makes rows of batches. If their columns differ, the rows have the columns of all batches, with nulls
    /// where a batch lacks a column.
    pub(crate) fn new(py: Python<'_>, batches: Vec<RecordBatch>) -> PyResult<Self> {
        let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        if batches.iter().all(|batch| *batch.schema_ref() == schema) {
            return Ok(Self { schema, batches });
        }
        let batch = raised(py, joined(&batches))?;
        Ok(Self { schema: batch.schema(), batches: vec![batch] })
    }

    pub(crate) fn batches(&self) -> Vec<RecordBatch> {
        self.batches.clone()
    }

    /// Returns all rows in one batch. If there are several batches, this copies them.
    pub(crate) fn joined(&self, py: Python<'_>) -> PyResult<RecordBatch> {
        match self.batches.as_slice() {
            [] => Ok(RecordBatch::new_empty(self.schema.clone())),
            batches => raised(py, joined(batches)),
        }
    }

    fn of_structs(py: Python<'_>, imported: &Arrays) -> PyResult<Self> {
        let batch = |array: &ArrayRef| {
            let structs = array.as_struct_opt().ok_or_else(|| {
                bad(format!("expected rows (a table or a record batch), found dtype={}", array.data_type()))
            })?;
            if structs.null_count() > 0 {
                return Err(bad("expected rows, found structs that are null"));
            }
            let batch = RecordBatch::from(structs);
            let schema = Schema::new_with_metadata(
                batch.schema_ref().fields().clone(),
                imported.field.metadata().clone(),
            );
            batch.with_schema(Arc::new(schema)).map_err(of_arrow)
        };
        Self::new(py, imported.arrays.iter().map(batch).collect::<PyResult<_>>()?)
    }
}

#[pymethods]
impl Rows {
    /// Makes rows of columns of equal lengths.
    #[staticmethod]
    fn from_columns(names: Vec<String>, columns: Vec<PyRef<'_, Column>>) -> PyResult<Self> {
        let rows = columns.first().map_or(0, |column| column.array.len());
        let mut fields = Vec::with_capacity(names.len());
        for (name, column) in names.into_iter().zip(&columns) {
            if column.array.len() != rows {
                let found = column.array.len();
                return Err(bad(format!("expected rows={rows} in column={name}, found {found}")));
            }
            fields.push(column.field.as_ref().clone().with_name(name).with_nullable(true));
        }
        let arrays = columns.iter().map(|column| Arc::clone(&column.array)).collect();
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).map_err(of_arrow)?;
        Ok(Self { schema, batches: vec![batch] })
    }

    /// Imports rows through the Arrow PyCapsule interface. `None` if the object lacks its methods.
    #[staticmethod]
    fn from_arrow(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let imported = interchange::import(object)?;
        imported.map(|imported| Self::of_structs(object.py(), &imported)).transpose()
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The names of the columns, in order.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// A column of all rows. Its values are copied if there are several pieces.
    fn column(&self, name: &str) -> PyResult<Column> {
        let index = self.schema.index_of(name).map_err(|_| PyKeyError::new_err(name.to_owned()))?;
        let arrays: Vec<&dyn Array> = self.batches.iter().map(|batch| batch.column(index).as_ref()).collect();
        let field = Arc::clone(&self.schema.fields()[index]);
        let array = match self.batches.as_slice() {
            [] => arrow_array::new_empty_array(field.data_type()),
            [batch] => Arc::clone(batch.column(index)),
            _ => concat(&arrays).map_err(of_arrow)?,
        };
        Ok(Column { field, array })
    }

    /// The pieces, as rows of one piece each.
    fn pieces(&self) -> Vec<Self> {
        let piece = |batch: &RecordBatch| Self { schema: batch.schema(), batches: vec![batch.clone()] };
        self.batches.iter().map(piece).collect()
    }

    /// Copies the rows with these indices, in this order.
    fn picked(&self, py: Python<'_>, places: Vec<u32>) -> PyResult<Self> {
        let batch = self.joined(py)?;
        let rows = batch.num_rows();
        if let Some(place) = places.iter().find(|place| **place as usize >= rows) {
            return Err(bad(format!("expected places below rows={rows}, found {place}")));
        }
        let picked = take_record_batch(&batch, &UInt32Array::from(places)).map_err(of_arrow)?;
        Ok(Self { schema: picked.schema(), batches: vec![picked] })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        interchange::export_schema(py, &self.schema)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<ArrayCapsules<'py>> {
        // Values are never cast, so a consumer that asks for another schema casts them itself.
        let _ = requested_schema;
        let structs = StructArray::from(self.joined(py)?);
        let field = Field::new("", structs.data_type().clone(), false);
        interchange::export_array(py, &field.with_metadata(self.schema.metadata().clone()), &structs)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        interchange::export_stream(py, &self.schema, self.batches())
    }
}
