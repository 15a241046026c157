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
    /// The number of rows of the whole group. If it is 0, the size that the
    /// [partition](crate::PartitionSpec::group_size) declares applies, or else the number of rows of this
    /// put. With [samples](Self::sample), sizes count samples.
    pub group_size: usize,
    /// The sample to which the rows belong, if a sample may have rows in several puts. The group is complete
    /// when its declared number of samples is complete, or when it is
    /// [closed](crate::Partition::close_groups). If absent, each row is a sample.
    pub sample: Option<SamplePart>,
    /// The oldest policy version of the rows.
    pub policy_version: u64,
    /// The priority of the rows. A group has the greatest priority of its puts. Takes with
    /// [`Sampler::Priority`](crate::Sampler::Priority) get groups with greater priorities first.
    pub priority: i64,
    /// A token that makes it safe to repeat the put: a repetition returns the rows of the first put.
    pub token: Option<String>,
    /// The key of each row, unique among the existing rows. If empty, the rows have no keys.
    pub keys: Vec<String>,
    /// The JSON tags of each row, which only the owner interprets. If empty, the rows have no tags.
    pub tags: Vec<Value>,
    /// The owner's record of this put. It is as durable as the put, and
    /// [`Partition::records`](crate::Partition::records) reads it back.
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

/// The maximum nesting of JSON in tags. The journal could not read back a record with deeper tags.
const TAGS_DEPTH_MAX: usize = 64;

/// Whether JSON is nested more than `depth` deep. The function recurses at most `depth` levels deep.
fn is_deeper(json: &Value, depth: usize) -> bool {
    let Some(below) = depth.checked_sub(1) else { return true };
    match json {
        Value::Array(values) => values.iter().any(|value| is_deeper(value, below)),
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, below)),
        _ => false,
    }
}

/// Refuses JSON that is nested too deeply: the journal could write it, but not read it back. Puts check their
/// tags in this way. `what` names the JSON in the error.
pub fn check_depth(what: &str, json: &Value) -> Result<(), QueueError> {
    if is_deeper(json, TAGS_DEPTH_MAX) {
        let reason = format!("expected {what} of depth_max={TAGS_DEPTH_MAX}, found deeper ones");
        return Err(QueueError::BadRequest { reason });
    }
    Ok(())
}

/// Checks the keys and tags of the rows, and returns them by row.
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

/// The tokens of each row of a column: the length of a list, or the value of an integer. A null, a negative
/// number and a number beyond `u32` count as 0. Returns `None` if the column has neither lists nor integers.
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

/// Checks that there is one row of columns for each handle, and that there is at least one handle.
pub(crate) fn check_counts(rows: &[RowHandle], found: usize) -> Result<(), QueueError> {
    match rows.len() {
        0 => Err(QueueError::Empty),
        expected if expected == found => Ok(()),
        expected => {
            let reason =
                format!("expected columns of rows={expected}, one for each handle, found rows={found}");
            Err(QueueError::BadRequest { reason })
        }
    }
}

#[cfg(test)]
mod tests;
