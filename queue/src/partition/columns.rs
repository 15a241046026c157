//! Adding columns to rows that are there.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::{Admission, Partition, RowHandle, Shared};
use crate::QueueError;
use crate::journal::{PayloadRecord, Record};
use crate::partition::put::columns_of;
use crate::store::Chunk;

/// Columns that are about to be written; let go of when that has come to an end.
struct ColumnsReservation {
    shared: Arc<Shared>,
    rows: Vec<RowHandle>,
    columns: Vec<String>,
    token: Option<String>,
}

impl Drop for ColumnsReservation {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.end_columns(&self.rows, &self.columns);
        table.end_token(self.token.take(), None);
        self.shared.tell(&mut table);
    }
}

impl Partition {
    /// Adds columns to rows that are there: row `i` of `batch` belongs to handle `i`.
    ///
    /// Cancel-safe: it happens whole or not at all.
    pub async fn write_columns(&self, rows: &[RowHandle], batch: RecordBatch) -> Result<(), QueueError> {
        self.write_columns_once(rows, vec![batch], None).await
    }

    /// The same; repeating it with the same token changes nothing.
    pub(crate) async fn write_columns_once(
        &self,
        rows: &[RowHandle],
        batches: Vec<RecordBatch>,
        token: Option<String>,
    ) -> Result<(), QueueError> {
        let chunk_rows = Chunk::new(batches)?;
        if rows.is_empty() || rows.len() != chunk_rows.rows() {
            return Err(QueueError::Empty);
        }
        let columns = columns_of(chunk_rows.schema());
        self.check_row_bytes(chunk_rows.pieces())?;
        let kib = self.kib_of(chunk_rows.pieces())?;
        let is_fresh = self.begin_once(token.as_ref(), |table| table.begin_columns(rows, &columns)).await?;
        if !is_fresh {
            return Ok(());
        }
        let names: Vec<String> = columns.into_iter().map(|column| column.name).collect();
        let reservation = ColumnsReservation {
            shared: Arc::clone(&self.shared),
            rows: rows.to_vec(),
            columns: names.clone(),
            token: token.clone(),
        };
        let chunk = self.shared.new_chunk();
        let group = self.shared.table.lock().group_of(rows[0]);
        let (payload, unit) = self.payload(chunk, &chunk_rows, &group).await?;
        let payload_record =
            PayloadRecord { chunk, location: None, unit, columns: names, chunk_rows: Vec::new() };
        let record = Record::Columns {
            partition: self.shared.name.clone(),
            rows: rows.to_vec(),
            payload: payload_record.clone(),
            kib,
            token,
        };
        let shared = Arc::clone(&self.shared);
        let publish = move |durable: Result<(), QueueError>| {
            let mut reservation = reservation;
            durable.map(|()| {
                let needed = {
                    let mut table = shared.table.lock();
                    let charged = table.add_columns(&reservation.rows, &payload_record, kib);
                    shared.room.charge(charged);
                    shared.learn_place(&mut table, chunk, payload_record.unit.clone());
                    table.end_token(reservation.token.take(), Some(reservation.rows.clone()));
                    table.needs(chunk)
                };
                if !needed {
                    // Every row was freed while the columns were on their way.
                    shared.free_chunk(chunk);
                }
            })
        };
        self.write(payload, record, chunk, publish).await
    }

    /// Begins a change under the table's lock unless its token says that it was made before, which waits for one that is
    /// under way. Says whether it was begun.
    pub(super) async fn begin_once(
        &self,
        token: Option<&String>,
        begin: impl Fn(&mut super::Table) -> Result<(), QueueError>,
    ) -> Result<bool, QueueError> {
        loop {
            let settled = self.shared.changed.notified();
            tokio::pin!(settled);
            // Registered before the table is read, so that no change between the two is missed.
            settled.as_mut().enable();
            {
                let mut table = self.shared.table.lock();
                match table.token_state(token.map(String::as_str)) {
                    Admission::Known(_) => return Ok(false),
                    Admission::UnderWay => {}
                    Admission::Fresh => {
                        begin(&mut table)?;
                        table.begin_token(token);
                        return Ok(true);
                    }
                }
            }
            settled.await;
        }
    }
}
