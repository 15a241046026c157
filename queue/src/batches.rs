//! Joining batches: a column that some batches lack is null in their rows.

use std::sync::Arc;

use arrow_array::{RecordBatch, new_null_array};
use arrow_schema::{Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;

use crate::error::QueueError;

/// Returns a schema with every column of any batch. If the schemas differ, all columns are nullable.
pub(crate) fn common_schema(batches: &[RecordBatch]) -> SchemaRef {
    let Some(first) = batches.first() else { return Arc::new(Schema::empty()) };
    let schema = first.schema();
    if batches.iter().all(|batch| batch.schema() == schema) {
        return schema;
    }
    let mut fields: Vec<Field> = Vec::new();
    for field in batches.iter().flat_map(|batch| batch.schema_ref().fields()) {
        if !fields.iter().any(|known| known.name() == field.name()) {
            fields.push(field.as_ref().clone().with_nullable(true));
        }
    }
    Arc::new(Schema::new_with_metadata(fields, first.schema_ref().metadata().clone()))
}

/// Returns the batch with all columns of `schema`. Columns that the batch lacks are null.
pub(crate) fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, QueueError> {
    let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
        Some(column) => Arc::clone(column),
        None => new_null_array(field.data_type(), batch.num_rows()),
    };
    let columns = schema.fields().iter().map(column).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Returns the batch in `schema`, unchanged if it already has that schema.
pub(crate) fn conformed(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, QueueError> {
    if batch.schema_ref() == schema { Ok(batch.clone()) } else { conform(batch, schema) }
}

/// Joins batches into one. A column is null in the rows of batches that lack the column. Several batches are
/// copied; a single batch is not.
pub fn joined(batches: &[RecordBatch]) -> Result<RecordBatch, QueueError> {
    if let [batch] = batches {
        return Ok(batch.clone());
    }
    if batches.is_empty() {
        return Err(QueueError::Empty);
    }
    let schema = common_schema(batches);
    let batches = batches.iter().map(|batch| conformed(batch, &schema)).collect::<Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}
