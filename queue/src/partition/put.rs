//! Putting rows, and adding columns to rows that are there.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, UInt32Type};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Admission, Claim, Freed, Partition, Plane, RowHandle, Shared};
use crate::config::{ColumnSpec, OnFull};
use crate::journal::{PayloadRecord, PutRecord, Record, Recorder};
use crate::store::{encode, own_buffers};
use crate::{ChunkId, Durability, QueueError};

/// Rows of one group.
#[derive(Debug, Clone)]
pub struct Put {
    /// A row is a sample.
    pub batch: RecordBatch,
    /// The group; rows of several puts come together under the same one until it has its size.
    pub group: String,
    /// Rows of the whole group.
    pub group_size: usize,
    /// The oldest policy version of the rows.
    pub policy_version: u64,
    /// Greater goes first where a take asks for [`Sampler::Priority`](crate::Sampler::Priority); a group has the
    /// greatest of its puts.
    pub priority: i64,
    /// Makes a repetition of the same put harmless: it returns the rows of the first one.
    pub token: Option<String>,
    /// The owner's own words about this put, durable with it and read back by [`Partition::records`].
    pub record: Option<String>,
}

impl Put {
    /// A whole group.
    pub fn group(group: impl Into<String>, batch: RecordBatch) -> Self {
        let group_size = batch.num_rows();
        Self {
            batch,
            group: group.into(),
            group_size,
            policy_version: 0,
            priority: 0,
            token: None,
            record: None,
        }
    }
}

pub(crate) fn columns_of(batch: &RecordBatch) -> Vec<ColumnSpec> {
    let fields = batch.schema();
    let column = |field: &Arc<arrow::datatypes::Field>| ColumnSpec {
        name: field.name().clone(),
        dtype: field.data_type().clone(),
    };
    fields.fields().iter().map(column).collect()
}

/// Room that was granted; given back unless a claim takes it over.
struct Room {
    shared: Arc<Shared>,
    rows: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.room.add_permits(self.rows);
    }
}

/// What was set aside for a put; given back unless it is published.
struct Reservation {
    room: Room,
    claim: Option<Claim>,
}

impl Reservation {
    /// Makes the rows visible.
    fn publish(mut self, put: PutRecord) {
        self.claim = None;
        self.room.rows = 0;
        self.room.shared.table.lock().publish(put);
        self.room.shared.ready.notify_waiters();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.room.shared.table.lock().release(&claim);
            self.room.shared.ready.notify_waiters();
        }
    }
}

/// Columns that are about to be written; let go of when that has come to an end.
struct ColumnsReservation {
    shared: Arc<Shared>,
    rows: Vec<RowHandle>,
    columns: Vec<String>,
}

impl Drop for ColumnsReservation {
    fn drop(&mut self) {
        self.shared.table.lock().end_columns(&self.rows, &self.columns);
    }
}

/// Where a put goes on.
enum Admitted {
    Reserved(Reservation, Vec<RowHandle>),
    Known(Vec<RowHandle>),
}

impl Partition {
    /// Puts rows, as durably as the queue is. When there is no room the partition's declaration decides; waiting
    /// ends at `deadline`.
    ///
    /// Cancel-safe: the put happens whole or not at all; with a token it can be repeated, also while the first one is
    /// still on its way.
    pub async fn put(&self, put: Put, deadline: Option<Instant>) -> Result<Vec<RowHandle>, QueueError> {
        let columns = columns_of(&put.batch);
        if put.batch.num_rows() == 0 || columns.is_empty() {
            return Err(QueueError::Empty);
        }
        let (reservation, handles) = match self.admit(&put, &columns, deadline).await? {
            Admitted::Known(rows) => return Ok(rows),
            Admitted::Reserved(reservation, handles) => (reservation, handles),
        };
        let lengths = self.lengths(&put.batch)?;
        let batch = own_buffers(put.batch)?;
        let chunk = self.shared.new_chunk();
        let payload = self.payload(chunk, &batch).await?;
        let names = columns.into_iter().map(|column| column.name).collect();
        let put = PutRecord {
            partition: self.shared.name.clone(),
            group: put.group,
            group_size: put.group_size,
            group_gone: 0,
            policy_version: put.policy_version,
            priority: put.priority,
            lengths,
            rows: handles.clone(),
            payload: PayloadRecord { chunk, location: None, columns: names, chunk_rows: Vec::new() },
            token: put.token,
            words: put.record,
        };
        let record = Record::Put(put.clone());
        self.write(payload, record, chunk, move |durable| durable.map(|()| reservation.publish(put))).await?;
        Ok(handles)
    }

    /// Adds columns to rows that are there: row `i` of `batch` belongs to handle `i`.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub async fn write_columns(&self, rows: &[RowHandle], batch: RecordBatch) -> Result<(), QueueError> {
        if rows.is_empty() || rows.len() != batch.num_rows() {
            return Err(QueueError::Empty);
        }
        let columns = columns_of(&batch);
        self.shared.table.lock().begin_columns(rows, &columns)?;
        let names: Vec<String> = columns.into_iter().map(|column| column.name).collect();
        let reservation = ColumnsReservation {
            shared: Arc::clone(&self.shared),
            rows: rows.to_vec(),
            columns: names.clone(),
        };
        let batch = own_buffers(batch)?;
        let chunk = self.shared.new_chunk();
        let payload = self.payload(chunk, &batch).await?;
        let payload_record = PayloadRecord { chunk, location: None, columns: names, chunk_rows: Vec::new() };
        let record = Record::Columns {
            partition: self.shared.name.clone(),
            rows: rows.to_vec(),
            payload: payload_record.clone(),
        };
        let shared = Arc::clone(&self.shared);
        let publish = move |durable: Result<(), QueueError>| {
            let reservation = reservation;
            durable.map(|()| {
                let needed = {
                    let mut table = shared.table.lock();
                    table.add_columns(&reservation.rows, &payload_record);
                    table.needs(chunk)
                };
                if !needed {
                    // Every row was freed while the columns were on their way.
                    shared.plane.store().free(chunk);
                }
                shared.ready.notify_waiters();
            })
        };
        self.write(payload, record, chunk, publish).await
    }

    /// Tokens of each row: the lists' lengths and the numbers in the columns that the partition counts.
    fn lengths(&self, batch: &RecordBatch) -> Result<Vec<u32>, QueueError> {
        let counted = self.shared.table.lock().spec.length_columns.clone();
        let mut lengths = vec![0; if counted.is_empty() { 0 } else { batch.num_rows() }];
        for name in &counted {
            let Some(column) = batch.column_by_name(name) else { continue };
            let uncountable = || QueueError::WrongType {
                column: name.clone(),
                expected: "a list or a whole number, to count tokens by".to_owned(),
                found: column.data_type().to_string(),
            };
            let counts: ArrayRef = match column.data_type() {
                DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => length(column)?,
                dtype if dtype.is_integer() => Arc::clone(column),
                _ => return Err(uncountable()),
            };
            // A negative number becomes null, and counts for nothing.
            let counts = cast(&counts, &DataType::UInt32)?;
            for (length, count) in lengths.iter_mut().zip(counts.as_primitive::<UInt32Type>()) {
                *length = u32::saturating_add(*length, count.unwrap_or(0));
            }
        }
        Ok(lengths)
    }

    /// Checks a put and sets aside what it needs. What was checked before a wait is checked again after it.
    async fn admit(
        &self,
        put: &Put,
        columns: &[ColumnSpec],
        deadline: Option<Instant>,
    ) -> Result<Admitted, QueueError> {
        loop {
            let settled = self.shared.ready.notified();
            tokio::pin!(settled);
            // Registered before the table is read, so that no change between the two is missed.
            settled.as_mut().enable();
            let mut admission = self.shared.table.lock().admit(put, columns)?;
            if matches!(admission, Admission::Fresh) {
                let room = self.make_room(put.batch.num_rows(), deadline).await?;
                let mut table = self.shared.table.lock();
                admission = table.admit(put, columns)?;
                if matches!(admission, Admission::Fresh) {
                    table.learn_columns(columns);
                    let claim = table.reserve(put);
                    self.shared.check_table(&table);
                    let handles = claim.rows.clone();
                    return Ok(Admitted::Reserved(Reservation { room, claim: Some(claim) }, handles));
                }
            }
            match admission {
                Admission::Known(rows) => return Ok(Admitted::Known(rows)),
                // Either way the table is read again.
                _ => match deadline {
                    None => settled.await,
                    Some(deadline) => {
                        let waited = tokio::time::timeout_at(deadline, settled).await;
                        waited.map_err(|_| self.late("the first put of a token"))?;
                    }
                },
            }
        }
    }

    async fn make_room(&self, rows: usize, deadline: Option<Instant>) -> Result<Room, QueueError> {
        let shared = &self.shared;
        let closed = || QueueError::Closed { partition: shared.name.clone() };
        let (on_full, capacity) = {
            let table = shared.table.lock();
            (table.spec.on_full, table.spec.capacity_rows)
        };
        let permits = u32::try_from(rows).map_err(|_| QueueError::TooLarge { rows, capacity })?;
        match on_full {
            OnFull::Block => {
                let waiting = shared.room.acquire_many(permits);
                let granted = match deadline {
                    None => waiting.await,
                    Some(deadline) => {
                        tokio::time::timeout_at(deadline, waiting).await.map_err(|_| self.late("room"))?
                    }
                };
                granted.map_err(|_| closed())?.forget();
            }
            OnFull::Refuse => match shared.room.try_acquire_many(permits) {
                Ok(granted) => granted.forget(),
                Err(_) => return Err(QueueError::Full { partition: shared.name.clone(), capacity }),
            },
            OnFull::DropOldest => loop {
                if let Ok(granted) = shared.room.try_acquire_many(permits) {
                    granted.forget();
                    break;
                }
                let oldest = shared.table.lock().begin_drop();
                let Some(oldest) = oldest else {
                    return Err(QueueError::Full { partition: shared.name.clone(), capacity });
                };
                tracing::warn!(partition = %shared.name, rows = oldest.len(), "the partition is full; its oldest group is dropped");
                self.free(oldest, Freed::Dropped).await?;
            },
        }
        Ok(Room { shared: Arc::clone(shared), rows })
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

    /// The bytes for the disk, encoded off the I/O threads; or the chunk put into memory.
    async fn payload(&self, chunk: ChunkId, batch: &RecordBatch) -> Result<Option<Vec<u8>>, QueueError> {
        match &self.shared.plane {
            Plane::Memory(store) => {
                store.insert(chunk, batch.clone());
                Ok(None)
            }
            Plane::ReadOnly(_) => Err(QueueError::ReadOnly),
            Plane::Disk { .. } => {
                let batch = batch.clone();
                let encoding = tokio::task::spawn_blocking(move || encode(&batch));
                let encoded =
                    encoding.await.map_err(|error| QueueError::Arrow { reason: error.to_string() })?;
                encoded.map(Some)
            }
        }
    }

    /// Commits a record with payload; `apply` runs once it is durable, whoever still waits for it.
    async fn write(
        &self,
        payload: Option<Vec<u8>>,
        record: Record,
        chunk: ChunkId,
        apply: impl FnOnce(Result<(), QueueError>) -> Result<(), QueueError> + Send + 'static,
    ) -> Result<(), QueueError> {
        let plane = self.shared.plane.clone();
        let (reply, outcome) = oneshot::channel();
        let recorder: Recorder = Box::new(move |location| record.at(location));
        self.shared.commit(payload, recorder, move |durable| {
            let durable = durable.map(|location| {
                if let (Plane::Disk { store, .. }, Some(location)) = (&plane, location) {
                    store.insert(chunk, location);
                }
            });
            if durable.is_err() {
                plane.store().free(chunk);
            }
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(apply(durable));
        });
        if matches!(&self.shared.plane, Plane::Disk { durability: Durability::None, .. }) {
            return Ok(());
        }
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }
}
