//! Taking rows under a lease.

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Freed, Lease, Partition, RowHandle};
use crate::QueueError;

/// How much a take asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Single rows, whatever their groups.
    Rows(usize),
    /// Whole groups, all of whose rows are ready.
    Groups(usize),
    /// Whole groups until the next would exceed so many tokens, as the partition's
    /// [`length_columns`](crate::PartitionSpec::length_columns) count them; at least one.
    Tokens(u64),
}

/// In which order groups are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// Oldest first.
    #[default]
    Fifo,
    /// Greatest priority first, and the oldest of those.
    Priority,
    /// Newest policy version first, and the newest group of those.
    Freshest,
    /// In an order that the seed and the number of takes before decide.
    Random {
        /// The seed.
        seed: u64,
    },
}

/// What becomes of groups whose policy version is below a take's
/// [`min_policy_version`](Take::min_policy_version).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// They stay, for other takes.
    #[default]
    Skip,
    /// Those that nobody holds are freed, for every task, with the disposition `stale`.
    Drop,
    /// They are given like others; [`Lease::policy_versions`] tells them apart.
    Deliver,
}

/// One of several consumers that take a batch together.
///
/// The first of them to ask has a batch of the whole amount chosen and split; the shares of the others wait for them
/// under leases of their own, as long as those last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Which data-parallel rank this is, from 0.
    pub rank: u32,
    /// Data-parallel ranks: each gets other groups, with about as many tokens.
    pub ranks: u32,
    /// Whether each rank gets as many groups; those that are over stay.
    #[serde(default)]
    pub equal_counts: bool,
    /// Which member of its rank this is, from 0.
    #[serde(default)]
    pub member: u32,
    /// Members of a rank (tensor- or pipeline-parallel): each gets the same rows, and they are consumed when all have
    /// acked.
    #[serde(default = "one")]
    pub members: u32,
}

fn one() -> u32 {
    1
}

impl Share {
    /// Rank `rank` of `ranks` with one member.
    pub fn of(rank: u32, ranks: u32) -> Self {
        Self { rank, ranks, equal_counts: false, member: 0, members: 1 }
    }

    fn is_sound(&self) -> bool {
        self.rank < self.ranks && self.member < self.members
    }
}

/// What a consumer wants.
#[derive(Debug, Clone)]
pub struct Take {
    /// As whom.
    pub task: String,
    /// At most so much; of all ranks together where there is a [`Share`].
    pub amount: Amount,
    /// At least so many groups, or rows where the amount is in rows; a take waits until there is that much, or the end
    /// of puts.
    pub at_least: usize,
    /// Only these columns; all if absent.
    pub columns: Option<Vec<String>>,
    /// Groups whose oldest policy version is below this are stale.
    pub min_policy_version: u64,
    /// What becomes of stale groups.
    pub stale: Stale,
    /// Which groups go first.
    pub sampler: Sampler,
    /// The part of a batch that several consumers take together; the whole if absent.
    pub share: Option<Share>,
    /// Until when to wait; absent means not at all.
    pub deadline: Option<Instant>,
}

impl Take {
    fn of(task: impl Into<String>, amount: Amount) -> Self {
        Self {
            task: task.into(),
            amount,
            at_least: 1,
            columns: None,
            min_policy_version: 0,
            stale: Stale::default(),
            sampler: Sampler::default(),
            share: None,
            deadline: None,
        }
    }

    /// Up to `count` whole groups for a task, at least one.
    pub fn groups(task: impl Into<String>, count: usize) -> Self {
        Self::of(task, Amount::Groups(count))
    }

    /// Up to `count` rows for a task, at least one.
    pub fn rows(task: impl Into<String>, count: usize) -> Self {
        Self::of(task, Amount::Rows(count))
    }

    /// Whole groups of up to `budget` tokens for a task, at least one.
    pub fn tokens(task: impl Into<String>, budget: u64) -> Self {
        Self::of(task, Amount::Tokens(budget))
    }

    /// Waits until `deadline`.
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The version below which nothing is given.
    pub(crate) fn enforced_version(&self) -> u64 {
        if self.stale == Stale::Deliver { 0 } else { self.min_policy_version }
    }

    fn check(&self) -> Result<(), QueueError> {
        let most = match self.amount {
            Amount::Rows(count) | Amount::Groups(count) => count,
            Amount::Tokens(_) => usize::MAX,
        };
        if self.at_least == 0 || most < self.at_least {
            return Err(QueueError::Empty);
        }
        let Some(share) = &self.share else { return Ok(()) };
        if !share.is_sound() || (share.equal_counts && most < share.ranks as usize) {
            let reason = format!(
                "expected rank below ranks, member below members, and with equal_counts a group for each rank; found \
                 {share:?}"
            );
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
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
        take.check()?;
        if take.stale == Stale::Drop {
            self.drop_stale(take).await?;
        }
        let member = take.share.map_or(0, |share| share.member);
        loop {
            let ready = self.shared.ready.notified();
            tokio::pin!(ready);
            // Registered before the table is read, so that no change between the two is missed.
            ready.as_mut().enable();
            let (next_expiry, over) = match self.try_take(take)? {
                Attempt::Leased { lease, rows } => {
                    return self.lease_of(lease, member, rows, take.columns.as_deref()).await.map(Some);
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

    /// Frees what is too old for the take.
    async fn drop_stale(&self, take: &Take) -> Result<(), QueueError> {
        let rows = {
            let mut table = self.shared.table.lock();
            let task = table.task(&take.task)?;
            table.begin_drop_stale(task, take.min_policy_version)
        };
        if rows.is_empty() {
            return Ok(());
        }
        tracing::debug!(partition = %self.shared.name, rows = rows.len(), min_policy_version = take.min_policy_version, "stale rows are dropped");
        self.free(rows, Freed::Stale).await
    }

    /// Leases what is there.
    fn try_take(&self, take: &Take) -> Result<Attempt, QueueError> {
        self.shared.check_is_there()?;
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
        if let Some(share) = &take.share
            && let Some((lease, rows)) = table.next_share(task, share)
        {
            return Ok(Attempt::Leased { lease, rows });
        }
        let over = table.closed && !table.may_become_ready(task);
        let nothing = Attempt::Nothing { next_expiry, over };
        let Some(chosen) = table.choose(task, take, over) else { return Ok(nothing) };
        let expires = now + table.spec.lease();
        let Some(share) = &take.share else {
            let rows = chosen.rows();
            let lease = table.lease(task, rows.clone(), expires);
            return Ok(Attempt::Leased { lease, rows });
        };
        table.split(task, chosen, share, expires);
        let ours = table.next_share(task, share);
        drop(table);
        // The others' shares are there now.
        self.shared.ready.notify_waiters();
        Ok(ours.map_or(nothing, |(lease, rows)| Attempt::Leased { lease, rows }))
    }
}
