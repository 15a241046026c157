//! The rows of a lease on their way to the client: by reference where they lie in regions, as streams where not.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;

use super::array::{self, ArrayPlace, BufferPlace};
use super::pool::{RegionUse, Regions};
use super::protocol::{BatchPlace, INLINE_BYTES_MAX, Parcel, StreamPlace};
use crate::mapped::Writer;
use crate::remote::ipc::{self, Labelled};
use crate::store::needed_bytes;
use crate::{Lease, QueueError};

/// Rows of a batch that are smaller than this in all are sent: a client that has them by reference keeps their regions
/// from being used again.
const REFERENCE_BYTES_MIN: usize = 16 << 10;
/// Streams begin at multiples of this, so that what is in them is aligned for whoever reads it in place.
const ALIGNMENT: usize = 64;

/// Counts what is written.
pub(super) struct Counted<W> {
    into: W,
    at: usize,
}

impl<W: Write> Counted<W> {
    pub(super) fn new(into: W) -> Self {
        Self { into, at: 0 }
    }

    fn align(&mut self) -> io::Result<()> {
        let padding = self.at.next_multiple_of(ALIGNMENT) - self.at;
        self.write_all(&[0; ALIGNMENT][..padding])
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.into.write(bytes)?;
        self.at += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// Writes batches, those that follow each other with the same columns as one stream.
fn write_streams<W: Write>(
    batches: &[RecordBatch],
    into: &mut Counted<W>,
) -> Result<Vec<StreamPlace>, QueueError> {
    let mut places = Vec::new();
    for run in batches.chunk_by(|left, right| left.schema_ref() == right.schema_ref()) {
        into.align().map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
        let at = into.at;
        let mut writer = StreamWriter::try_new(&mut *into, run[0].schema_ref())?;
        run.iter().try_for_each(|batch| writer.write(batch))?;
        writer.finish()?;
        drop(writer);
        places.push(StreamPlace { at, length: into.at - at });
    }
    Ok(places)
}

/// Writes one batch as a stream; says how long it is.
pub(super) fn write_stream<W: Write>(batch: &RecordBatch, into: W) -> Result<usize, QueueError> {
    let mut counted = Counted::new(into);
    write_streams(std::slice::from_ref(batch), &mut counted)?;
    Ok(counted.at)
}

/// How long a batch's stream is. Writing to nowhere costs nothing: arrow hands out the payload as it lies.
pub(super) fn stream_length(batch: &RecordBatch) -> Result<usize, QueueError> {
    write_stream(batch, io::sink())
}

/// A lease's rows, before anything is copied.
pub(super) struct Plan {
    schemas: Vec<SchemaRef>,
    batches: Vec<BatchPlace>,
    /// Columns that are in no region.
    rest: Vec<RecordBatch>,
    /// Bytes of the streams.
    pub(super) stream_bytes: usize,
    regions: Used,
}

/// Regions by number.
type Used = BTreeMap<u64, Arc<RegionUse>>;

/// What is sent.
pub(super) struct Packed {
    pub(super) parcel: Parcel,
    pub(super) tail: Vec<u8>,
    /// Those that the client reads.
    pub(super) regions: Vec<Arc<RegionUse>>,
}

/// The places of a batch's columns, and the regions that they are in.
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
            rest: Vec::new(),
            stream_bytes: 0,
            regions: BTreeMap::new(),
        };
        for batch in batches {
            if plan.schemas.last() != Some(batch.schema_ref()) {
                plan.schemas.push(batch.schema());
            }
            let (columns, used) = describe(batch, regions)?;
            plan.regions.extend(used);
            let rest: Vec<usize> = (0..columns.len()).filter(|place| columns[*place].is_none()).collect();
            if !rest.is_empty() {
                plan.rest.push(batch.project(&rest)?);
            }
            let schema = plan.schemas.len() - 1;
            plan.batches.push(BatchPlace { schema, rows: batch.num_rows(), columns });
        }
        let mut counted = Counted::new(io::sink());
        write_streams(&plan.rest, &mut counted)?;
        plan.stream_bytes = counted.at;
        Ok(plan)
    }

    /// Copies what is in no region into `room`, or into the tail.
    pub(super) fn pack(self, lease: &Lease, room: Option<Arc<RegionUse>>) -> Result<Packed, QueueError> {
        let mut tail = Counted::new(Vec::new());
        write_streams(&[ipc::labels(lease)?], &mut tail)?;
        let labels_length = tail.at;
        let mut tail = tail.into;
        let (streams, streams_region) = match &room {
            None => {
                let mut counted = Counted::new(&mut tail);
                (write_streams(&self.rest, &mut counted)?, None)
            }
            Some(room) => {
                let full = |error: io::Error| QueueError::Arrow { reason: error.to_string() };
                let mapping = &room.region.mapping;
                mapping.touch(self.stream_bytes).map_err(full)?;
                let mut counted = Counted::new(Writer::new(Arc::clone(mapping)).map_err(full)?);
                (write_streams(&self.rest, &mut counted)?, Some(room.region.number))
            }
        };
        let parcel = Parcel {
            schemas: self.schemas.iter().map(|schema| Schema::clone(schema)).collect(),
            batches: self.batches,
            labels_length,
            streams,
            streams_region,
        };
        let regions = self.regions.into_values().chain(room).collect();
        Ok(Packed { parcel, tail, regions })
    }
}

/// Whether rows had to be copied to be read off the I/O threads.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > INLINE_BYTES_MAX
}

fn bad(reason: &str) -> QueueError {
    QueueError::BadRequest { reason: format!("rows of a take: {reason}") }
}

/// Labels and batches of a lease, the batches without copying what lies in regions.
pub(super) fn unpack(
    parcel: Parcel,
    tail: &Bytes,
    region: &impl Fn(u64) -> Option<Buffer>,
) -> Result<(Labelled, Vec<RecordBatch>), QueueError> {
    if tail.len() < parcel.labels_length {
        return Err(bad("no labels"));
    }
    let labels =
        ipc::split_labels(ipc::one(&ipc::decode_batches(tail.slice(..parcel.labels_length).into())?)?)?;
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
        rest.extend(ipc::decode_batches(streams.slice_with_length(at, length))?);
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
    // Without columns there would be nothing to count the rows by.
    let options = RecordBatchOptions::new().with_row_count(Some(place.rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
