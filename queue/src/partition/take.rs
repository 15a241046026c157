//! Taking rows under a lease.

use tokio::time::Instant;

use super::{Lease, Partition, RowHandle};
use crate::QueueError;

/// How much a take asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Single rows, whatever their groups.
    Rows(usize),
    /// Whole groups, all of whose rows are ready.
    Groups(usize),
}

/// What a consumer wants.
#[derive(Debug, Clone)]
pub struct Take {
    /// As whom.
    pub task: String,
    /// At most so much.
    pub amount: Amount,
    /// At least so much of it; a take waits until there is that much, or the end of puts.
    pub at_least: usize,
    /// Only these columns; all if absent.
    pub columns: Option<Vec<String>>,
    /// Only groups whose oldest policy version is at least this.
    pub min_policy_version: u64,
    /// Until when to wait; absent means not at all.
    pub deadline: Option<Instant>,
}

impl Take {
    /// Up to `count` whole groups for a task, at least one.
    pub fn groups(task: impl Into<String>, count: usize) -> Self {
        Self {
            task: task.into(),
            amount: Amount::Groups(count),
            at_least: 1,
            columns: None,
            min_policy_version: 0,
            deadline: None,
        }
    }

    /// Up to `count` rows for a task, at least one.
    pub fn rows(task: impl Into<String>, count: usize) -> Self {
        Self { amount: Amount::Rows(count), ..Self::groups(task, count) }
    }

    /// Waits until `deadline`.
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }
}

/// What one look at the table gave.
enum Attempt {
    Leased {
        lease: u64,
        rows: Vec<RowHandle>,
    },
    Nothing {
        next_expiry: Option<Instant>,
        /// Nothing ever will be ready.
        over: bool,
    },
}

impl Partition {
    /// Takes ready rows, oldest first, under a lease. `None`: nothing is ready now (without a deadline), or nothing
    /// ever will be (after the end of puts).
    ///
    /// Cancel-safe: rows that were leased for a dropped take are given back. Takers wait without holding anything
    /// that others need.
    pub async fn take(&self, take: &Take) -> Result<Option<Lease>, QueueError> {
        let (Amount::Rows(count) | Amount::Groups(count)) = take.amount;
        if count == 0 || take.at_least > count {
            return Err(QueueError::Empty);
        }
        loop {
            let ready = self.shared.ready.notified();
            tokio::pin!(ready);
            // Registered before the table is read, so that no change between the two is missed.
            ready.as_mut().enable();
            let (next_expiry, over) = match self.try_take(take, count)? {
                Attempt::Leased { lease, rows } => {
                    return self.lease_of(lease, rows, take.columns.as_deref()).await.map(Some);
                }
                Attempt::Nothing { next_expiry, over } => (next_expiry, over),
            };
            let Some(deadline) = take.deadline.filter(|_| !over) else { return Ok(None) };
            if Instant::now() >= deadline {
                return Err(self.late("a ready group"));
            }
            let wake_at = next_expiry.map_or(deadline, |expiry| expiry.min(deadline));
            // Either way the table is read again.
            let _ = tokio::time::timeout_at(wake_at, ready).await;
        }
    }

    /// Leases what is there.
    fn try_take(&self, take: &Take, count: usize) -> Result<Attempt, QueueError> {
        let mut table = self.shared.table.lock();
        let task = table.task(&take.task)?;
        if let Some(columns) = &take.columns
            && let Some(unknown) = columns
                .iter()
                .find(|column| !table.columns.is_empty() && !table.columns.contains_key(*column))
        {
            return Err(QueueError::UnknownColumn {
                partition: self.shared.name.clone(),
                column: unknown.clone(),
            });
        }
        let now = Instant::now();
        let next_expiry = table.expire(now);
        let over = table.closed && !table.may_become_ready(task);
        let (available, rows) = match take.amount {
            Amount::Rows(_) => {
                let rows = table.ready_rows(task, count, take.min_policy_version);
                (rows.len(), rows)
            }
            Amount::Groups(_) => {
                let enough =
                    take.min_policy_version > 0 || table.ready_group_count(task) >= take.at_least || over;
                let rows = if enough {
                    table.ready_groups(task, count, take.min_policy_version)
                } else {
                    Vec::new()
                };
                let mut groups: Vec<u64> =
                    rows.iter().filter_map(|row| table.row(*row).ok()).map(|row| row.group).collect();
                groups.dedup();
                (groups.len(), rows)
            }
        };
        if rows.is_empty() || (available < take.at_least && !over) {
            return Ok(Attempt::Nothing { next_expiry, over });
        }
        let expires = now + table.spec.lease();
        let lease = table.lease(task, rows.clone(), expires);
        Ok(Attempt::Leased { lease, rows })
    }
}
