//! Rows for other tools.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::json::LineDelimitedWriter;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use crate::QueueError;
use crate::partition::{Partition, RowHandle};

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// Columns.
    Parquet,
    /// One JSON object a line; lists are arrays.
    Jsonl,
}

fn parquet_error(error: ParquetError) -> QueueError {
    QueueError::Arrow { reason: error.to_string() }
}

/// The batch with all columns of `schema`; those that its rows do not have are null.
pub(crate) fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, QueueError> {
    let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
        Some(column) => Arc::clone(column),
        None => new_null_array(field.data_type(), batch.num_rows()),
    };
    let columns = schema.fields().iter().map(column).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

impl Partition {
    /// Every column that any row has.
    fn export_schema(&self) -> SchemaRef {
        let table = self.shared.table.lock();
        let field = |(name, dtype): (&String, &DataType)| Field::new(name, dtype.clone(), true);
        Arc::new(Schema::new(table.columns.iter().map(field).collect::<Vec<_>>()))
    }

    /// Writes all rows that are there, oldest group first, one group in memory at a time; returns their number.
    ///
    /// Not cancel-safe: a dropped export leaves half a file.
    pub async fn export(&self, format: ExportFormat, into: impl Write + Send) -> Result<usize, QueueError> {
        let groups: Vec<Vec<RowHandle>> = {
            let table = self.shared.table.lock();
            table
                .groups
                .values()
                .filter(|group| !group.rows.is_empty())
                .map(|group| group.rows.clone())
                .collect()
        };
        match format {
            ExportFormat::Jsonl => {
                let mut writer = LineDelimitedWriter::new(into);
                let mut rows = 0;
                for group in groups {
                    for batch in self.read_rows(group).await? {
                        rows += batch.num_rows();
                        writer.write(&batch)?;
                    }
                }
                writer.finish()?;
                Ok(rows)
            }
            ExportFormat::Parquet => {
                let schema = self.export_schema();
                let mut writer =
                    ArrowWriter::try_new(into, Arc::clone(&schema), None).map_err(parquet_error)?;
                let mut rows = 0;
                for group in groups {
                    for batch in self.read_rows(group).await? {
                        rows += batch.num_rows();
                        writer.write(&conform(&batch, &schema)?).map_err(parquet_error)?;
                    }
                }
                writer.close().map_err(parquet_error)?;
                Ok(rows)
            }
        }
    }
}
