//! The rows of validations, in their own partition. A trainer never gets these rows. A run never waits for a
//! consumer of these rows: only the rows of the last validations are kept, and older rows are removed. The rows
//! that an earlier process of the run has put are removed only when the partition is full.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rolldock_queue::{OnFull, Partition, PartitionSpec, Put, QueueError, RowHandle, TransferQueue};

use crate::recipe::VALIDATION;
use crate::rollout::Group;
use crate::rows::group_rows;

/// The number of validations whose rows are kept.
const KEPT: usize = 8;
/// The maximum number of rows in the partition. If there are more, the oldest groups are dropped.
const ROWS_MAX: usize = 65_536;

/// The partition of validation rows. Clones share it.
#[derive(Clone)]
pub(super) struct ValidationRows {
    partition: Partition,
    /// The groups of each validation of this process of the run, oldest first.
    kept: Arc<Mutex<VecDeque<Vec<Vec<RowHandle>>>>>,
}

impl ValidationRows {
    /// Declares the partition.
    pub(super) async fn open(queue: &TransferQueue) -> Result<Self, QueueError> {
        let spec = PartitionSpec::new(VALIDATION, [VALIDATION], ROWS_MAX);
        let partition = queue.declare(PartitionSpec { on_full: OnFull::DropOldest, ..spec }).await?;
        Ok(Self { partition, kept: Arc::default() })
    }

    /// Puts the groups of the validation after `step`, and removes the rows of the oldest validation if more
    /// than [`KEPT`] are kept.
    pub(super) async fn put(&self, step: u64, groups: &[Group]) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        let mut outcome = Ok(());
        for group in groups {
            match self.put_group(step, group).await {
                Ok(handles) => rows.push(handles),
                Err(error) => outcome = Err(error),
            }
        }
        let oldest = {
            let mut kept = self.kept.lock();
            kept.push_back(rows);
            if kept.len() > KEPT { kept.pop_front() } else { None }
        };
        for group in oldest.into_iter().flatten() {
            if let Err(error) = self.partition.clear(&group).await {
                // A consumer has taken some of these rows. The others are dropped when the partition is full.
                tracing::debug!(step, %error, "the rows of a group of an old validation stay");
            }
        }
        outcome
    }

    async fn put_group(&self, step: u64, group: &Group) -> anyhow::Result<Vec<RowHandle>> {
        let name = format!("step-{step}-{}", group.prompt.uid);
        let batch = group_rows(group)?;
        let put = Put {
            group_size: batch.num_rows(),
            policy_version: group.policy_version_min(),
            // With the token, a validation that is repeated after a restart puts no rows twice.
            token: Some(name.clone()),
            ..Put::group(name, batch)
        };
        Ok(self.partition.put(put, None).await?)
    }

    /// Tells the queue that there will be no more validations.
    pub(super) fn end_of_puts(&self) {
        self.partition.end_of_puts();
    }
}
