//! The configuration of a queue and the declarations of its partitions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

use crate::error::QueueError;
use crate::take::Sampler;

/// Maximum nesting of lists and structs in a column's type: the journal could not be read back with a deeper
/// one.
const DTYPE_DEPTH_MAX: usize = 32;

/// What an acknowledged put survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: the put returns before anything is written.
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
    /// The put waits its turn.
    #[default]
    Block,
    /// The put fails.
    Refuse,
    /// The put drops the oldest groups that are not leased, with the disposition `dropped`.
    DropOldest,
}

/// The configuration of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// Its directory; `None` keeps everything in memory.
    pub dir: Option<PathBuf>,
    /// See [`Durability`].
    pub durability: Durability,
    /// A segment file of payload is closed at this size; bytes.
    pub segment_bytes: u64,
    /// The journal is rewritten when it exceeds this size and four times the size of its live records; bytes.
    pub journal_bytes: u64,
    /// Whether a put to a partition that does not exist creates it, as [`put_spec`](Self::put_spec) says;
    /// otherwise such a put is an error.
    pub create_on_put: bool,
    /// The declaration of such a partition, apart from its name.
    pub put_spec: PartitionSpec,
}

impl Default for QueueConfig {
    /// A queue in memory, whose puts create partitions of 65,536 rows with the one task `train`. With `dir`
    /// set it is durable.
    fn default() -> Self {
        Self {
            dir: None,
            durability: Durability::Fsync,
            segment_bytes: 64 << 20,
            journal_bytes: 8 << 20,
            create_on_put: true,
            put_spec: PartitionSpec::new("", ["train"], 65_536),
        }
    }
}

/// A column with its type; the type is checked at every put and never cast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSpec {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub dtype: DataType,
    /// Its Arrow extension type, if it has one: the meaning of the bytes. Equal bytes with another extension
    /// type have another type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<ExtensionSpec>,
}

/// An Arrow extension type, by its name in a field's metadata: `arrow.fixed_shape_tensor`, `arrow.json`. For
/// types that Arrow does not have (bf16, fp8) it is any tag that the producer chooses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

    /// The column spec of an Arrow field.
    pub(crate) fn of(field: &Field) -> Self {
        let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(|name| ExtensionSpec {
            name: name.clone(),
            metadata: field.metadata().get(EXTENSION_TYPE_METADATA_KEY).cloned().unwrap_or_default(),
        });
        Self { name: field.name().clone(), dtype: field.data_type().clone(), extension }
    }

    /// The Arrow field of the column, which may be null.
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

/// The declaration of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionSpec {
    /// The name; unique in the queue.
    pub name: String,
    /// Known columns. Other columns are added as puts bring them, and keep the type of their first put.
    #[serde(default)]
    pub columns: Vec<ColumnSpec>,
    /// The tasks that must ack a row before it is freed, each with the columns that it needs; none means all
    /// columns of the first put.
    pub tasks: Vec<TaskSpec>,
    /// Columns whose list lengths or numbers count a row's tokens, for takes by tokens and balanced takes.
    #[serde(default)]
    pub length_columns: Vec<String>,
    /// Maximum number of rows.
    pub capacity_rows: usize,
    /// Number of rows of every group (of samples, where groups are put by samples): a put without a size has
    /// this one, and a put with another size is refused. If absent, each put says its group's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<usize>,
    /// The order of takes that do not choose one.
    #[serde(default, skip_serializing_if = "is_declared")]
    pub order: Sampler,
    /// Maximum bytes of payload in memory, counted in KiB; without it only the rows are bounded. Columns that
    /// are added to rows count too, but never wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Maximum bytes of a row; a longer row is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_bytes_max: Option<u64>,
    /// What an acknowledged put survives; that of the queue if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// See [`OnFull`].
    #[serde(default)]
    pub on_full: OnFull,
    /// Time that a lease lasts without renewal; ms.
    #[serde(default = "default_lease_ms")]
    pub lease_ms: u64,
}

/// A task of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its name.
    pub name: String,
    /// Columns that a row needs to be ready; if empty, a row is ready as soon as it is put.
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
            group_size: None,
            order: Sampler::Declared,
            capacity_bytes: None,
            row_bytes_max: None,
            durability: None,
            on_full: OnFull::Block,
            lease_ms: default_lease_ms(),
        }
    }

    /// Checks that the declaration is possible.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        let is_sound = !self.name.is_empty()
            && !self.tasks.is_empty()
            && self.capacity_rows > 0
            && self.group_size.is_none_or(|size| size > 0);
        if !is_sound {
            return Err(QueueError::DeclaredOtherwise {
                name: self.name.clone(),
                what: "expected a name, at least one task, and a capacity and a group_size above 0"
                    .to_owned(),
            });
        }
        match self.columns.iter().find(|column| is_deeper(&column.dtype, DTYPE_DEPTH_MAX)) {
            None => Ok(()),
            Some(ColumnSpec { name, .. }) => Err(QueueError::BadRequest {
                reason: format!("expected a type of depth_max={DTYPE_DEPTH_MAX} for column={name}"),
            }),
        }
    }

    pub(crate) fn capacity_kib(&self) -> Option<u32> {
        self.capacity_bytes.map(|bytes| u32::try_from(bytes / 1024).unwrap_or(u32::MAX))
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

fn is_declared(sampler: &Sampler) -> bool {
    *sampler == Sampler::Declared
}

/// Whether types are nested more than `depth` deep. Looks no deeper itself.
fn is_deeper(dtype: &DataType, depth: usize) -> bool {
    let Some(below) = depth.checked_sub(1) else { return true };
    match dtype {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => is_deeper(field.data_type(), below),
        DataType::Struct(fields) => fields.iter().any(|field| is_deeper(field.data_type(), below)),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| is_deeper(field.data_type(), below)),
        DataType::Dictionary(_, values) => is_deeper(values, below),
        DataType::RunEndEncoded(_, values) => is_deeper(values.data_type(), below),
        _ => false,
    }
}

fn default_lease_ms() -> u64 {
    600_000
}
