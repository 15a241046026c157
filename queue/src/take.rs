//! The request of a consumer.

mod sampler;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::error::QueueError;
use crate::row::RowHandle;

pub use sampler::{GroupSampler, ReadyGroup};

/// The amount that a take requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Single rows of any group.
    Rows(usize),
    /// Complete groups whose rows are all ready.
    Groups(usize),
    /// Complete groups, in order, as long as they fit into this many tokens, but at least one group. The
    /// partition's [`length_columns`](crate::PartitionSpec::length_columns) count the tokens.
    Tokens(u64),
}

/// The order in which groups are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The order that the [partition declares](crate::PartitionSpec::order), or oldest first if it declares
    /// no order.
    #[default]
    Declared,
    /// Oldest first.
    Fifo,
    /// Greatest priority first; among equal priorities, oldest first.
    Priority,
    /// Newest policy version first; among equal versions, newest group first.
    Freshest,
    /// A pseudorandom order, which depends on the seed and the number of earlier takes.
    Random {
        /// The seed.
        seed: u64,
    },
}

/// What happens to groups whose policy version is below a take's
/// [`min_policy_version`](Take::min_policy_version).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// The groups stay for other takes.
    #[default]
    Skip,
    /// The complete groups whose rows are ready or acked for every task are freed, with the disposition
    /// `stale`.
    Drop,
    /// The groups are delivered like fresh groups. [`Lease::is_stale`](crate::Lease::is_stale) identifies
    /// them.
    Deliver,
}

/// One of several consumers that take a batch together.
///
/// When the first consumer takes, the queue chooses a batch of the whole amount and splits it. The shares of
/// the other consumers are held under separate leases until these consumers take them or the leases expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The number of this consumer's data-parallel rank, from 0.
    pub rank: u32,
    /// The number of data-parallel ranks. Each rank gets different groups, with about equally many tokens.
    pub ranks: u32,
    /// Whether all ranks get equally many groups; the remaining groups stay in the queue.
    #[serde(default)]
    pub equal_counts: bool,
    /// The number of this member within its rank, from 0.
    #[serde(default)]
    pub member: u32,
    /// The number of members of a rank (tensor- or pipeline-parallel). All members get the same rows, which
    /// are consumed when all members have acked.
    #[serde(default = "one")]
    pub members: u32,
}

fn one() -> u32 {
    1
}

/// The maximum number of ranks that share a batch, and of members of a rank. It bounds the memory that a
/// request can claim.
const CONSUMERS_MAX: u32 = 65_536;

/// The maximum length of a holder's name, in bytes.
const HOLDER_BYTES_MAX: usize = 256;

impl Share {
    /// The share of rank `rank` of `ranks`, with one member per rank.
    pub fn of(rank: u32, ranks: u32) -> Self {
        Self { rank, ranks, equal_counts: false, member: 0, members: 1 }
    }

    fn is_sound(&self) -> bool {
        let is_bounded = self.ranks <= CONSUMERS_MAX && self.members <= CONSUMERS_MAX;
        is_bounded && self.rank < self.ranks && self.member < self.members
    }
}

/// The request of a consumer for rows.
#[derive(Debug, Clone)]
pub struct Take {
    /// The task that takes rows.
    pub task: String,
    /// The maximum amount. With a [`Share`] it is the amount of all ranks together.
    pub amount: Amount,
    /// The minimum number of groups, or of rows if the amount is in rows. The take waits until that many are
    /// ready or the puts have ended.
    pub at_least: usize,
    /// The columns to return. If absent, all columns are returned.
    pub columns: Option<Vec<String>>,
    /// Takes exactly these rows. The take waits until each is ready. Amount and order have no effect.
    pub only: Option<Vec<RowHandle>>,
    /// Groups whose oldest policy version is less than this are stale.
    pub min_policy_version: u64,
    /// The maximum lag of a group's oldest policy version behind the newest version of the partition. Groups
    /// that lag more are stale too.
    pub max_staleness: Option<u64>,
    /// What happens to stale groups.
    pub stale: Stale,
    /// The order in which groups are taken.
    pub sampler: Sampler,
    /// This consumer's part of a batch that several consumers take together. If absent, the consumer gets the
    /// whole batch.
    pub share: Option<Share>,
    /// The name that the consumer gives itself, at most 256 bytes. Inspection shows it with the consumer's
    /// leases.
    pub holder: Option<String>,
    /// The time until which the take waits. If absent, the take does not wait.
    pub deadline: Option<Instant>,
}

impl Take {
    fn of(task: impl Into<String>, amount: Amount) -> Self {
        Self {
            task: task.into(),
            amount,
            at_least: 1,
            columns: None,
            only: None,
            min_policy_version: 0,
            max_staleness: None,
            stale: Stale::default(),
            sampler: Sampler::default(),
            share: None,
            holder: None,
            deadline: None,
        }
    }

    /// Takes up to `count` complete groups for a task, at least one group.
    pub fn groups(task: impl Into<String>, count: usize) -> Self {
        Self::of(task, Amount::Groups(count))
    }

    /// Takes up to `count` rows for a task, at least one row.
    pub fn rows(task: impl Into<String>, count: usize) -> Self {
        Self::of(task, Amount::Rows(count))
    }

    /// Takes complete groups of up to `budget` tokens for a task, at least one group.
    pub fn tokens(task: impl Into<String>, budget: u64) -> Self {
        Self::of(task, Amount::Tokens(budget))
    }

    /// Takes exactly these rows for a task.
    pub fn only(task: impl Into<String>, rows: Vec<RowHandle>) -> Self {
        let amount = Amount::Rows(rows.len());
        Self { only: Some(rows), ..Self::of(task, amount) }
    }

    /// Sets the holder's name.
    pub fn held_by(self, holder: impl Into<String>) -> Self {
        Self { holder: Some(holder.into()), ..self }
    }

    /// Makes the take wait until `deadline`.
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The oldest policy version that is fresh when `newest` is the newest version.
    pub(crate) fn fresh_from(&self, newest: u64) -> u64 {
        let window = self.max_staleness.map_or(0, |most| newest.saturating_sub(most));
        self.min_policy_version.max(window)
    }

    /// The policy version below which no group is delivered.
    pub(crate) fn enforced_version(&self, newest: u64) -> u64 {
        if self.stale == Stale::Deliver { 0 } else { self.fresh_from(newest) }
    }

    /// The maximum number of groups, or of rows if the amount is in rows.
    fn most(&self) -> usize {
        match self.amount {
            Amount::Rows(count) | Amount::Groups(count) => count,
            Amount::Tokens(_) => usize::MAX,
        }
    }

    /// The number of groups or rows that must be ready. If ranks share a batch, it is at least one for each
    /// rank, so that no rank is left without rows.
    pub(crate) fn enough(&self) -> usize {
        let ranks = self.share.map_or(1, |share| share.ranks as usize);
        self.at_least.max(ranks.min(self.most()))
    }

    pub(crate) fn check(&self) -> Result<(), QueueError> {
        let most = self.most();
        if self.only.is_some() && self.share.is_some() {
            let reason = "expected given rows or a share, found both".to_owned();
            return Err(QueueError::BadRequest { reason });
        }
        if let Some(holder) = self.holder.as_ref().filter(|holder| holder.len() > HOLDER_BYTES_MAX) {
            let reason =
                format!("expected a holder of at most {HOLDER_BYTES_MAX} bytes, found {}", holder.len());
            return Err(QueueError::BadRequest { reason });
        }
        if self.at_least == 0 || most < self.at_least {
            return Err(QueueError::Empty);
        }
        let Some(share) = &self.share else { return Ok(()) };
        if !share.is_sound() || (share.equal_counts && most < share.ranks as usize) {
            let reason = format!(
                "expected rank below ranks, member below members, each at most {CONSUMERS_MAX}, and with equal_counts a \
                 group for each rank; found {share:?}"
            );
            return Err(QueueError::BadRequest { reason });
        }
        Ok(())
    }
}
