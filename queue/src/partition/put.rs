//! Putting rows, and adding columns to rows that are there.

use std::sync::Arc;

use arrow::array::RecordBatch;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Freed, Partition, Plane, RowHandle, Shared};
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
    /// Makes a repetition of the same put harmless: it returns the rows of the first one.
    pub token: Option<String>,
    /// The owner's own words about this put, durable with it and read back by [`Partition::records`].
    pub record: Option<String>,
}

impl Put {
    /// A whole group.
    pub fn group(group: impl Into<String>, batch: RecordBatch) -> Self {
        let group_size = batch.num_rows();
        Self { batch, group: group.into(), group_size, policy_version: 0, token: None, record: None }
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

/// Rows that were set aside; given back unless they are published.
struct Reservation {
    shared: Arc<Shared>,
    rows: Vec<RowHandle>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        self.shared.table.lock().release(&self.rows);
        self.shared.room.add_permits(self.rows.len());
        self.shared.ready.notify_waiters();
    }
}

impl Partition {
    /// Puts rows, as durably as the queue is. When there is no room the partition's declaration decides; waiting
    /// ends at `deadline`.
    ///
    /// Cancel-safe: the put happens whole or not at all; with a token it can be repeated.
    pub async fn put(&self, put: Put, deadline: Option<Instant>) -> Result<Vec<RowHandle>, QueueError> {
        let count = put.batch.num_rows();
        let columns = columns_of(&put.batch);
        if count == 0 || columns.is_empty() {
            return Err(QueueError::Empty);
        }
        if let Some(known) = self.check(&put, &columns)? {
            return Ok(known);
        }
        self.make_room(count, deadline).await?;
        let batch = own_buffers(put.batch)?;
        let reservation = {
            let mut table = self.shared.table.lock();
            // Somebody may have changed the columns or the group while this put waited for room.
            let checked = table
                .check_columns(&columns)
                .and_then(|()| table.check_group(&put.group, put.group_size, count));
            if let Err(error) = checked {
                drop(table);
                self.shared.room.add_permits(count);
                return Err(error);
            }
            table.learn_columns(&columns);
            let rows = table.reserve(count);
            self.shared.check_table(&table);
            Reservation { shared: Arc::clone(&self.shared), rows }
        };
        let handles = reservation.rows.clone();
        let chunk = self.shared.new_chunk();
        let payload = self.payload(chunk, &batch).await?;
        let names = columns.into_iter().map(|column| column.name).collect();
        let put = PutRecord {
            partition: self.shared.name.clone(),
            group: put.group,
            group_size: put.group_size,
            group_gone: 0,
            policy_version: put.policy_version,
            rows: handles.clone(),
            payload: PayloadRecord { chunk, location: None, columns: names, chunk_rows: Vec::new() },
            token: put.token,
            words: put.record,
        };
        let record = Record::Put(put.clone());
        let publish = move |mut reservation: Reservation| {
            reservation.rows.clear();
            reservation.shared.table.lock().publish(put);
            reservation.shared.ready.notify_waiters();
        };
        self.write(payload, record, chunk, move |durable| durable.map(|()| publish(reservation))).await?;
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
        {
            let mut table = self.shared.table.lock();
            table.check_columns(&columns)?;
            for handle in rows {
                let row = table.row(*handle)?;
                let present = |name: &str| {
                    row.parts.iter().any(|part| part.columns.iter().any(|column| column == name))
                };
                if let Some(twice) = columns.iter().find(|column| present(&column.name)) {
                    return Err(QueueError::ColumnExists { column: twice.name.clone() });
                }
            }
            table.learn_columns(&columns);
        }
        let batch = own_buffers(batch)?;
        let chunk = self.shared.new_chunk();
        let payload = self.payload(chunk, &batch).await?;
        let names = columns.into_iter().map(|column| column.name).collect();
        let payload_record = PayloadRecord { chunk, location: None, columns: names, chunk_rows: Vec::new() };
        let record = Record::Columns {
            partition: self.shared.name.clone(),
            rows: rows.to_vec(),
            payload: payload_record.clone(),
        };
        let shared = Arc::clone(&self.shared);
        let handles = rows.to_vec();
        let publish = move |durable: Result<(), QueueError>| {
            durable.map(|()| {
                let needed = {
                    let mut table = shared.table.lock();
                    table.add_columns(&handles, &payload_record);
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

    fn check(&self, put: &Put, columns: &[ColumnSpec]) -> Result<Option<Vec<RowHandle>>, QueueError> {
        let table = self.shared.table.lock();
        let rows = put.batch.num_rows();
        if let Some(known) = put.token.as_deref().and_then(|token| table.known_token(token)) {
            return Ok(Some(known));
        }
        if table.closed {
            return Err(QueueError::Closed { partition: self.shared.name.clone() });
        }
        if rows > table.spec.capacity_rows {
            return Err(QueueError::TooLarge { rows, capacity: table.spec.capacity_rows });
        }
        table.check_columns(columns)?;
        table.check_group(&put.group, put.group_size, rows)?;
        Ok(None)
    }

    async fn make_room(&self, rows: usize, deadline: Option<Instant>) -> Result<(), QueueError> {
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
                let oldest = shared.table.lock().oldest_unheld_group();
                let Some(oldest) = oldest else {
                    return Err(QueueError::Full { partition: shared.name.clone(), capacity });
                };
                tracing::warn!(partition = %shared.name, rows = oldest.len(), "the partition is full; its oldest group is dropped");
                self.free(oldest, Freed::Dropped).await?;
            },
        }
        Ok(())
    }

    pub(super) fn late(&self, what: &'static str) -> QueueError {
        let stats = self.stats();
        QueueError::Deadline {
            what,
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
            // Nobody waits any more when the caller was cancelled.
            let _ = reply.send(apply(durable));
        });
        if matches!(&self.shared.plane, Plane::Disk { durability: Durability::None, .. }) {
            return Ok(());
        }
        outcome.await.unwrap_or(Err(QueueError::Closed { partition: self.shared.name.clone() }))
    }
}
