//! What a consumer asks for.

mod sampler;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::error::QueueError;
use crate::row::RowHandle;

pub use sampler::{GroupSampler, ReadyGroup};

/// How much a take asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Single rows, whatever their groups.
    Rows(usize),
    /// Whole groups, all of whose rows are ready.
    Groups(usize),
    /// Whole groups until the next would exceed this many tokens, as the partition's
    /// [`length_columns`](crate::PartitionSpec::length_columns) count them; at least one.
    Tokens(u64),
}

/// In which order groups are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The order of the partition's [declaration](crate::PartitionSpec::order); oldest first if it has none.
    #[default]
    Declared,
    /// Oldest first.
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

/// What happens to groups whose policy version is below a take's
/// [`min_policy_version`](Take::min_policy_version).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stale {
    /// They stay, for other takes.
    #[default]
    Skip,
    /// Those that are not leased are freed, for every task, with the disposition `stale`.
    Drop,
    /// They are given like others; [`Lease::is_stale`](crate::Lease::is_stale) distinguishes them.
    Deliver,
}

/// One of several consumers that take a batch together.
///
/// When the first of them asks, the queue chooses and splits a batch of the whole amount. The shares of the
/// others wait under leases of their own until those expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The number of this data-parallel rank, from 0.
    pub rank: u32,
    /// Number of data-parallel ranks. Each gets other groups, with about as many tokens.
    pub ranks: u32,
    /// Whether all ranks get equally many groups; the remaining groups stay in the queue.
    #[serde(default)]
    pub equal_counts: bool,
    /// The number of this member of its rank, from 0.
    #[serde(default)]
    pub member: u32,
    /// Number of members of a rank (tensor- or pipeline-parallel). Each gets the same rows, which are
    /// consumed when all members have acked.
    #[serde(default = "one")]
    pub members: u32,
}

fn one() -> u32 {
    1
}

/// Maximum number of ranks that share a batch, and of members of a rank: it bounds the memory that a number
/// in a request can claim.
const CONSUMERS_MAX: u32 = 65_536;

/// Maximum size of a holder's name.
const HOLDER_BYTES_MAX: usize = 256;

impl Share {
    /// Rank `rank` of `ranks` with one member.
    pub fn of(rank: u32, ranks: u32) -> Self {
        Self { rank, ranks, equal_counts: false, member: 0, members: 1 }
    }

    fn is_sound(&self) -> bool {
        let is_bounded = self.ranks <= CONSUMERS_MAX && self.members <= CONSUMERS_MAX;
        is_bounded && self.rank < self.ranks && self.member < self.members
    }
}

/// What a consumer wants.
#[derive(Debug, Clone)]
pub struct Take {
    /// The task that takes.
    pub task: String,
    /// The maximum amount; that of all ranks together if there is a [`Share`].
    pub amount: Amount,
    /// Minimum number of groups, or of rows if the amount is in rows. A take waits until that many are ready
    /// or the puts have ended.
    pub at_least: usize,
    /// Only these columns; all if absent.
    pub columns: Option<Vec<String>>,
    /// Only these rows, and all of them; amount and order have no effect. The take waits until each is ready.
    pub only: Option<Vec<RowHandle>>,
    /// Groups whose oldest policy version is below this are stale.
    pub min_policy_version: u64,
    /// Groups whose oldest policy version is more versions than this below the partition's newest are stale
    /// too.
    pub max_staleness: Option<u64>,
    /// What happens to stale groups.
    pub stale: Stale,
    /// Which groups go first.
    pub sampler: Sampler,
    /// The part of a batch that several consumers take together; the whole if absent.
    pub share: Option<Share>,
    /// The consumer's name for itself, which inspection shows with its leases; at most 256 bytes.
    pub holder: Option<String>,
    /// The time until which the take waits; without it the take does not wait.
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

    /// Just these rows, for a task.
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

    /// The oldest version that is fresh when `newest` is the newest version.
    pub(crate) fn fresh_from(&self, newest: u64) -> u64 {
        let window = self.max_staleness.map_or(0, |most| newest.saturating_sub(most));
        self.min_policy_version.max(window)
    }

    /// The version below which nothing is given.
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

    /// At least this many groups or rows: one for each rank where several share them, so that none of them
    /// starves while the others take what comes.
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
