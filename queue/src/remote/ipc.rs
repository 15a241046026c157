//! Rows as Arrow IPC streams.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::buffer::Buffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;

use crate::export::conform;
use crate::{Lease, QueueError, RowHandle};

/// The column with a row's handle: generation above slot, 32 bits each.
pub const HANDLE: &str = "_handle";
/// The column with a row's group.
pub const GROUP: &str = "_group";
/// The column with the oldest policy version of a row's group.
pub const POLICY_VERSION: &str = "_policy_version";

fn bad(reason: impl ToString) -> QueueError {
    QueueError::BadRequest { reason: reason.to_string() }
}

fn number(handle: RowHandle) -> u64 {
    u64::from(handle.generation) << 32 | u64::from(handle.slot)
}

fn handle(number: u64) -> RowHandle {
    RowHandle { slot: number as u32, generation: (number >> 32) as u32 }
}

/// Rows are sent in pieces of about this size: they stay in the caches and need no large buffer on either side.
const PIECE_BYTES: usize = 1 << 20;

/// How many rows of a batch make a piece.
pub(super) fn rows_of_a_piece(batch: &RecordBatch) -> usize {
    (batch.num_rows() * PIECE_BYTES / encoded_bytes(batch)).max(1)
}

/// Reads the batches of a stream from whatever arrives of it.
pub(super) struct Decoder(StreamDecoder);

impl Decoder {
    pub(super) fn new() -> Self {
        Self(StreamDecoder::new())
    }

    /// Gives the batches that are whole now to `take`.
    pub(super) fn feed(
        &mut self,
        bytes: impl Into<Buffer>,
        mut take: impl FnMut(RecordBatch) -> Result<(), QueueError>,
    ) -> Result<(), QueueError> {
        let mut buffer: Buffer = bytes.into();
        loop {
            // The reader takes a stream's lengths on trust, and panics where one leads out of its buffer.
            let read = catch_unwind(AssertUnwindSafe(|| self.0.decode(&mut buffer)));
            let read = read.map_err(|_| bad("arrow stream: its lengths lead out of its bytes"))?;
            let Some(batch) = read.map_err(broken)? else { return Ok(()) };
            take(batch)?;
        }
    }

    /// The stream has to be whole.
    pub(super) fn finish(mut self) -> Result<(), QueueError> {
        self.0.finish().map_err(broken)
    }
}

fn broken(error: arrow::error::ArrowError) -> QueueError {
    bad(format!("arrow stream: {error}"))
}

/// The batches of one stream. Their buffers are cuts of the body.
pub(crate) fn decode_batches(body: Buffer) -> Result<Vec<RecordBatch>, QueueError> {
    let mut decoder = Decoder::new();
    let mut batches = Vec::new();
    decoder.feed(body, |batch| {
        batches.push(batch);
        Ok(())
    })?;
    decoder.finish()?;
    Ok(batches)
}

/// The rows of a body: the batches of one stream, as one. Their buffers are cuts of the body.
pub(crate) fn decode(body: Bytes) -> Result<RecordBatch, QueueError> {
    decode_buffer(body.into())
}

/// The same of a body that lies anywhere.
pub(crate) fn decode_buffer(body: Buffer) -> Result<RecordBatch, QueueError> {
    let batches = decode_batches(body)?;
    match batches.as_slice() {
        [] => Err(QueueError::Empty),
        [batch] => Ok(batch.clone()),
        [first, ..] => Ok(concat_batches(&first.schema(), &batches)?),
    }
}

/// About what a batch takes on the wire: growing to it would copy it again.
fn encoded_bytes(batch: &RecordBatch) -> usize {
    let payload = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0));
    payload.sum::<usize>() + 256 * batch.num_columns() + 1024
}

/// Encodes batches one at a time.
pub(super) struct Encoder {
    writer: StreamWriter<Vec<u8>>,
}

impl Encoder {
    pub(super) fn new(schema: &Schema) -> Result<Self, QueueError> {
        Ok(Self { writer: StreamWriter::try_new(Vec::new(), schema)? })
    }

    /// The bytes up to the end of the batch.
    pub(super) fn batch(&mut self, batch: &RecordBatch) -> Result<Bytes, QueueError> {
        self.writer.get_mut().reserve(encoded_bytes(batch));
        self.writer.write(batch)?;
        Ok(std::mem::take(self.writer.get_mut()).into())
    }

    /// The bytes of the stream's end.
    pub(super) fn end(mut self) -> Result<Bytes, QueueError> {
        self.writer.finish()?;
        Ok(std::mem::take(self.writer.get_mut()).into())
    }
}

/// A whole stream of one batch.
pub(super) fn encode(batch: &RecordBatch) -> Result<Bytes, QueueError> {
    let mut writer = StreamWriter::try_new(Vec::with_capacity(encoded_bytes(batch)), &batch.schema())?;
    writer.write(batch)?;
    Ok(writer.into_inner()?.into())
}

/// Every column that any of the batches has; those that some lack may be null.
pub(crate) fn common_schema(batches: &[RecordBatch]) -> SchemaRef {
    let Some(first) = batches.first() else { return Arc::new(Schema::empty()) };
    let schema = first.schema();
    if batches.iter().all(|batch| batch.schema() == schema) {
        return schema;
    }
    let mut fields: Vec<Field> = Vec::new();
    for field in batches.iter().flat_map(|batch| batch.schema_ref().fields()) {
        if !fields.iter().any(|known| known.name() == field.name()) {
            fields.push(field.as_ref().clone().with_nullable(true));
        }
    }
    Arc::new(Schema::new(fields))
}

/// The batch in `schema`, with the handle and the group of each row.
pub(super) fn labelled(
    batch: &RecordBatch,
    schema: &SchemaRef,
    lease: &Lease,
    rows: std::ops::Range<usize>,
) -> Result<RecordBatch, QueueError> {
    let conformed = if batch.schema_ref() == schema { batch.clone() } else { conform(batch, schema)? };
    let mut columns = label_columns(lease, rows);
    columns.extend(conformed.columns().iter().cloned());
    Ok(RecordBatch::try_new(labelled_schema(schema), columns)?)
}

fn label_columns(lease: &Lease, rows: std::ops::Range<usize>) -> Vec<ArrayRef> {
    vec![
        Arc::new(UInt64Array::from_iter_values(lease.rows()[rows.clone()].iter().copied().map(number))),
        Arc::new(StringArray::from_iter_values(&lease.groups()[rows.clone()])),
        Arc::new(UInt64Array::from_iter_values(lease.policy_versions()[rows].iter().copied())),
    ]
}

/// The labels of all rows of a lease, as a batch of their own.
pub(crate) fn labels(lease: &Lease) -> Result<RecordBatch, QueueError> {
    let columns = label_columns(lease, 0..lease.rows().len());
    Ok(RecordBatch::try_new(labelled_schema(&Schema::empty()), columns)?)
}

pub(super) fn labelled_schema(schema: &Schema) -> SchemaRef {
    let labels = [(HANDLE, DataType::UInt64), (GROUP, DataType::Utf8), (POLICY_VERSION, DataType::UInt64)];
    let mut fields = labels.map(|(name, dtype)| Arc::new(Field::new(name, dtype, false))).to_vec();
    fields.extend(schema.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

/// Takes the handles out of a batch.
pub(crate) fn split_handles(mut batch: RecordBatch) -> Result<(Vec<RowHandle>, RecordBatch), QueueError> {
    let missing = || bad(format!("expected a column {HANDLE} of type UInt64 without nulls"));
    let place = batch.schema_ref().index_of(HANDLE).map_err(|_| missing())?;
    let column = batch.remove_column(place);
    let numbers = column.as_primitive_opt::<UInt64Type>().filter(|numbers| numbers.null_count() == 0);
    let handles = numbers.ok_or_else(missing)?.values().iter().copied().map(handle).collect();
    Ok((handles, batch))
}

/// A taken batch and what its rows are.
pub(crate) struct Labelled {
    pub(crate) rows: Vec<RowHandle>,
    pub(crate) groups: Vec<String>,
    pub(crate) policy_versions: Vec<u64>,
    pub(crate) batch: RecordBatch,
}

/// Takes the labels out of a taken batch.
pub(crate) fn split_labels(batch: RecordBatch) -> Result<Labelled, QueueError> {
    let (rows, mut batch) = split_handles(batch)?;
    let unversioned = || bad(format!("expected a column {POLICY_VERSION} of type UInt64"));
    let place = batch.schema_ref().index_of(POLICY_VERSION).map_err(|_| unversioned())?;
    let column = batch.remove_column(place);
    let policy_versions = column.as_primitive_opt::<UInt64Type>().ok_or_else(unversioned)?.values().to_vec();
    let missing = || bad(format!("expected a column {GROUP} of type Utf8"));
    let place = batch.schema_ref().index_of(GROUP).map_err(|_| missing())?;
    let column = batch.remove_column(place);
    let groups = column.as_string_opt::<i32>().ok_or_else(missing)?;
    let groups = groups.iter().map(|group| group.unwrap_or_default().to_owned()).collect();
    Ok(Labelled { rows, groups, policy_versions, batch })
}

/// The batch with a column of handles in front.
pub(crate) fn with_handles(rows: &[RowHandle], batch: &RecordBatch) -> Result<RecordBatch, QueueError> {
    let mut fields = vec![Arc::new(Field::new(HANDLE, DataType::UInt64, false))];
    fields.extend(batch.schema_ref().fields().iter().cloned());
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(UInt64Array::from_iter_values(rows.iter().copied().map(number)))];
    columns.extend(batch.columns().iter().cloned());
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Refuses columns whose names the wire format uses.
pub(crate) fn check_names(batch: &RecordBatch) -> Result<(), QueueError> {
    let reserved = batch
        .schema_ref()
        .fields()
        .iter()
        .find(|field| [HANDLE, GROUP, POLICY_VERSION].contains(&field.name().as_str()));
    match reserved {
        None => Ok(()),
        Some(field) => Err(bad(format!("column={} is a name that the wire format uses", field.name()))),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, ListArray};
    use arrow::datatypes::Int32Type;
    use proptest::prelude::*;

    use super::*;

    fn stream() -> Vec<u8> {
        let ids = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            None,
            Some(vec![]),
        ]);
        let words = StringArray::from(vec![Some("a"), None, Some("ccc")]);
        let rewards = Float32Array::from(vec![1.0, -1.0, 0.5]);
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("ids", Arc::new(ids) as ArrayRef, true),
            ("words", Arc::new(words) as ArrayRef, true),
            ("reward", Arc::new(rewards) as ArrayRef, false),
        ]);
        encode(&batch.unwrap()).unwrap().to_vec()
    }

    #[test]
    fn a_stream_cut_anywhere_is_an_error() {
        let whole = stream();
        assert_eq!(decode(whole.clone().into()).unwrap().num_rows(), 3);
        // The last eight bytes are the end's mark, which may be left out.
        for length in 0..whole.len() - 8 {
            let cut = decode(Bytes::copy_from_slice(&whole[..length]));
            assert!(cut.is_err(), "{length} of {} bytes", whole.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn damaged_streams_end_in_rows_or_an_error(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
        ) {
            let mut bytes = stream();
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            // Whatever comes out, reading it is safe.
            if let Ok(batch) = decode(bytes.into()) {
                let words = format!("{batch:?}");
                prop_assert!(words.len() > 10);
            }
        }

        #[test]
        fn any_bytes_end_in_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(bytes.into()).is_err());
        }
    }
}
