//! Puts by the name of a partition. If [`create_on_put`](crate::QueueConfig::create_on_put) is set, a put to
//! a missing partition creates the partition.
//!
//! # Invariant
//! A put that is refused creates nothing: its partition is declared only after an empty partition with that
//! declaration was found to accept the put.

use tokio::time::Instant;

use super::TransferQueue;
use crate::config::PartitionSpec;
use crate::error::QueueError;
use crate::partition::{Partition, Table};
use crate::put::Put;
use crate::row::RowHandle;

/// If the queue has this many partitions, a put creates no more.
const MADE_ON_PUT_MAX: usize = 1024;
/// The maximum length of the name of a partition that a put creates, in bytes.
const MADE_NAME_BYTES_MAX: usize = 256;

/// The existing partition of a put, or the declaration with which the put creates it.
enum Destination {
    There(Partition),
    /// The declaration with which the put creates its partition.
    Missing(Box<PartitionSpec>),
}

fn check_name(name: &str) -> Result<(), QueueError> {
    let is_name = !name.is_empty()
        && name.len() <= MADE_NAME_BYTES_MAX
        && !name.starts_with('_')
        && !name.chars().any(|letter| letter.is_control() || letter == '/');
    if is_name {
        return Ok(());
    }
    let reason = format!(
        "expected a name of at most {MADE_NAME_BYTES_MAX} bytes without a leading _, slashes and control \
         characters for a partition that a put makes, found {name:?}"
    );
    Err(QueueError::BadRequest { reason })
}

impl TransferQueue {
    /// Puts rows into a partition, as [`Partition::put`] does. If the partition does not exist, the put
    /// creates it as [`put_spec`](crate::QueueConfig::put_spec) declares; a put that is refused creates
    /// nothing.
    ///
    /// Cancel-safe: a dropped call takes effect completely or not at all. An empty partition may remain if
    /// the call is dropped after the put was accepted.
    pub async fn put_into(
        &self,
        name: &str,
        put: Put,
        deadline: Option<Instant>,
    ) -> Result<Vec<RowHandle>, QueueError> {
        let partition = match self.destination(name)? {
            Destination::There(found) => found,
            Destination::Missing(spec) => {
                self.check_first_put(&spec, put.clone())?;
                self.declare_for_put(*spec).await?
            }
        };
        partition.put(put, deadline).await
    }

    /// The maximum number of rows of a put into a partition, or an error if a put cannot create the
    /// partition. It lets callers refuse a put before they decode its rows.
    pub(crate) fn rows_max_of_put(&self, name: &str) -> Result<usize, QueueError> {
        Ok(match self.destination(name)? {
            Destination::There(found) => found.capacity_rows(),
            Destination::Missing(spec) => spec.capacity_rows,
        })
    }

    fn destination(&self, name: &str) -> Result<Destination, QueueError> {
        let (unknown, spec) = match (self.partition(name), &self.inner.put_spec) {
            (Ok(found), _) => return Ok(Destination::There(found)),
            (Err(unknown), None) => return Err(unknown),
            (Err(unknown), Some(spec)) => (unknown, spec),
        };
        if self.inner.log.is_read_only() {
            return Err(unknown);
        }
        check_name(name)?;
        if self.inner.partitions.lock().len() >= MADE_ON_PUT_MAX {
            let reason =
                format!("puts make at most partitions_max={MADE_ON_PUT_MAX}; declare partition={name}");
            return Err(QueueError::BadRequest { reason });
        }
        Ok(Destination::Missing(Box::new(PartitionSpec { name: name.to_owned(), ..spec.clone() })))
    }

    /// Checks whether an empty partition with this declaration would accept the put.
    fn check_first_put(&self, spec: &PartitionSpec, put: Put) -> Result<(), QueueError> {
        Partition::from_table(Table::new(spec.clone()), self.home()).check_put(put)
    }

    async fn declare_for_put(&self, spec: PartitionSpec) -> Result<Partition, QueueError> {
        let name = spec.name.clone();
        match self.declare(spec).await {
            // Another call declared the partition in the meantime.
            Err(QueueError::DeclaredOtherwise { .. }) => self.partition(&name),
            outcome => outcome,
        }
    }
}
