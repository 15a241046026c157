//! The answers to a client's requests, and the leases and regions that the client holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::parcel::{Packed, Plan, is_large};
use super::pool::{RegionUse, Regions};
use super::protocol::{Ask, INLINE_BYTES_MAX, LeaseName, RoomAnswer, RowsPlace, TakeAnswer};
use crate::edges::wire::ipc;
use crate::edges::wire::{ColumnsQuery, PutAnswer, PutQuery, TakeBody};
use crate::tasks;
use crate::{Lease, Partition, Put, Queue, QueueError, TransferQueue};

/// The maximum number of regions that are lent to one client for its puts.
pub(super) const LOANS_MAX: usize = 256;
/// Streams of at most this size in bytes are decoded by the task that received them.
const DECODE_INLINE_BYTES_MAX: usize = 1 << 20;

/// The state that the conversations with all clients share.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) queue: TransferQueue,
    pub(super) regions: Regions,
    pub(super) regions_max: usize,
    pub(super) put_bytes_max: usize,
    /// Identifies this run of the server, so that leases of an earlier run are recognised.
    pub(super) life: u64,
    /// Ends waiting calls.
    pub(super) end: CancellationToken,
}

#[derive(Debug, Default)]
struct Held {
    /// Regions into which the client writes rows for its puts, by the call for which they were lent.
    loans: HashMap<u64, Arc<RegionUse>>,
    /// Leases by the call that took them. Dropping a lease gives its rows back.
    leases: HashMap<u64, Lease>,
    /// The regions that contain the rows of a take, by the call that took the rows.
    reading: HashMap<u64, Vec<Arc<RegionUse>>>,
    /// The numbers of regions that the client has mapped, and whether it may write to them.
    known: HashMap<u64, bool>,
}

/// The leases and regions of one client. The value is dropped when the connection has ended: the leases that
/// were not left to the client end, and the regions that the client was using are never lent again.
#[derive(Debug, Default)]
pub(super) struct Desk {
    held: Mutex<Held>,
}

/// An answer that is about to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) body: Box<RawValue>,
    pub(super) tail: Vec<u8>,
    /// Regions that the answer refers to, and whether the client may write to them.
    pub(super) regions: Vec<(Arc<RegionUse>, bool)>,
}

impl Reply {
    fn of(value: &impl Serialize) -> Result<Self, QueueError> {
        let body = to_raw_value(value).map_err(bad)?;
        Ok(Self { body, tail: Vec::new(), regions: Vec::new() })
    }
}

fn bad(reason: impl ToString) -> QueueError {
    QueueError::BadRequest { reason: reason.to_string() }
}

impl Desk {
    /// Lends a region to this client, if possible a region that the client has mapped.
    fn lend(&self, regions: &Regions, bytes: usize) -> Result<Arc<RegionUse>, QueueError> {
        let held = self.held.lock();
        let lent = regions.lend(bytes, |number| held.known.contains_key(&number));
        lent.map_err(QueueError::io("share memory", "memfd"))
    }

    /// Takes back the result of a cancelled call.
    pub(super) fn take_back(&self, call: u64) {
        let lease = self.held.lock().leases.remove(&call);
        drop(lease);
        self.release(call);
    }

    /// Takes back the regions of a call, which the client no longer uses.
    pub(super) fn release(&self, call: u64) {
        let released = {
            let mut held = self.held.lock();
            (held.loans.remove(&call), held.reading.remove(&call))
        };
        // This happens outside the lock, since it may free memory.
        drop(released);
    }

    /// Leaves the leases to the client, which may outlive this server.
    pub(super) fn leave_leases(&self) {
        let leases: Vec<_> = self.held.lock().leases.drain().collect();
        leases.into_iter().for_each(|(_, lease)| lease.disarm());
    }

    /// Returns those of the `regions` that the client has not mapped yet with the required access. From now
    /// on, these regions count as mapped.
    pub(super) fn learn(&self, regions: &[(Arc<RegionUse>, bool)]) -> Vec<(Arc<RegionUse>, bool)> {
        let mut held = self.held.lock();
        let is_new = |(lent, writable): &&(Arc<RegionUse>, bool)| match held.known.get(&lent.region.number) {
            Some(may_write) => *writable && !may_write,
            None => true,
        };
        let new: Vec<_> = regions.iter().filter(is_new).cloned().collect();
        held.known.extend(new.iter().map(|(lent, writable)| (lent.region.number, *writable)));
        new
    }

    /// Returns the freed regions that the client has mapped. From now on, these regions count as unmapped.
    pub(super) fn forget_gone(&self, regions: &Regions) -> Vec<u64> {
        let mut held = self.held.lock();
        let gone = regions.gone_of(held.known.keys());
        for number in &gone {
            held.known.remove(number);
        }
        gone
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let held = self.held.get_mut();
        held.loans.values().chain(held.reading.values().flatten()).for_each(|lent| lent.retire());
    }
}

impl Service {
    /// Executes a client's request. Cancel-safe, as the queue's own calls are.
    pub(super) async fn answer(
        &self,
        desk: &Arc<Desk>,
        id: u64,
        ask: Ask,
        tail: Bytes,
    ) -> Result<Reply, QueueError> {
        match ask {
            Ask::Declare(spec) => Reply::of(&self.queue.declare(spec).await?.spec()),
            Ask::Room { bytes } => self.room(desk, id, bytes),
            Ask::Put { partition, query, rows } => self.put(desk, &partition, query, rows, tail).await,
            Ask::WriteColumns { partition, rows, token, overwrite } => {
                let query = ColumnsQuery { token: Some(token), overwrite };
                self.write_columns(desk, &partition, rows, tail, query).await
            }
            Ask::Take { partition, take } => self.take(desk, id, &partition, take).await,
            Ask::Ack(name) => {
                let partition = self.leased(desk, &name)?;
                partition.ack_lease(name.lease, name.member).await?;
                Reply::of(&())
            }
            Ask::Nack(name) => {
                self.leased(desk, &name)?.nack_lease(name.lease)?;
                Reply::of(&())
            }
            Ask::Renew(name) => {
                self.partition_of(&name)?.renew_lease(name.lease)?;
                Reply::of(&())
            }
            Ask::Clear { partition, rows, token } => {
                self.queue.partition(&partition)?.clear_once(&rows, Some(token)).await?;
                Reply::of(&())
            }
            Ask::ClearAll { partition, token } => {
                Reply::of(&self.queue.partition(&partition)?.clear_all_once(Some(token)).await?)
            }
            Ask::EndSample { partition, sample } => {
                self.queue.partition(&partition)?.end_sample(&sample).await?;
                Reply::of(&())
            }
            Ask::CloseGroups { partition, older_than_ms, unfinished } => {
                let older_than = Duration::from_millis(older_than_ms);
                Reply::of(&self.queue.partition(&partition)?.close_groups(older_than, unfinished).await?)
            }
            Ask::Get { partition, rows, columns } => {
                let batches = self.queue.partition(&partition)?.get(&rows, columns.as_deref()).await?;
                Ok(Reply { tail: ipc::stream_of(&batches)?, ..Reply::of(&())? })
            }
            Ask::Find { partition, keys: Some(keys) } => {
                Reply::of(&self.queue.partition(&partition)?.find(&keys)?)
            }
            Ask::Find { partition, keys: None } => Reply::of(&self.queue.partition(&partition)?.keyed_rows()),
            Ask::SetTags { partition, tags } => {
                self.queue.partition(&partition)?.set_tags(tags).await?;
                Reply::of(&())
            }
            Ask::Reset { partition, task } => {
                Reply::of(&self.queue.partition(&partition)?.reset(&task).await?)
            }
            Ask::Announce { partition, policy_version } => {
                self.queue.partition(&partition)?.announce(policy_version).await?;
                Reply::of(&())
            }
            Ask::StatusAfter { partition, revision, wait_ms } => {
                let partition = self.queue.partition(&partition)?;
                let deadline = Instant::now() + Duration::from_millis(wait_ms);
                let waiting = async { Ok(partition.stats_after(revision, deadline).await) };
                Reply::of(&self.until_end(waiting).await?)
            }
            Ask::Names => Reply::of(&Queue::names(&self.queue).await?),
            Ask::EndOfPuts { partition } => {
                self.queue.partition(&partition)?.end().await?;
                Reply::of(&())
            }
            Ask::Status { partition } => Reply::of(&self.queue.partition(&partition)?.stats()),
            Ask::Inspect => Reply::of(&self.queue.inspect()),
        }
    }

    fn room(&self, desk: &Desk, id: u64, bytes: usize) -> Result<Reply, QueueError> {
        if bytes > self.put_bytes_max {
            return Err(QueueError::BodyTooLarge { bytes_max: self.put_bytes_max });
        }
        if desk.held.lock().loans.len() >= LOANS_MAX {
            return Err(bad(format!("more than loans_max={LOANS_MAX} regions for puts that are not done")));
        }
        let lent = desk.lend(&self.regions, bytes)?;
        let reply = Reply::of(&RoomAnswer { region: lent.region.number })?;
        desk.held.lock().loans.insert(id, Arc::clone(&lent));
        Ok(Reply { regions: vec![(lent, true)], ..reply })
    }

    /// Decodes the rows of a call. Rows in a region stay there, or are copied out if too many regions are in
    /// use.
    async fn rows(
        &self,
        desk: &Desk,
        rows_max: usize,
        place: RowsPlace,
        tail: Bytes,
    ) -> Result<RecordBatch, QueueError> {
        let (loan, length) = match place {
            // The rows get a separate allocation, in which they stay after the put.
            RowsPlace::Tail => {
                return ipc::one(&ipc::decode_batches(Bytes::copy_from_slice(&tail).into(), rows_max)?);
            }
            RowsPlace::Loan { id, length } => (id, length),
        };
        let lent = desk.held.lock().loans.get(&loan).cloned();
        let lent = lent.ok_or_else(|| bad(format!("call={loan} has lent no region")))?;
        let stream = lent.buffer(length).ok_or_else(|| bad("rows that are longer than their region"))?;
        // If more than `regions_max` regions are in use, rows are copied out, so that the numbers of open
        // files and mappings stay bounded.
        let copies = self.regions.stats().in_use > self.regions_max;
        let read = move || {
            let batch = ipc::one(&ipc::decode_batches(stream, rows_max)?)?;
            if copies { copied(&batch) } else { Ok(batch) }
        };
        if length <= DECODE_INLINE_BYTES_MAX {
            return read();
        }
        let reading = tasks::blocking("local read", read);
        reading.await.map_err(|_| bad("arrow stream: it cannot be read"))?
    }

    async fn put(
        &self,
        desk: &Desk,
        partition: &str,
        query: PutQuery,
        rows: RowsPlace,
        tail: Bytes,
    ) -> Result<Reply, QueueError> {
        let rows_max = self.queue.rows_max_of_put(partition)?;
        let batch = self.rows(desk, rows_max, rows, tail).await?;
        let (keys, batch) = ipc::split_keys(batch)?;
        let (tags, batch) = ipc::split_tags(batch)?;
        let deadline = Instant::now() + Duration::from_millis(query.wait_ms);
        let put = Put { keys, tags, ..query.into_put(vec![batch], None) };
        let handles = self.until_end(self.queue.put_into(partition, put, Some(deadline))).await?;
        settle(desk, rows);
        Reply::of(&PutAnswer { rows: handles })
    }

    async fn write_columns(
        &self,
        desk: &Desk,
        partition: &str,
        rows: RowsPlace,
        tail: Bytes,
        query: ColumnsQuery,
    ) -> Result<Reply, QueueError> {
        let partition = self.queue.partition(partition)?;
        let batch = self.rows(desk, partition.capacity_rows(), rows, tail).await?;
        let (handles, batch) = ipc::split_handles(batch)?;
        let ColumnsQuery { token, overwrite } = query;
        partition.write_columns_once(&handles, vec![batch], overwrite, token).await?;
        settle(desk, rows);
        Reply::of(&())
    }

    async fn take(
        &self,
        desk: &Arc<Desk>,
        id: u64,
        partition: &str,
        body: TakeBody,
    ) -> Result<Reply, QueueError> {
        let partition = self.queue.partition(partition)?;
        let take = body.into_take()?;
        let Some(lease) = self.until_end(partition.take(&take)).await? else {
            // A waiting take ends without rows only if no more rows can become ready.
            return Reply::of(&TakeAnswer::Nothing { ended: take.deadline.is_some() });
        };
        let (lease, packed) = self.pack(desk, lease).await?;
        let answer = TakeAnswer::Rows {
            life: self.life,
            lease: lease.id(),
            fresh_from: lease.fresh_from(),
            parcel: packed.parcel,
        };
        let reply = Reply::of(&answer)?;
        lease.record();
        let mut held = desk.held.lock();
        held.leases.insert(id, lease);
        if !packed.regions.is_empty() {
            held.reading.insert(id, packed.regions.clone());
        }
        let regions = packed.regions.into_iter().map(|lent| (lent, false)).collect();
        Ok(Reply { tail: packed.tail, regions, ..reply })
    }

    async fn pack(&self, desk: &Desk, mut lease: Lease) -> Result<(Lease, Packed), QueueError> {
        // The batches are moved out of the lease. Their memory is then held only while the client reads it,
        // even if the lease lasts longer.
        let batches = lease.take_batches();
        let plan = Plan::of(&batches, &self.regions)?;
        let room = match is_large(plan.rest.bytes) {
            true => Some(desk.lend(&self.regions, plan.rest.bytes)?),
            false => None,
        };
        let packed = plan.pack(&lease, room).await?;
        Ok((lease, packed))
    }

    /// Returns the partition of a lease. An earlier run of the server may have granted the lease: lease
    /// numbers are never used again, so the number still identifies this lease. A queue in memory has lost
    /// the partitions of the earlier run.
    fn partition_of(&self, name: &LeaseName) -> Result<Partition, QueueError> {
        self.queue.partition(&name.partition).map_err(|error| match name.life == self.life {
            true => error,
            false => QueueError::LeaseGone { lease: name.lease },
        })
    }

    /// Returns the partition of a lease that the client ends now. The lease is disarmed: from now on only the
    /// partition decides the outcome.
    fn leased(&self, desk: &Desk, name: &LeaseName) -> Result<Partition, QueueError> {
        let partition = self.partition_of(name)?;
        let lease = desk.held.lock().leases.remove(&name.take);
        if let Some(lease) = lease {
            lease.disarm();
        }
        Ok(partition)
    }

    /// Waits, but fails with `QueueError::Stopping` if the server ends first.
    async fn until_end<T>(
        &self,
        waiting: impl Future<Output = Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        self.end.run_until_cancelled(waiting).await.unwrap_or(Err(QueueError::Stopping))
    }
}

/// Ends the loan of the region that contained the rows of a completed put.
fn settle(desk: &Desk, rows: RowsPlace) {
    if let RowsPlace::Loan { id, .. } = rows {
        desk.release(id);
    }
}

fn copied(batch: &RecordBatch) -> Result<RecordBatch, QueueError> {
    let rows = u32::try_from(batch.num_rows()).map_err(bad)?;
    Ok(take_record_batch(batch, &UInt32Array::from_iter_values(0..rows))?)
}

const _: () = assert!(INLINE_BYTES_MAX <= DECODE_INLINE_BYTES_MAX);
