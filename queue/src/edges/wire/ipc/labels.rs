//! The labels of rows: handles, groups, versions, keys and tags. On the wire, they are columns in addition to
//! the columns of the rows.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde_json::Value;

use super::bad;
use crate::batches::conformed;
use crate::config::check_names;
use crate::lease::Labels;
use crate::lease::label::{GROUP, HANDLE, KEY, POLICY_VERSION, TAGS};
use crate::{Lease, Put, QueueError, RowHandle};

/// The key of the owner's record in the metadata of a put's schema.
pub(crate) const RECORD: &str = "rolldock.record";

fn number(handle: RowHandle) -> u64 {
    u64::from(handle.generation) << 32 | u64::from(handle.slot)
}

fn handle(number: u64) -> RowHandle {
    RowHandle { slot: number as u32, generation: (number >> 32) as u32 }
}

/// Returns a batch whose first columns are the labels of the rows, followed by the columns of `schema`.
pub(crate) fn labelled(
    batch: &RecordBatch,
    schema: &SchemaRef,
    lease: &Lease,
    rows: std::ops::Range<usize>,
) -> Result<RecordBatch, QueueError> {
    let conformed = conformed(batch, schema)?;
    let mut columns = label_columns(lease, rows);
    columns.extend(conformed.columns().iter().cloned());
    Ok(RecordBatch::try_new(labelled_schema(schema, lease), columns)?)
}

/// Returns a batch with only the labels of all rows of a lease.
pub(crate) fn labels(lease: &Lease) -> Result<RecordBatch, QueueError> {
    let columns = label_columns(lease, 0..lease.rows().len());
    Ok(RecordBatch::try_new(labelled_schema(&Schema::empty(), lease), columns)?)
}

fn label_columns(lease: &Lease, rows: std::ops::Range<usize>) -> Vec<ArrayRef> {
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(lease.rows()[rows.clone()].iter().copied().map(number))),
        Arc::new(StringArray::from_iter_values(&lease.groups()[rows.clone()])),
        Arc::new(UInt64Array::from_iter_values(lease.policy_versions()[rows.clone()].iter().copied())),
    ];
    if let Some(keys) = lease.keys().get(rows.clone()) {
        columns.push(Arc::new(keys.iter().map(Option::as_deref).collect::<StringArray>()));
    }
    if let Some(tags) = lease.tags().get(rows) {
        let text = |tags: &Value| (!tags.is_null()).then(|| tags.to_string());
        columns.push(Arc::new(tags.iter().map(text).collect::<StringArray>()));
    }
    columns
}

pub(crate) fn labelled_schema(schema: &Schema, lease: &Lease) -> SchemaRef {
    let labels = [(HANDLE, DataType::UInt64), (GROUP, DataType::Utf8), (POLICY_VERSION, DataType::UInt64)];
    let mut fields = labels.map(|(name, dtype)| Arc::new(Field::new(name, dtype, false))).to_vec();
    let optional = [(KEY, lease.keys().is_empty()), (TAGS, lease.tags().is_empty())];
    let there = optional.into_iter().filter(|(_, is_empty)| !is_empty);
    fields.extend(there.map(|(name, _)| Arc::new(Field::new(name, DataType::Utf8, true))));
    fields.extend(schema.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

/// Removes a column of text from a batch and returns it, if the batch has the column.
fn split_text(batch: &mut RecordBatch, name: &str) -> Result<Option<Vec<Option<String>>>, QueueError> {
    let Ok(place) = batch.schema_ref().index_of(name) else { return Ok(None) };
    let column = batch.remove_column(place);
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let texts = match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().map(owned).collect(),
        DataType::LargeUtf8 => column.as_string::<i64>().iter().map(owned).collect(),
        DataType::Utf8View => column.as_string_view().iter().map(owned).collect(),
        _ => return Err(bad(format!("expected a column {name} of type Utf8"))),
    };
    Ok(Some(texts))
}

fn parse_tags(texts: Vec<Option<String>>) -> Result<Vec<Value>, QueueError> {
    let parse = |text: Option<String>| match text {
        None => Ok(Value::Null),
        Some(text) => serde_json::from_str(&text).map_err(|error| bad(format!("column {TAGS}: {error}"))),
    };
    texts.into_iter().map(parse).collect()
}

/// Adds columns with the keys and tags of a put to its rows.
pub(crate) fn with_labels(
    batch: &RecordBatch,
    keys: &[String],
    tags: &[Value],
) -> Result<RecordBatch, QueueError> {
    if keys.is_empty() && tags.is_empty() {
        return Ok(batch.clone());
    }
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    if !keys.is_empty() {
        fields.push(Arc::new(Field::new(KEY, DataType::Utf8, true)));
        columns.push(Arc::new(StringArray::from_iter_values(keys)));
    }
    if !tags.is_empty() {
        fields.push(Arc::new(Field::new(TAGS, DataType::Utf8, true)));
        columns.push(Arc::new(StringArray::from_iter_values(tags.iter().map(Value::to_string))));
    }
    fields.extend(batch.schema_ref().fields().iter().cloned());
    columns.extend(batch.columns().iter().cloned());
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Returns a put's rows with their keys and tags.
pub(crate) fn put_with_labels(put: &Put) -> Result<Vec<RecordBatch>, QueueError> {
    let rows = put.rows();
    for (what, count) in [("keys", put.keys.len()), ("tags", put.tags.len())] {
        if count != 0 && count != rows {
            return Err(bad(format!("expected {what} for all of rows={rows} or for none, found {count}")));
        }
    }
    let mut first = 0;
    let labelled = put.batches.iter().map(|batch| {
        let rows = first..first + batch.num_rows();
        first = rows.end;
        check_schema(batch)?;
        let (keys, tags) = (put.keys.get(rows.clone()), put.tags.get(rows));
        with_labels(batch, keys.unwrap_or_default(), tags.unwrap_or_default())
    });
    labelled.collect()
}

/// Returns a put's rows with their keys and tags. The put's record is in the metadata of the schema, where it
/// may have any length.
pub(crate) fn put_with_record(put: &Put) -> Result<Vec<RecordBatch>, QueueError> {
    let labelled = put_with_labels(put)?;
    let Some(record) = &put.record else { return Ok(labelled) };
    let with = |batch: RecordBatch| {
        let mut schema = batch.schema().as_ref().clone();
        schema.metadata.insert(RECORD.to_owned(), record.clone());
        Ok(batch.with_schema(Arc::new(schema))?)
    };
    labelled.into_iter().map(with).collect()
}

/// Removes a put's record from its rows and returns it.
pub(crate) fn split_record(batches: &mut [RecordBatch]) -> Result<Option<String>, QueueError> {
    let mut record = None;
    for batch in batches.iter_mut().filter(|batch| batch.schema_ref().metadata().contains_key(RECORD)) {
        let mut schema = batch.schema().as_ref().clone();
        record = schema.metadata.remove(RECORD);
        *batch = RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec())?;
    }
    Ok(record)
}

/// Separates a put's keys from its rows.
pub(crate) fn split_keys(mut batch: RecordBatch) -> Result<(Vec<String>, RecordBatch), QueueError> {
    let keys = split_text(&mut batch, KEY)?.unwrap_or_default();
    let missing = || bad(format!("column {KEY}: expected a key for every row"));
    let keys = keys.into_iter().collect::<Option<Vec<String>>>().ok_or_else(missing)?;
    Ok((keys, batch))
}

/// Separates a put's tags from its rows.
pub(crate) fn split_tags(mut batch: RecordBatch) -> Result<(Vec<Value>, RecordBatch), QueueError> {
    let tags = parse_tags(split_text(&mut batch, TAGS)?.unwrap_or_default())?;
    Ok((tags, batch))
}

/// Applies `split` to every batch. Returns all separated values, and the rest of the batches.
pub(crate) fn split_all<T>(
    batches: Vec<RecordBatch>,
    split: impl Fn(RecordBatch) -> Result<(Vec<T>, RecordBatch), QueueError>,
) -> Result<(Vec<T>, Vec<RecordBatch>), QueueError> {
    let mut gathered = Vec::new();
    let mut rest = Vec::with_capacity(batches.len());
    for batch in batches {
        let (more, batch) = split(batch)?;
        gathered.extend(more);
        rest.push(batch);
    }
    Ok((gathered, rest))
}

/// Separates the handles from a batch.
pub(crate) fn split_handles(mut batch: RecordBatch) -> Result<(Vec<RowHandle>, RecordBatch), QueueError> {
    let missing = || bad(format!("expected a column {HANDLE} of type UInt64 without nulls"));
    let place = batch.schema_ref().index_of(HANDLE).map_err(|_| missing())?;
    let column = batch.remove_column(place);
    let numbers = column.as_primitive_opt::<UInt64Type>().filter(|numbers| numbers.null_count() == 0);
    let handles = numbers.ok_or_else(missing)?.values().iter().copied().map(handle).collect();
    Ok((handles, batch))
}

/// A taken batch without its labels, and the labels.
pub(crate) struct Labelled {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) labels: Labels,
    pub(crate) batch: RecordBatch,
}

/// Separates the labels from a taken batch.
pub(crate) fn split_labels(batch: RecordBatch) -> Result<Labelled, QueueError> {
    let (rows, mut batch) = split_handles(batch)?;
    let unversioned = || bad(format!("expected a column {POLICY_VERSION} of type UInt64"));
    let place = batch.schema_ref().index_of(POLICY_VERSION).map_err(|_| unversioned())?;
    let column = batch.remove_column(place);
    let policy_versions = column.as_primitive_opt::<UInt64Type>().ok_or_else(unversioned)?.values().to_vec();
    let missing = || bad(format!("expected a column {GROUP} of type Utf8"));
    let groups = split_text(&mut batch, GROUP)?.ok_or_else(missing)?;
    let groups = groups.into_iter().map(Option::unwrap_or_default).collect();
    let keys = split_text(&mut batch, KEY)?.unwrap_or_default();
    let tags = parse_tags(split_text(&mut batch, TAGS)?.unwrap_or_default())?;
    Ok(Labelled { rows, labels: Labels { groups, policy_versions, keys, tags }, batch })
}

/// Returns the batch with a column of handles as its first column.
pub(crate) fn with_handles(rows: &[RowHandle], batch: &RecordBatch) -> Result<RecordBatch, QueueError> {
    check_schema(batch)?;
    let mut fields = vec![Arc::new(Field::new(HANDLE, DataType::UInt64, false))];
    fields.extend(batch.schema_ref().fields().iter().cloned());
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(UInt64Array::from_iter_values(rows.iter().copied().map(number)))];
    columns.extend(batch.columns().iter().cloned());
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Refuses columns that the receiver would read as labels.
fn check_schema(batch: &RecordBatch) -> Result<(), QueueError> {
    check_names(batch.schema_ref().fields().iter().map(|field| field.name().as_str()))
}
