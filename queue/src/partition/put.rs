//! Putting rows.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, downcast_integer_array};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, Schema};
use serde_json::Value;
use tokio::time::Instant;

use super::admission::Admitted;
use super::write::Written;
use super::{Label, Partition, RowHandle, SamplePart};
use crate::QueueError;
use crate::config::ColumnSpec;
use crate::journal::{PayloadRecord, PutRecord, Record};
use crate::store::{Chunk, Stored, payload_bytes};
use crate::units::Place;

/// Rows of one group.
#[derive(Debug, Clone)]
pub struct Put {
    /// The rows, each a sample, in one batch or several with the same columns.
    pub batches: Vec<RecordBatch>,
    /// The group; rows of several puts come together under the same one until it has its size.
    pub group: String,
    /// Rows of the whole group, 0 for as many as the [partition](crate::PartitionSpec::group_size) says, or else as the put
    /// has; samples where the rows are put by [samples](Self::sample).
    pub group_size: usize,
    /// The sample that the rows belong to, where it may have rows in several puts: the group is whole when as many samples
    /// as its size says are, or when it is [closed](Partition::close_groups). Absent: each row is a sample.
    pub sample: Option<SamplePart>,
    /// The oldest policy version of the rows.
    pub policy_version: u64,
    /// Greater goes first where a take asks for [`Sampler::Priority`](crate::Sampler::Priority); a group has the
    /// greatest of its puts.
    pub priority: i64,
    /// Makes a repetition of the same put harmless: it returns the rows of the first one.
    pub token: Option<String>,
    /// A key of each row, unique among the rows that are there; none if empty.
    pub keys: Vec<String>,
    /// JSON of each row, the owner's; none if empty.
    pub tags: Vec<Value>,
    /// The owner's own words about this put, durable with it and read back by [`Partition::records`].
    pub record: Option<String>,
}

impl Put {
    /// A whole group.
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

    /// The same in several batches with the same columns.
    pub(crate) fn group_of(group: impl Into<String>, batches: Vec<RecordBatch>) -> Self {
        let group_size = rows_of(&batches);
        let empty = RecordBatch::new_empty(Arc::new(Schema::empty()));
        Self { batches, group_size, ..Self::group(group, empty) }
    }

    /// Rows of all batches.
    pub fn rows(&self) -> usize {
        rows_of(&self.batches)
    }
}

/// Rows of all batches, each of which may claim any number.
pub(super) fn rows_of(batches: &[RecordBatch]) -> usize {
    batches.iter().fold(0, |rows, batch| rows.saturating_add(batch.num_rows()))
}

/// Objects in objects that tags may have: a record of the journal has them in itself, and must be readable.
const TAGS_DEPTH_MAX: usize = 64;

/// Whether JSON is nested more than `depth` deep. Looks no deeper itself.
fn is_deeper(json: &Value, depth: usize) -> bool {
    let Some(below) = depth.checked_sub(1) else { return true };
    match json {
        Value::Array(values) => values.iter().any(|value| is_deeper(value, below)),
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, below)),
        _ => false,
    }
}

/// Refuses JSON that could be written and not be read back.
pub(crate) fn check_depth(what: &str, json: &Value) -> Result<(), QueueError> {
    if is_deeper(json, TAGS_DEPTH_MAX) {
        let reason = format!("expected {what} of depth_max={TAGS_DEPTH_MAX}, found deeper ones");
        return Err(QueueError::BadRequest { reason });
    }
    Ok(())
}

/// The rows' keys and tags, checked against each other.
fn labels(put: &Put, rows: usize) -> Result<Vec<Label>, QueueError> {
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

/// What a put brings.
pub(super) struct Incoming {
    pub(super) columns: Vec<ColumnSpec>,
    pub(super) rows: usize,
    pub(super) kib: u32,
    /// Tokens of each row; none if nobody counts them.
    lengths: Vec<u32>,
    /// Where the payload lies, if it is not in the put.
    place: Option<Place>,
}

/// Rows that lie on a unit, and what their controller has to know of them.
pub(crate) struct PlacedRows {
    pub(crate) place: Place,
    pub(crate) columns: Vec<ColumnSpec>,
    pub(crate) lengths: Vec<u32>,
    /// Of payload.
    pub(crate) bytes: u64,
}

/// Tokens of each row of a column: the length of its list, or its number. A null, a negative number and a number beyond
/// `u32` count for nothing. `None` where the column has neither lists nor whole numbers.
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

/// Tokens of each row of a batch.
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

impl Partition {
    /// Puts rows, as durably as the queue is. When there is no room the partition's declaration decides; waiting
    /// ends at `deadline`.
    ///
    /// Cancel-safe: the put happens whole or not at all; with a token it can be repeated, also while the first one is
    /// still on its way.
    pub async fn put(&self, put: Put, deadline: Option<Instant>) -> Result<Vec<RowHandle>, QueueError> {
        // Before anything is done for each row: a batch without payload may claim any number of them.
        self.shared.table.lock().check_rows(put.rows())?;
        self.check_row_bytes(&put.batches)?;
        let incoming = Incoming {
            columns: put.batches.first().map_or_else(Vec::new, |batch| columns_of(batch.schema_ref())),
            rows: put.rows(),
            kib: self.kib_of(&put.batches)?,
            lengths: self.lengths(&put.batches)?,
            place: None,
        };
        self.put_incoming(put, incoming, deadline).await
    }

    /// Puts rows whose payload lies on a unit already. Cancel-safe, as [`put`](Self::put) is.
    pub(crate) async fn put_placed(
        &self,
        put: Put,
        placed: PlacedRows,
        deadline: Option<Instant>,
    ) -> Result<Vec<RowHandle>, QueueError> {
        let PlacedRows { place, columns, lengths, bytes } = placed;
        let rows = place.rows.len();
        self.refuse_unread_rows()?;
        let counted = self.shared.table.lock().spec.length_columns.len();
        let (expected, found) = (if counted == 0 { 0 } else { rows }, lengths.len());
        if found != expected {
            let reason = format!("expected lengths of rows={expected}, found {found}");
            return Err(QueueError::BadRequest { reason });
        }
        let kib = self.kib_of_bytes(bytes)?;
        let incoming = Incoming { columns, rows, kib, lengths, place: Some(place) };
        self.put_incoming(put, incoming, deadline).await
    }

    async fn put_incoming(
        &self,
        mut put: Put,
        incoming: Incoming,
        deadline: Option<Instant>,
    ) -> Result<Vec<RowHandle>, QueueError> {
        if incoming.rows == 0 || incoming.columns.is_empty() {
            return Err(QueueError::Empty);
        }
        put.group_size = self.group_size(&put, incoming.rows)?;
        let labels = labels(&put, incoming.rows)?;
        let (reservation, handles) = match self.admit(&put, &incoming, deadline).await? {
            Admitted::Known(rows) => return Ok(rows),
            Admitted::Reserved(reservation, handles) => (reservation, handles),
        };
        if let Some(place) = &incoming.place {
            // It may have died, or be drained, since the put began to wait for room.
            self.shared.plane.units.check_takes_rows(&place.unit)?;
        }
        let Incoming { columns, kib, lengths, place, .. } = incoming;
        let chunk = self.shared.new_chunk();
        let (stored, sizes) = match place {
            Some(place) => (Stored::Placed(place), None),
            None => {
                let rows = Chunk::new(put.batches)?;
                let stored = self.store_one(chunk, &rows, &put.group).await?;
                let sizes = stored.is_held().then(|| rows.sizes());
                (stored, sizes)
            }
        };
        let (payload, unit) = stored.into_parts();
        let names = columns.into_iter().map(|column| column.name).collect();
        let put = PutRecord {
            partition: self.shared.name.clone(),
            group: put.group,
            group_size: put.group_size,
            group_gone: 0,
            in_parts: false,
            sample: put.sample,
            policy_version: put.policy_version,
            priority: put.priority,
            lengths,
            kib,
            labels,
            rows: handles.clone(),
            payload: PayloadRecord { chunk, location: None, unit, columns: names, chunk_rows: Vec::new() },
            token: put.token,
            words: put.record,
        };
        let record = Record::Put(put.clone());
        let written = vec![Written { chunk, record, within: None }];
        let publish = move |durable: Result<(), QueueError>| {
            durable.and_then(|()| reservation.publish(put, sizes.as_ref()))
        };
        self.write(payload, written, publish).await?;
        Ok(handles)
    }

    /// The size of a put's group: as it says, or else as the partition does.
    fn group_size(&self, put: &Put, rows: usize) -> Result<usize, QueueError> {
        let declared = self.shared.table.lock().spec.group_size;
        match declared {
            None if put.group_size > 0 => Ok(put.group_size),
            None => Ok(rows),
            Some(size) if put.group_size == 0 || put.group_size == size => Ok(size),
            Some(size) => {
                let found = put.group_size;
                let what = format!("group={} has group_size={found}, expected {size}", put.group);
                Err(QueueError::DeclaredOtherwise { name: self.shared.name.clone(), what })
            }
        }
    }

    /// Tokens of each row: the lists' lengths and the numbers in the columns that the partition counts.
    fn lengths(&self, batches: &[RecordBatch]) -> Result<Vec<u32>, QueueError> {
        let counted = self.shared.table.lock().spec.length_columns.clone();
        if counted.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<_> =
            batches.iter().map(|batch| lengths_of(batch, &counted)).collect::<Result<_, _>>()?;
        Ok(lengths.concat())
    }

    /// What a batch takes of the partition's capacity in bytes; 0 where there is none.
    pub(super) fn kib_of(&self, batches: &[RecordBatch]) -> Result<u32, QueueError> {
        if !self.shared.counts_bytes {
            return Ok(0);
        }
        self.kib_of_bytes(batches.iter().map(payload_bytes).sum::<Result<usize, _>>()? as u64)
    }

    pub(super) fn kib_of_bytes(&self, bytes: u64) -> Result<u32, QueueError> {
        if !self.shared.counts_bytes {
            return Ok(0);
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let capacity_bytes = self.shared.table.lock().spec.capacity_bytes.unwrap_or(u64::MAX);
        if u64::from(kib) * 1024 > capacity_bytes {
            return Err(QueueError::TooManyBytes { bytes, capacity_bytes });
        }
        Ok(kib)
    }

    /// Refuses rows that are longer than the partition's limit.
    pub(super) fn check_row_bytes(&self, batches: &[RecordBatch]) -> Result<(), QueueError> {
        let Some(bytes_max) = self.shared.table.lock().spec.row_bytes_max else { return Ok(()) };
        let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|row| batch.slice(row, 1)));
        for (row, alone) in rows.enumerate() {
            let bytes = payload_bytes(&alone)? as u64;
            if bytes > bytes_max {
                return Err(QueueError::RowTooLong { row, bytes, bytes_max });
            }
        }
        Ok(())
    }

    /// Where a row has a limit the rows must be seen.
    pub(super) fn refuse_unread_rows(&self) -> Result<(), QueueError> {
        if self.shared.table.lock().spec.row_bytes_max.is_some() {
            let reason = "the rows' lengths are not known without the rows".to_owned();
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
    }

    pub(super) fn late(&self, what: &'static str) -> QueueError {
        let stats = self.stats();
        QueueError::Deadline {
            what: what.into(),
            partition: self.shared.name.clone(),
            state: format!(
                "rows={} of capacity={}, groups={}, leases={}",
                stats.rows, stats.capacity_rows, stats.groups, stats.leases
            ),
        }
    }
}

#[cfg(test)]
mod tests;
