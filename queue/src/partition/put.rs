//! Putting rows.

use arrow_array::RecordBatch;
use tokio::time::Instant;

use super::Partition;
use super::admission::{Admitted, Incoming};
use super::write::Written;
use crate::config::ColumnSpec;
use crate::error::QueueError;
use crate::put::{Put, columns_of, labels, lengths_of};
use crate::record::{Label, PayloadRecord, PutRecord, Record};
use crate::row::RowHandle;
use crate::store::{Chunk, Note, Stored, payload_bytes};

/// Rows that a client has stored directly, with the properties that the queue needs.
pub(crate) struct PlacedRows {
    pub(crate) note: Note,
    pub(crate) rows: usize,
    pub(crate) columns: Vec<ColumnSpec>,
    pub(crate) lengths: Vec<u32>,
    /// The size of the payload in bytes.
    pub(crate) bytes: u64,
}

impl Partition {
    /// Puts rows. They are as durable as the partition declares. If there is no room, the partition's
    /// declaration decides what happens; a wait ends at `deadline`.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all. A put with a token can be repeated,
    /// even while the first put is in progress.
    pub async fn put(&self, put: Put, deadline: Option<Instant>) -> Result<Vec<RowHandle>, QueueError> {
        let incoming = self.incoming(&put)?;
        self.put_incoming(put, incoming, deadline).await
    }

    /// Checks whether the partition, as it is now, would accept a put. Changes nothing.
    pub(crate) fn check_put(&self, mut put: Put) -> Result<(), QueueError> {
        let incoming = self.incoming(&put)?;
        self.labels_of(&mut put, &incoming)?;
        self.shared.table.lock().admit(&put, incoming.rows, &incoming.columns)?;
        Chunk::new(put.batches).map(drop)
    }

    /// Computes the properties of a put that admission checks.
    fn incoming(&self, put: &Put) -> Result<Incoming, QueueError> {
        // Check first: a batch without payload may claim any number of rows, and later steps cost time for
        // each row.
        self.shared.table.lock().check_rows(put.rows())?;
        self.check_row_bytes(&put.batches)?;
        Ok(Incoming {
            columns: put.batches.first().map_or_else(Vec::new, |batch| columns_of(batch.schema_ref())),
            rows: put.rows(),
            kib: self.kib_of(&put.batches)?,
            lengths: self.lengths(&put.batches)?,
            note: None,
        })
    }

    /// Sets the size of a put's group, and returns the keys and tags of its rows.
    fn labels_of(&self, put: &mut Put, incoming: &Incoming) -> Result<Vec<Label>, QueueError> {
        if incoming.rows == 0 || incoming.columns.is_empty() {
            return Err(QueueError::Empty);
        }
        put.group_size = self.group_size(put, incoming.rows)?;
        labels(put, incoming.rows)
    }

    /// Puts rows whose payload a client has stored directly. Cancel-safe, like [`put`](Self::put).
    pub(crate) async fn put_placed(
        &self,
        put: Put,
        placed: PlacedRows,
        deadline: Option<Instant>,
    ) -> Result<Vec<RowHandle>, QueueError> {
        let PlacedRows { note, rows, columns, lengths, bytes } = placed;
        self.refuse_unread_rows()?;
        let counted = self.shared.table.lock().spec.length_columns.len();
        let (expected, found) = (if counted == 0 { 0 } else { rows }, lengths.len());
        if found != expected {
            let reason = format!("expected lengths={expected} of rows={rows}, found lengths={found}");
            return Err(QueueError::BadRequest { reason });
        }
        let kib = self.kib_of_bytes(bytes)?;
        let incoming = Incoming { columns, rows, kib, lengths, note: Some(note) };
        self.put_incoming(put, incoming, deadline).await
    }

    async fn put_incoming(
        &self,
        mut put: Put,
        incoming: Incoming,
        deadline: Option<Instant>,
    ) -> Result<Vec<RowHandle>, QueueError> {
        let labels = self.labels_of(&mut put, &incoming)?;
        let (reservation, handles) = match self.admit(&put, &incoming, deadline).await? {
            Admitted::Known(rows) => return Ok(rows),
            Admitted::Reserved(reservation, handles) => (reservation, handles),
        };
        let Incoming { columns, kib, lengths, note, .. } = incoming;
        let chunk = self.shared.new_chunk();
        let (stored, sizes) = match note {
            // The payload may have been lost while the put waited for room.
            Some(note) => (Stored::Noted(self.shared.plane.admit(note)?), None),
            None => {
                let rows = Chunk::new(put.batches)?;
                let stored = self.store_one(chunk, &rows, &put.group).await?;
                let sizes = stored.is_held().then(|| rows.sizes());
                (stored, sizes)
            }
        };
        let (payload, note) = stored.into_parts();
        let names = columns.into_iter().map(|column| column.name).collect();
        let put = PutRecord {
            partition: self.shared.name.clone(),
            group: put.group,
            group_size: put.group_size,
            group_gone: 0,
            in_parts: None,
            sample: put.sample,
            policy_version: put.policy_version,
            priority: put.priority,
            lengths,
            kib,
            labels,
            rows: handles.clone(),
            payload: PayloadRecord { chunk, note, columns: names, chunk_rows: Vec::new() },
            token: put.token,
            words: put.record,
        };
        let record = Record::Put(put.clone());
        let written = vec![Written { chunk, record, payload }];
        let types = reservation.new_columns().to_vec();
        let publish = move |durable: Result<(), QueueError>| {
            durable.and_then(|()| reservation.publish(put, sizes.as_ref()))
        };
        self.write(types, written, publish).await?;
        Ok(handles)
    }

    /// The group size of a put, or else the size that the partition declares, or else the number of rows, unless
    /// the group consists of samples.
    fn group_size(&self, put: &Put, rows: usize) -> Result<usize, QueueError> {
        let declared = self.shared.table.lock().spec.group_size;
        match declared {
            None if put.group_size > 0 => Ok(put.group_size),
            None if put.sample.is_none() => Ok(rows),
            None => {
                let reason = format!("group={} consists of samples, expected its group_size", put.group);
                Err(QueueError::BadRequest { reason })
            }
            Some(size) if put.group_size == 0 || put.group_size == size => Ok(size),
            Some(size) => {
                let found = put.group_size;
                let what = format!("group={} has group_size={found}, expected {size}", put.group);
                Err(QueueError::DeclaredOtherwise { name: self.shared.name.clone(), what })
            }
        }
    }

    /// The number of tokens of each row, in the columns whose tokens the partition counts. Empty if it counts
    /// none.
    fn lengths(&self, batches: &[RecordBatch]) -> Result<Vec<u32>, QueueError> {
        let counted = self.shared.table.lock().spec.length_columns.clone();
        if counted.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<_> =
            batches.iter().map(|batch| lengths_of(batch, &counted)).collect::<Result<_, _>>()?;
        Ok(lengths.concat())
    }

    /// The size of the batches in KiB, as the partition's `capacity_bytes` counts it. Returns 0 if
    /// `capacity_bytes` is not set.
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

    /// Refuses rows that exceed the partition's size limit.
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

    /// Refuses rows whose payload a client has stored directly, if the partition limits the size of rows: the
    /// queue does not read this payload.
    pub(super) fn refuse_unread_rows(&self) -> Result<(), QueueError> {
        if self.shared.table.lock().spec.row_bytes_max.is_some() {
            let reason =
                "expected rows with their payload, because the partition limits the size of rows".to_owned();
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
    }

    pub(super) fn late(&self, what: &'static str) -> QueueError {
        let stats = self.stats();
        let incomplete = stats.tasks.iter().filter(|task| task.incomplete_rows > 0);
        let incomplete = incomplete
            .map(|task| format!(", rows={} lack columns of task={}", task.incomplete_rows, task.task));
        QueueError::Deadline {
            what: what.into(),
            partition: self.shared.name.clone(),
            state: format!(
                "rows={} of capacity={}, groups={}, leases={}{}",
                stats.rows,
                stats.capacity_rows,
                stats.groups,
                stats.leases,
                incomplete.collect::<String>()
            ),
        }
    }
}
