//! The export of rows as files for other tools.
//!
//! An export is made group by group. It can therefore be sent while it is made. It needs memory for only one group, and
//! for Parquet also for one row group of the file ([`ROW_GROUP_BYTES`]).

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use rolldock_jsonl::{Nulls, write_lines};
use serde::{Deserialize, Serialize};

use crate::batches::conform;
use crate::partition::Partition;
use crate::row::RowHandle;
use crate::{ColumnSpec, QueueError};

/// The encoded bytes at which a row group of a Parquet file is complete.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// An Apache Parquet file.
    Parquet,
    /// One JSON object per line. Lists are JSON arrays.
    Jsonl,
    /// An Arrow IPC file with one batch for each run of rows that are stored together. A column is null in
    /// rows that lack it.
    Arrow,
}

fn parquet_error(error: ParquetError) -> QueueError {
    QueueError::Arrow { reason: error.to_string() }
}

/// Bytes that a writer has produced and that have not been fetched yet.
#[derive(Debug, Clone, Default)]
struct Made(Arc<Mutex<Vec<u8>>>);

impl Write for Made {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Writer {
    Parquet(Box<ArrowWriter<Made>>),
    Jsonl(Made),
    Arrow(Box<FileWriter<Made>>),
}

impl Writer {
    fn new(format: ExportFormat, schema: &SchemaRef, made: Made) -> Result<Self, QueueError> {
        Ok(match format {
            ExportFormat::Parquet => {
                let properties =
                    WriterProperties::builder().set_max_row_group_bytes(Some(ROW_GROUP_BYTES)).build();
                let writer = ArrowWriter::try_new(made, Arc::clone(schema), Some(properties));
                Self::Parquet(Box::new(writer.map_err(parquet_error)?))
            }
            ExportFormat::Jsonl => Self::Jsonl(made),
            ExportFormat::Arrow => Self::Arrow(Box::new(FileWriter::try_new(made, schema)?)),
        })
    }

    fn write(&mut self, batch: &RecordBatch, schema: &SchemaRef) -> Result<(), QueueError> {
        match self {
            Self::Parquet(writer) => writer.write(&conform(batch, schema)?).map_err(parquet_error),
            Self::Jsonl(made) => {
                write_lines(batch, Nulls::Omitted, &mut made.0.lock());
                Ok(())
            }
            Self::Arrow(writer) => Ok(writer.write(&conform(batch, schema)?)?),
        }
    }

    fn finish(self) -> Result<(), QueueError> {
        match self {
            Self::Parquet(writer) => writer.close().map(drop).map_err(parquet_error),
            Self::Jsonl(_) => Ok(()),
            Self::Arrow(mut writer) => Ok(writer.finish()?),
        }
    }
}

/// The result of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exported {
    /// The number of rows.
    pub rows: usize,
    /// The number of rows that were skipped because their payload is damaged.
    pub skipped_rows: usize,
}

/// What an export does with rows whose payload is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDamage {
    /// The export fails.
    Fail,
    /// The export skips these rows, with a warning.
    Skip,
}

/// An export of all rows that existed at its beginning and still exist, oldest group first. Rows that are
/// added later to an incomplete group are exported too, if the export has not come to that part of the
/// groups. Columns that are new after the beginning are only in JSON lines.
pub(crate) struct Export {
    partition: Partition,
    /// The groups whose rows have not been fetched yet.
    left: Range<u64>,
    /// The rows of the next groups.
    groups: VecDeque<Vec<RowHandle>>,
    schema: SchemaRef,
    writer: Option<Writer>,
    made: Made,
    on_damage: OnDamage,
    exported: Exported,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Export")
            .field("exported", &self.exported)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// Returns the next bytes, or `None` at the end. Not cancel-safe: after a dropped call or an error, the
    /// export cannot be continued.
    pub(crate) async fn next_piece(&mut self) -> Result<Option<Bytes>, QueueError> {
        while self.writer.is_some() {
            let batches = match self.next_group() {
                Some(group) => Some(self.read(group).await?),
                None => None,
            };
            match (batches, &mut self.writer) {
                (Some(batches), Some(writer)) => {
                    for batch in batches {
                        self.exported.rows += batch.num_rows();
                        writer.write(&batch, &self.schema)?;
                    }
                }
                _ => self.writer.take().map_or(Ok(()), Writer::finish)?,
            }
            let bytes = std::mem::take(&mut *self.made.0.lock());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
        Ok(None)
    }

    /// The rows of the next group.
    fn next_group(&mut self) -> Option<Vec<RowHandle>> {
        while self.groups.is_empty() && !self.left.is_empty() {
            self.groups.extend(self.partition.next_rows(&mut self.left));
        }
        self.groups.pop_front()
    }

    async fn read(&mut self, group: Vec<RowHandle>) -> Result<Vec<RecordBatch>, QueueError> {
        if self.on_damage == OnDamage::Fail {
            return self.partition.read_rows(group).await;
        }
        let (skipped_rows, name) = (&mut self.exported.skipped_rows, self.partition.name());
        let skip = |rows: usize, error: QueueError| {
            tracing::warn!(partition = %name, rows, %error, "rows are skipped in an export");
            *skipped_rows += rows;
        };
        self.partition.read_sound_rows(group, skip).await
    }
}

impl Partition {
    /// The schema of all columns that at least one row has.
    fn export_schema(&self) -> SchemaRef {
        let table = self.shared.table.lock();
        Arc::new(Schema::new(table.columns().values().map(ColumnSpec::field).collect::<Vec<_>>()))
    }

    /// Begins an export of all existing rows.
    ///
    /// Cancel-safe: the call changes nothing.
    pub(crate) async fn begin_export(
        &self,
        format: ExportFormat,
        on_damage: OnDamage,
    ) -> Result<Export, QueueError> {
        self.settled().await?;
        // The groups come before the schema, which therefore has the columns of all their rows.
        let left = self.all_groups();
        let (schema, made) = (self.export_schema(), Made::default());
        let writer = Some(Writer::new(format, &schema, made.clone())?);
        let (partition, groups) = (self.clone(), VecDeque::new());
        Ok(Export { partition, left, groups, schema, writer, made, on_damage, exported: Exported::default() })
    }

    /// Writes all existing rows, oldest group first. Returns the number of rows. One group is in memory at a time,
    /// and for Parquet also up to 64 MiB of encoded rows.
    ///
    /// Not cancel-safe: a dropped export leaves an incomplete file.
    pub async fn export(&self, format: ExportFormat, into: impl Write + Send) -> Result<usize, QueueError> {
        Ok(self.export_to(format, OnDamage::Fail, into).await?.rows)
    }

    /// Like [`export`](Self::export), but skips rows whose payload is damaged, with a warning for each
    /// damaged part.
    ///
    /// Not cancel-safe: a dropped export leaves an incomplete file.
    pub async fn export_sound(
        &self,
        format: ExportFormat,
        into: impl Write + Send,
    ) -> Result<Exported, QueueError> {
        self.export_to(format, OnDamage::Skip, into).await
    }

    async fn export_to(
        &self,
        format: ExportFormat,
        on_damage: OnDamage,
        mut into: impl Write + Send,
    ) -> Result<Exported, QueueError> {
        let mut export = self.begin_export(format, on_damage).await?;
        while let Some(piece) = export.next_piece().await? {
            into.write_all(&piece).map_err(QueueError::io("write", "an export"))?;
        }
        into.flush().map_err(QueueError::io("write", "an export"))?;
        Ok(export.exported)
    }
}
