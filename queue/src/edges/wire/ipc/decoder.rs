//! Reading rows from an untrusted stream.
//!
//! # Invariants
//! - Arrow gets only whole messages that have passed [`check`], so it does not panic. If it still panics, the
//!   panic is caught and becomes an error.
//! - Memory is bounded by the bytes that have arrived.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::messages::{Message, Messages};
use super::recycled::Blocks;
use super::{bad, broken, check};
use crate::QueueError;

/// Reads the batches of a stream as its bytes arrive.
pub(crate) struct Decoder {
    messages: Messages,
    schema: Option<SchemaRef>,
    has_union: bool,
    dictionaries: HashMap<i64, ArrayRef>,
    rows: usize,
    rows_max: usize,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self::reading(Messages::new(None))
    }

    /// Creates a decoder whose batches are in blocks of memory that are reused after the batches are dropped.
    pub(crate) fn into_blocks(blocks: &Arc<Blocks>) -> Self {
        Self::reading(Messages::new(Some(Arc::clone(blocks))))
    }

    fn reading(messages: Messages) -> Self {
        let dictionaries = HashMap::new();
        Self { messages, schema: None, has_union: false, dictionaries, rows: 0, rows_max: usize::MAX }
    }

    /// Refuses streams with more than `rows_max` rows.
    pub(crate) fn rows_max(self, rows_max: usize) -> Self {
        Self { rows_max, ..self }
    }

    /// Passes each batch that these bytes complete to `take`. After an error, the rest of the stream cannot
    /// be read.
    pub(crate) fn feed(
        &mut self,
        bytes: impl Into<Buffer>,
        mut take: impl FnMut(RecordBatch) -> Result<(), QueueError>,
    ) -> Result<(), QueueError> {
        let mut bytes = bytes.into();
        while let Some(message) = self.messages.next(&mut bytes)? {
            if let Some(batch) = self.read(message)? {
                take(batch)?;
            }
        }
        Ok(())
    }

    /// Ends the stream. Returns an error if the stream is incomplete.
    pub(crate) fn finish(self) -> Result<(), QueueError> {
        match self.messages.is_even() {
            true => Ok(()),
            false => Err(bad("arrow stream: expected a whole message at its end")),
        }
    }

    /// The number of bytes that are kept for an incomplete message.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.messages.held_bytes()
    }

    fn read(&mut self, message: Message) -> Result<Option<RecordBatch>, QueueError> {
        let Message { head, body } = message;
        let message = check::message(&head)?;
        let absent = || bad("arrow stream: expected the contents of a message, found none");
        match message.header_type() {
            MessageHeader::Schema if self.schema.is_none() => {
                let schema = check::schema(message.header_as_schema().ok_or_else(absent)?)?;
                self.has_union = schema.fields().iter().any(|field| check::has_union(field.data_type()));
                self.schema = Some(Arc::new(schema));
                Ok(None)
            }
            MessageHeader::DictionaryBatch => {
                let dictionary = message.header_as_dictionary_batch().ok_or_else(absent)?;
                self.read_dictionary(dictionary, message.version(), body)?;
                Ok(None)
            }
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or_else(absent)?;
                self.read_batch(batch, message.version(), body).map(Some)
            }
            other => {
                let found = other.variant_name().unwrap_or("unknown");
                Err(bad(format!("arrow stream: expected one schema, dictionaries and rows, found {found}")))
            }
        }
    }

    fn schema(&self) -> Result<SchemaRef, QueueError> {
        self.schema.clone().ok_or_else(|| bad("arrow stream: expected a schema first"))
    }

    fn read_dictionary(
        &mut self,
        dictionary: arrow_ipc::DictionaryBatch<'_>,
        version: arrow_ipc::MetadataVersion,
        body: Buffer,
    ) -> Result<(), QueueError> {
        let schema = self.schema()?;
        if dictionary.isDelta() {
            return Err(bad("arrow stream: expected a whole dictionary, found a delta"));
        }
        let values = dictionary.data().ok_or_else(|| bad("arrow stream: expected values of a dictionary"))?;
        let dtype = check::dictionary_values(&schema, dictionary.id())?;
        let body = self.aligned(body);
        check::batch(values, std::iter::once(dtype), version, &body)?;
        guarded(|| read_dictionary(&body, dictionary, &schema, &mut self.dictionaries, &version))
    }

    fn read_batch(
        &mut self,
        batch: arrow_ipc::RecordBatch<'_>,
        version: arrow_ipc::MetadataVersion,
        body: Buffer,
    ) -> Result<RecordBatch, QueueError> {
        let schema = self.schema()?;
        let body = self.aligned(body);
        let types = schema.fields().iter().map(|field| -> &DataType { field.data_type() });
        check::batch(batch, types, version, &body)?;
        self.rows = self.rows.saturating_add(usize::try_from(batch.length()).unwrap_or(usize::MAX));
        if self.rows > self.rows_max {
            return Err(QueueError::TooLarge { rows: self.rows, capacity: self.rows_max });
        }
        guarded(|| read_record_batch(&body, batch, Arc::clone(&schema), &self.dictionaries, None, &version))
    }

    /// Arrow aligns buffers that are not aligned, except those of unions.
    fn aligned(&self, body: Buffer) -> Buffer {
        match self.has_union && body.as_ptr().align_offset(align_of::<u64>()) != 0 {
            true => Buffer::from_slice_ref(body.as_slice()),
            false => body,
        }
    }
}

/// Calls Arrow's reader with data that has been checked. Catching a panic is the last line of defence.
fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, QueueError> {
    let read = catch_unwind(AssertUnwindSafe(read));
    read.map_err(|_| bad("arrow stream: it cannot be read"))?.map_err(broken)
}

/// Decodes the batches of one stream. Their buffers are slices of the body.
pub(crate) fn decode_batches(body: Buffer, rows_max: usize) -> Result<Vec<RecordBatch>, QueueError> {
    let mut decoder = Decoder::new().rows_max(rows_max);
    let mut batches = Vec::new();
    decoder.feed(body, |batch| {
        batches.push(batch);
        Ok(())
    })?;
    decoder.finish()?;
    Ok(batches)
}
