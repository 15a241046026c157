//! What a queue and its partitions are told.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use arrow::datatypes::{DataType, Field};
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use serde::{Deserialize, Serialize};

/// What a put that returned survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: it returns before anything is written.
    None,
    /// The death of the process.
    Os,
    /// The death of the machine.
    #[default]
    Fsync,
}

/// What a put does when there is no room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// Waits its turn.
    #[default]
    Block,
    /// Fails.
    Refuse,
    /// Drops the oldest groups that nobody holds, with the disposition `dropped`.
    DropOldest,
}

/// Where a queue lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// Its directory; `None` keeps everything in memory.
    pub dir: Option<PathBuf>,
    /// See [`Durability`].
    pub durability: Durability,
    /// A segment file of payload is closed at this size; bytes.
    pub segment_bytes: u64,
    /// The journal is rewritten when it is larger than this and than four times what is live; bytes.
    pub journal_bytes: u64,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { dir: None, durability: Durability::Fsync, segment_bytes: 64 << 20, journal_bytes: 8 << 20 }
    }
}

/// A column with its type; the type is checked at every put and never cast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSpec {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub dtype: DataType,
    /// Its Arrow extension type, if it has one: what the bytes mean. The same bytes under another one are another type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<ExtensionSpec>,
}

/// An Arrow extension type, as a field's metadata name it: `arrow.fixed_shape_tensor`, `arrow.json`; for types that Arrow does
/// not have (bf16, fp8) any tag of the producer's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSpec {
    /// Its name.
    pub name: String,
    /// Its parameters.
    #[serde(default)]
    pub metadata: String,
}

impl ColumnSpec {
    /// A column of an Arrow type.
    pub fn new(name: impl Into<String>, dtype: DataType) -> Self {
        Self { name: name.into(), dtype, extension: None }
    }

    /// What a field is.
    pub(crate) fn of(field: &Field) -> Self {
        let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(|name| ExtensionSpec {
            name: name.clone(),
            metadata: field.metadata().get(EXTENSION_TYPE_METADATA_KEY).cloned().unwrap_or_default(),
        });
        Self { name: field.name().clone(), dtype: field.data_type().clone(), extension }
    }

    /// A field that may be null.
    pub(crate) fn field(&self) -> Field {
        let field = Field::new(&self.name, self.dtype.clone(), true);
        let Some(ExtensionSpec { name, metadata }) = &self.extension else { return field };
        field.with_metadata(HashMap::from([
            (EXTENSION_TYPE_NAME_KEY.to_owned(), name.clone()),
            (EXTENSION_TYPE_METADATA_KEY.to_owned(), metadata.clone()),
        ]))
    }

    /// Its type in words.
    pub(crate) fn type_words(&self) -> String {
        match &self.extension {
            None => self.dtype.to_string(),
            Some(ExtensionSpec { name, metadata }) if metadata.is_empty() => {
                format!("{} as {name}", self.dtype)
            }
            Some(ExtensionSpec { name, metadata }) => format!("{} as {name} {metadata}", self.dtype),
        }
    }
}

/// A partition as it is declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionSpec {
    /// Unique in the queue.
    pub name: String,
    /// Known columns; others are taken in as they come, and keep the type of their first put.
    #[serde(default)]
    pub columns: Vec<ColumnSpec>,
    /// Who must ack a row before it is freed, and which columns each needs; none means all of the first put.
    pub tasks: Vec<TaskSpec>,
    /// Columns whose lists or numbers say how many tokens a row has, for takes by tokens and balanced ones.
    #[serde(default)]
    pub length_columns: Vec<String>,
    /// Rows.
    pub capacity_rows: usize,
    /// Bytes of payload, counted in KiB as it is in memory; no bound but that of the rows if absent. Columns that are
    /// added to rows count too, but never wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// A longer row is refused; bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_bytes_max: Option<u64>,
    /// What a put that returned survives; the queue's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// See [`OnFull`].
    #[serde(default)]
    pub on_full: OnFull,
    /// How long a lease lasts without renewal; ms.
    #[serde(default = "default_lease_ms")]
    pub lease_ms: u64,
}

/// A task of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Its name.
    pub name: String,
    /// A row is ready when all of these are there; empty: as soon as it is put.
    #[serde(default)]
    pub columns: Vec<String>,
}

impl PartitionSpec {
    /// A partition without declared columns whose tasks need nothing but the put.
    pub fn new(
        name: impl Into<String>,
        tasks: impl IntoIterator<Item = impl Into<String>>,
        capacity_rows: usize,
    ) -> Self {
        let tasks =
            tasks.into_iter().map(|name| TaskSpec { name: name.into(), columns: Vec::new() }).collect();
        Self {
            name: name.into(),
            columns: Vec::new(),
            tasks,
            length_columns: Vec::new(),
            capacity_rows,
            capacity_bytes: None,
            row_bytes_max: None,
            durability: None,
            on_full: OnFull::Block,
            lease_ms: default_lease_ms(),
        }
    }

    pub(crate) fn capacity_kib(&self) -> Option<u32> {
        self.capacity_bytes.map(|bytes| u32::try_from(bytes / 1024).unwrap_or(u32::MAX))
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

fn default_lease_ms() -> u64 {
    600_000
}
