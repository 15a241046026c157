//! Rows for other tools.

use std::io::Write;

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

impl Partition {
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
                let mut rows = 0;
                let mut into = Some(into);
                let mut writer: Option<ArrowWriter<_>> = None;
                for group in groups {
                    for batch in self.read_rows(group).await? {
                        rows += batch.num_rows();
                        if let Some(into) = into.take() {
                            writer = Some(
                                ArrowWriter::try_new(into, batch.schema(), None).map_err(parquet_error)?,
                            );
                        }
                        writer
                            .as_mut()
                            .map_or(Ok(()), |writer| writer.write(&batch))
                            .map_err(parquet_error)?;
                    }
                }
                writer.map_or(Ok(()), |writer| writer.close().map(drop)).map_err(parquet_error)?;
                Ok(rows)
            }
        }
    }
}
