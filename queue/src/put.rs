//! The rows that a producer puts.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, downcast_integer_array};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, Schema};
use serde_json::Value;

use crate::config::ColumnSpec;
use crate::error::QueueError;
use crate::record::{Label, SamplePart};
use crate::row::RowHandle;

/// Rows of one group.
#[derive(Debug, Clone)]
pub struct Put {
    /// The rows, in one batch or in several with the same columns.
    pub batches: Vec<RecordBatch>,
    /// The group of the rows. Several puts may add rows to a group until the group is complete.
    pub group: String,
    /// The size of the whole group: its number of rows, or of samples if [`sample`](Self::sample) is set. If it is 0,
    /// the size is the one that the [partition](crate::PartitionSpec::group_size) declares. If the partition declares
    /// none, it is the number of rows of this put, or an error if `sample` is set.
    pub group_size: usize,
    /// The sample to which the rows belong, if a sample may have rows in several puts. If absent, each row is a sample.
    /// A group of samples is complete when as many samples as its size are complete, or when a client
    /// [closes](crate::Partition::close_groups) the group.
    pub sample: Option<SamplePart>,
    /// The oldest policy version of the rows.
    pub policy_version: u64,
    /// The priority of the rows. A group has the greatest priority of its puts. Takes with
    /// [`Sampler::Priority`](crate::Sampler::Priority) get groups with greater priorities first.
    pub priority: i64,
    /// A token that makes it safe to repeat the put: while the queue remembers the token, a repetition returns the
    /// handles of the first put.
    pub token: Option<String>,
    /// The key of each row, unique among the existing rows. If empty, the rows have no keys.
    pub keys: Vec<String>,
    /// The JSON tags of each row, which the queue stores and does not interpret. If empty, the rows have no tags.
    pub tags: Vec<Value>,
    /// A text that the queue stores with the put and does not interpret. It is as durable as the put, and
    /// [`Partition::records`](crate::Partition::records) returns it.
    pub record: Option<String>,
}

impl Put {
    /// Creates a put of a whole group.
    pub fn group(group: impl Into<String>, batch: RecordBatch) -> Self {
        let group_size = batch.num_rows();
        Self {
            batches: vec![batch],
            group: group.into(),
            group_size,
            sample: None,
            policy_version: 0,
            priority: 0,
            keys: Vec::new(),
            tags: Vec::new(),
            token: None,
            record: None,
        }
    }

    /// Creates a put of a whole group in several batches with the same columns.
    pub(crate) fn group_of(group: impl Into<String>, batches: Vec<RecordBatch>) -> Self {
        let group_size = rows_of(&batches);
        let empty = RecordBatch::new_empty(Arc::new(Schema::empty()));
        Self { batches, group_size, ..Self::group(group, empty) }
    }

    /// The number of rows in all batches.
    pub fn rows(&self) -> usize {
        rows_of(&self.batches)
    }
}

/// The number of rows in all batches. The sum saturates, because a batch may claim any number of rows.
pub(crate) fn rows_of(batches: &[RecordBatch]) -> usize {
    batches.iter().fold(0, |rows, batch| rows.saturating_add(batch.num_rows()))
}

/// The maximum number of levels of JSON in a record, such as tags. `serde_json` refuses to read 128 levels, and the
/// record around the JSON has some of them.
const JSON_DEPTH_MAX: usize = 64;

/// Whether JSON has more than `depth` levels. `1` and `[]` have one level, `[1]` has two. The function recurses at most
/// `depth` levels deep.
fn is_deeper(json: &Value, depth: usize) -> bool {
    let Some(below) = depth.checked_sub(1) else { return true };
    match json {
        Value::Array(values) => values.iter().any(|value| is_deeper(value, below)),
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, below)),
        _ => false,
    }
}

/// Refuses JSON that is nested too deeply: the journal could write it, but not read it back. `what` names the
/// JSON in the error, for example "tags".
pub fn check_depth(what: &str, json: &Value) -> Result<(), QueueError> {
    if is_deeper(json, JSON_DEPTH_MAX) {
        let reason = format!("expected {what} of at most depth_max={JSON_DEPTH_MAX} levels, found more");
        return Err(QueueError::BadRequest { reason });
    }
    Ok(())
}

/// Checks the keys and tags of a put. Returns one label per row, or no labels if it has no keys and no tags.
pub(crate) fn labels(put: &Put, rows: usize) -> Result<Vec<Label>, QueueError> {
    for (what, count) in [("keys", put.keys.len()), ("tags", put.tags.len())] {
        if count != 0 && count != rows {
            let reason = format!("expected {what} for all of rows={rows} or for none, found {count}");
            return Err(QueueError::BadRequest { reason });
        }
    }
    put.tags.iter().try_for_each(|tags| check_depth("tags", tags))?;
    let mut seen = HashSet::new();
    if let Some(twice) = put.keys.iter().find(|key| !seen.insert(*key)) {
        return Err(QueueError::KeyExists { key: twice.clone() });
    }
    if put.keys.is_empty() && put.tags.is_empty() {
        return Ok(Vec::new());
    }
    let label =
        |row| Label { key: put.keys.get(row).cloned(), tags: put.tags.get(row).cloned().unwrap_or_default() };
    Ok((0..rows).map(label).collect())
}

pub(crate) fn columns_of(schema: &Schema) -> Vec<ColumnSpec> {
    schema.fields().iter().map(|field| ColumnSpec::of(field)).collect()
}

/// The tokens of each row of a column: the length of a list, or the value of an integer. Nulls,
/// negative numbers, and numbers and lengths beyond `u32` count as 0. Returns `None` if the column has neither lists
/// nor integers.
fn counts_of(column: &ArrayRef) -> Option<Vec<u32>> {
    let counts: Vec<usize> = downcast_integer_array!(
        column => column.values().iter().map(|number| number.to_usize().unwrap_or(0)).collect(),
        DataType::List(_) => column.as_list::<i32>().offsets().lengths().collect(),
        DataType::LargeList(_) => column.as_list::<i64>().offsets().lengths().collect(),
        DataType::FixedSizeList(_, length) => vec![length.to_usize().unwrap_or(0); column.len()],
        _ => return None,
    );
    let count = |(row, count)| if column.is_null(row) { 0 } else { u32::try_from(count).unwrap_or(0) };
    Some(counts.into_iter().enumerate().map(count).collect())
}

/// The tokens of each row of a batch, summed over the `counted` columns.
pub(crate) fn lengths_of(batch: &RecordBatch, counted: &[String]) -> Result<Vec<u32>, QueueError> {
    let mut lengths = vec![0; batch.num_rows()];
    for name in counted {
        let Some(column) = batch.column_by_name(name) else { continue };
        let uncountable = || QueueError::WrongType {
            column: name.clone(),
            expected: "a list or a whole number, to count tokens by".to_owned(),
            found: column.data_type().to_string(),
        };
        let counts = counts_of(column).ok_or_else(uncountable)?;
        for (length, count) in lengths.iter_mut().zip(counts) {
            *length = u32::saturating_add(*length, count);
        }
    }
    Ok(lengths)
}

/// Checks that there is at least one handle, and that `found`, the rows of a batch, are as many as the handles.
pub(crate) fn check_counts(rows: &[RowHandle], found: usize) -> Result<(), QueueError> {
    match rows.len() {
        0 => Err(QueueError::Empty),
        expected if expected == found => Ok(()),
        expected => {
            let reason = format!("expected one row for each of handles={expected}, found rows={found}");
            Err(QueueError::BadRequest { reason })
        }
    }
}

#[cfg(test)]
mod tests;
