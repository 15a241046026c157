//! The configuration of a queue and the declarations of its partitions.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

use crate::error::QueueError;
use crate::lease::label;
use crate::take::Sampler;

/// The maximum nesting of lists and structs in the type of a column. The journal could not be read back with
/// deeper types.
const DTYPE_DEPTH_MAX: usize = 32;

/// The types of single values, with the names by which recipes and the Python client declare columns.
pub static SCALAR_TYPES: [(&str, DataType); 14] = [
    ("bool", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float16", DataType::Float16),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("string", DataType::Utf8),
    ("binary", DataType::Binary),
];

/// The failure that an acknowledged put survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The put survives no failure: it returns before anything is written.
    None,
    /// The put survives the death of the process.
    Os,
    /// The put survives the death of the machine.
    #[default]
    Fsync,
}

/// What a put does when the partition is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The put waits for its turn.
    #[default]
    Block,
    /// The put fails.
    Refuse,
    /// The put drops the oldest complete groups whose rows are ready or acked for every task. The dropped
    /// rows are counted with the disposition `dropped`.
    DropOldest,
}

/// The configuration of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// The directory of the queue. `None` keeps everything in memory.
    pub dir: Option<PathBuf>,
    /// The durability of puts whose partition sets no durability.
    pub durability: Durability,
    /// The size at which a segment file of payload is closed, in bytes.
    pub segment_bytes: u64,
    /// The journal is rewritten when its size exceeds both this number of bytes and four times its size after
    /// the last rewrite.
    pub journal_bytes: u64,
    /// Whether a put to a missing partition creates the partition, as [`put_spec`](Self::put_spec) declares.
    /// Otherwise such a put is an error.
    pub create_on_put: bool,
    /// The declaration of a partition that a put creates. Its name is ignored.
    pub put_spec: PartitionSpec,
}

impl Default for QueueConfig {
    /// A queue in memory. Its puts create partitions of 65,536 rows with one task, `train`. The queue is
    /// durable if `dir` is set.
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

/// A column and its type. The type is checked at every put, and values are never cast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSpec {
    /// The name of the column.
    pub name: String,
    /// The Arrow type of the column.
    pub dtype: DataType,
    /// The Arrow extension type, if there is one. It tells readers how to interpret the bytes. Columns with
    /// different extension types have different types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<ExtensionSpec>,
}

/// An Arrow extension type, by its name in the field's metadata, such as `arrow.fixed_shape_tensor` or
/// `arrow.json`. For types that Arrow lacks (bf16, fp8), the producer can choose any name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionSpec {
    /// The name of the extension type.
    pub name: String,
    /// The parameters of the extension type.
    #[serde(default)]
    pub metadata: String,
}

impl ColumnSpec {
    /// Creates the spec of a column without an extension type.
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

    /// The Arrow field of the column. It is nullable.
    pub(crate) fn field(&self) -> Field {
        let field = Field::new(&self.name, self.dtype.clone(), true);
        let Some(ExtensionSpec { name, metadata }) = &self.extension else { return field };
        field.with_metadata(HashMap::from([
            (EXTENSION_TYPE_NAME_KEY.to_owned(), name.clone()),
            (EXTENSION_TYPE_METADATA_KEY.to_owned(), metadata.clone()),
        ]))
    }

    /// The type as text, for messages.
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
    /// The name, which is unique in the queue.
    pub name: String,
    /// The known columns. A put may add other columns, which keep the type of their first put.
    #[serde(default)]
    pub columns: Vec<ColumnSpec>,
    /// The tasks that must ack a row before it is freed.
    pub tasks: Vec<TaskSpec>,
    /// The columns that count the tokens of a row, by the length of a list or as a number. Takes by tokens
    /// and balanced takes use these counts.
    #[serde(default)]
    pub length_columns: Vec<String>,
    /// The maximum number of rows.
    pub capacity_rows: usize,
    /// The size of every group: the number of its rows, or of its samples if it counts samples. A put without
    /// a group size gets this size, and a put with another group size is refused. If absent, each put states
    /// the size of its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<usize>,
    /// The order of takes that choose no order.
    #[serde(default, skip_serializing_if = "is_declared")]
    pub order: Sampler,
    /// The maximum size of the payload of all rows, as Arrow arrays, in bytes. It is counted in whole KiB. If
    /// absent, only the number of rows is limited. Columns that are added to rows count too, but adding
    /// columns never waits for room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// The maximum size of a row, in bytes. A larger row is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_bytes_max: Option<u64>,
    /// The failure that an acknowledged put survives. If absent, the queue's setting applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// What a put does when the partition is full.
    #[serde(default)]
    pub on_full: OnFull,
    /// The time that a lease lasts without renewal, in milliseconds.
    #[serde(default = "default_lease_ms")]
    pub lease_ms: u64,
}

/// A task of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// The name of the task.
    pub name: String,
    /// The columns that a row needs to be ready. If empty, a row is ready as soon as it is put.
    #[serde(default)]
    pub columns: Vec<String>,
}

impl PartitionSpec {
    /// Creates a declaration without columns, whose tasks require no columns.
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

    /// Checks the declaration of a new partition. Partitions from earlier versions need not pass this check.
    pub(crate) fn check_new(&self) -> Result<(), QueueError> {
        // Clients and proxies resolve these names as segments of a path.
        if [".", ".."].contains(&self.name.as_str()) {
            let reason =
                format!("expected another name for a partition than . and .., found {:?}", self.name);
            return Err(QueueError::BadRequest { reason });
        }
        check_column_names(&self.columns)?;
        if self.lease_ms == 0 {
            let what = "expected a lease_ms above 0".to_owned();
            return Err(QueueError::DeclaredOtherwise { name: self.name.clone(), what });
        }
        self.check()
    }

    /// Checks that the declaration is valid.
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
        check_depths(&self.columns)
    }

    pub(crate) fn capacity_kib(&self) -> Option<u32> {
        self.capacity_bytes.map(|bytes| u32::try_from(bytes / 1024).unwrap_or(u32::MAX))
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// Refuses types that are nested too deeply.
pub(crate) fn check_depths(columns: &[ColumnSpec]) -> Result<(), QueueError> {
    match columns.iter().find(|column| is_deeper(&column.dtype, DTYPE_DEPTH_MAX)) {
        None => Ok(()),
        Some(ColumnSpec { name, .. }) => Err(QueueError::BadRequest {
            reason: format!("expected a type of depth_max={DTYPE_DEPTH_MAX} for column={name}"),
        }),
    }
}

/// Refuses columns that have the name of a [label](crate::lease::label), or the same name as another column.
pub(crate) fn check_names<'a>(columns: impl IntoIterator<Item = &'a str>) -> Result<(), QueueError> {
    let mut names = HashSet::new();
    for name in columns {
        let reason = if label::ALL.contains(&name) {
            format!("expected a column name that is not reserved for labels of rows, found column={name}")
        } else if names.insert(name) {
            continue;
        } else {
            format!("expected columns with different names, found column={name} twice")
        };
        return Err(QueueError::BadRequest { reason });
    }
    Ok(())
}

/// Refuses columns as [`check_names`] does.
pub(crate) fn check_column_names(columns: &[ColumnSpec]) -> Result<(), QueueError> {
    check_names(columns.iter().map(|column| column.name.as_str()))
}

fn is_declared(sampler: &Sampler) -> bool {
    *sampler == Sampler::Declared
}

/// The types directly inside a nested type.
pub(crate) fn inner_types(dtype: &DataType) -> Vec<&DataType> {
    match dtype {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => vec![field.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        DataType::Dictionary(_, values) => vec![values.as_ref()],
        _ => Vec::new(),
    }
}

/// Whether a type is nested more than `depth` deep. The function recurses at most `depth` levels deep.
fn is_deeper(dtype: &DataType, depth: usize) -> bool {
    let Some(below) = depth.checked_sub(1) else { return true };
    inner_types(dtype).into_iter().any(|inner| is_deeper(inner, below))
}

fn default_lease_ms() -> u64 {
    600_000
}
