//! The transfer of a lease's rows to the client: rows in regions are sent by reference, other rows as Arrow
//! IPC streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;

use super::array::{self, ArrayPlace, BufferPlace};
use super::fill::fill;
use super::pool::{RegionUse, Regions};
use super::protocol::{BatchPlace, INLINE_BYTES_MAX, Parcel, StreamPlace};
use crate::edges::wire::ipc::{self, Labelled};
use crate::store::needed_bytes;
use crate::{Lease, QueueError};

/// A batch with fewer bytes than this in regions is copied, because regions whose rows are sent by reference
/// cannot be used again until the client releases them.
const REFERENCE_BYTES_MIN: usize = 16 << 10;
/// Streams begin at multiples of this, so that their buffers are aligned for a client that reads them in
/// place.
const ALIGNMENT: usize = 64;

/// Consecutive Arrow IPC streams, as a list of buffers. Nothing is copied yet.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) buffers: Vec<Buffer>,
    places: Vec<StreamPlace>,
    /// The number of bytes in all buffers.
    pub(super) bytes: usize,
}

impl Streams {
    /// Encodes batches. Consecutive batches with the same columns share a stream.
    pub(super) fn of(batches: &[RecordBatch]) -> Result<Self, QueueError> {
        let mut streams = Self::default();
        for run in batches.chunk_by(|left, right| left.schema_ref() == right.schema_ref()) {
            let padding = streams.bytes.next_multiple_of(ALIGNMENT) - streams.bytes;
            streams.push(vec![Buffer::from(&[0_u8; ALIGNMENT][..padding])]);
            let at = streams.bytes;
            let mut encoder = StreamEncoder::try_new(run[0].schema_ref())?;
            for batch in run {
                streams.push(encoder.encode(batch)?);
            }
            streams.push(encoder.finish()?);
            streams.places.push(StreamPlace { at, length: streams.bytes - at });
        }
        Ok(streams)
    }

    fn push(&mut self, buffers: Vec<Buffer>) {
        self.bytes += buffers.iter().map(Buffer::len).sum::<usize>();
        self.buffers.extend(buffers);
    }

    /// Appends a copy of the streams to `tail`, for streams of few bytes.
    pub(super) fn append_to(&self, tail: &mut Vec<u8>) {
        tail.reserve(self.bytes);
        self.buffers.iter().for_each(|buffer| tail.extend_from_slice(buffer));
    }
}

/// A lease's rows, before anything is copied.
pub(super) struct Plan {
    schemas: Vec<SchemaRef>,
    batches: Vec<BatchPlace>,
    /// Columns that are in no region.
    pub(super) rest: Streams,
    regions: Used,
}

/// Regions by number.
type Used = BTreeMap<u64, Arc<RegionUse>>;

/// A lease's rows as they are sent.
pub(super) struct Packed {
    pub(super) parcel: Parcel,
    pub(super) tail: Vec<u8>,
    /// The regions that the client reads.
    pub(super) regions: Vec<Arc<RegionUse>>,
}

/// Returns the places of a batch's columns, and the regions that contain them.
fn describe(batch: &RecordBatch, regions: &Regions) -> Result<(Vec<Option<ArrayPlace>>, Used), QueueError> {
    let mut used = BTreeMap::new();
    let mut bytes = 0;
    let mut columns = Vec::with_capacity(batch.num_columns());
    for column in batch.columns() {
        let data = column.to_data();
        let place = array::describe(&data, &mut |buffer| {
            let (lent, at) = regions.find(buffer)?;
            let place = BufferPlace(lent.region.number, at, buffer.len());
            used.insert(lent.region.number, lent);
            Some(place)
        });
        if place.is_some() {
            bytes += needed_bytes(&data)?;
        }
        columns.push(place);
    }
    if bytes < REFERENCE_BYTES_MIN {
        return Ok((vec![None; batch.num_columns()], BTreeMap::new()));
    }
    Ok((columns, used))
}

impl Plan {
    pub(super) fn of(batches: &[RecordBatch], regions: &Regions) -> Result<Self, QueueError> {
        let mut plan = Self {
            schemas: Vec::new(),
            batches: Vec::new(),
            rest: Streams::default(),
            regions: BTreeMap::new(),
        };
        let mut rest_batches = Vec::new();
        for batch in batches {
            if plan.schemas.last() != Some(batch.schema_ref()) {
                plan.schemas.push(batch.schema());
            }
            let (columns, used) = describe(batch, regions)?;
            plan.regions.extend(used);
            let rest: Vec<usize> = (0..columns.len()).filter(|place| columns[*place].is_none()).collect();
            if !rest.is_empty() {
                rest_batches.push(batch.project(&rest)?);
            }
            let schema = plan.schemas.len() - 1;
            plan.batches.push(BatchPlace { schema, rows: batch.num_rows(), columns });
        }
        plan.rest = Streams::of(&rest_batches)?;
        Ok(plan)
    }

    /// Copies the columns that are in no region into `room`, or into the tail.
    ///
    /// Cancel-safe.
    pub(super) async fn pack(
        self,
        lease: &Lease,
        room: Option<Arc<RegionUse>>,
    ) -> Result<Packed, QueueError> {
        let labels = Streams::of(&[ipc::labels(lease)?])?;
        let mut tail = Vec::new();
        labels.append_to(&mut tail);
        match &room {
            None => self.rest.append_to(&mut tail),
            Some(room) => {
                fill(Arc::clone(&room.region.mapping), self.rest.buffers, Arc::clone(room)).await?;
            }
        }
        let parcel = Parcel {
            schemas: self.schemas.iter().map(|schema| Schema::clone(schema)).collect(),
            batches: self.batches,
            labels_length: labels.bytes,
            streams: self.rest.places,
            streams_region: room.as_ref().map(|room| room.region.number),
        };
        let regions = self.regions.into_values().chain(room).collect();
        Ok(Packed { parcel, tail, regions })
    }
}

/// Whether rows are too large to be sent through the socket.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > INLINE_BYTES_MAX
}

fn bad(reason: &str) -> QueueError {
    QueueError::BadRequest { reason: format!("rows of a take: {reason}") }
}

/// Returns the labels and the batches of a lease. Columns in regions are not copied.
pub(super) fn unpack(
    parcel: Parcel,
    tail: &Bytes,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<(Labelled, Vec<RecordBatch>), QueueError> {
    if tail.len() < parcel.labels_length {
        return Err(bad("no labels"));
    }
    let labels = ipc::split_labels(ipc::one(&ipc::decode_batches(
        tail.slice(..parcel.labels_length).into(),
        usize::MAX,
    )?)?)?;
    let streams = match parcel.streams_region {
        None => Buffer::from(tail.slice(parcel.labels_length..)),
        Some(number) => region(number).ok_or_else(|| bad("a region that is not known"))?,
    };
    let mut rest = Vec::new();
    for StreamPlace { at, length } in parcel.streams {
        let is_inside = at.checked_add(length).is_some_and(|end| end <= streams.len());
        if !is_inside {
            return Err(bad("a stream outside of its bytes"));
        }
        rest.extend(ipc::decode_batches(streams.slice_with_length(at, length), usize::MAX)?);
    }
    let schemas: Vec<SchemaRef> = parcel.schemas.into_iter().map(Arc::new).collect();
    let mut rest = rest.into_iter();
    let batches = parcel.batches.into_iter().map(|place| assemble(place, &schemas, &mut rest, region));
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    if rows == labels.rows.len() { Ok((labels, batches)) } else { Err(bad("labels of other rows")) }
}

fn assemble(
    place: BatchPlace,
    schemas: &[SchemaRef],
    rest: &mut impl Iterator<Item = RecordBatch>,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<RecordBatch, QueueError> {
    let schema = schemas.get(place.schema).ok_or_else(|| bad("no schema"))?;
    if schema.fields().len() != place.columns.len() {
        return Err(bad("columns of another schema"));
    }
    let sent = if place.columns.iter().any(Option::is_none) { rest.next() } else { None };
    let mut sent = sent.iter().flat_map(RecordBatch::columns);
    let columns = schema.fields().iter().zip(&place.columns).map(|(field, column)| match column {
        Some(column) => array::rebuild(field.data_type(), column, region),
        None => sent.next().cloned().ok_or_else(|| bad("a column is missing")),
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    // A batch without columns needs an explicit number of rows.
    let options = RecordBatchOptions::new().with_row_count(Some(place.rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
