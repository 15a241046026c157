//! Routing policies. A policy decides which of the servers with room gets the next permit.
//!
//! | policy | the server that it chooses | when to use it |
//! |---|---|---|
//! | [`least_load`](crate::Policy::LeastLoad) | has the smallest share of its places taken | requests belong to no groups |
//! | [`power_of_two`](crate::Policy::PowerOfTwo) | is the less loaded of two drawn at random | several balancers share a fleet and would all choose one server |
//! | [`least_work`](crate::Policy::LeastWork) | has the fewest expected tokens outstanding | lengths are known to differ, or other clients use the fleet, too |
//! | [`group_affinity`](crate::Policy::GroupAffinity) | got the group's previous sample, else has the least load | the default: servers cache prefixes |
//! | [`weighted`](crate::Policy::Weighted) | would have the fewest samples for its speed | servers differ in speed |
//! | [`round_robin`](crate::Policy::RoundRobin), [`random`](crate::Policy::Random) | is next in turn; is any server | as a baseline |
//!
//! `rolldock-bench fleet` measures these policies. A policy reads an array with a few numbers for each
//! server ([`Candidates`]). If several servers are equally good, a policy that compares servers draws one of
//! them at random, so the index of a server gives no advantage.

mod affinity;
mod candidates;
mod least;
mod simple;

use std::fmt::Debug;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::server::ServerId;

use affinity::GroupAffinity;
pub use candidates::{Candidate, Candidates};
use least::{Cost, Least};
use simple::{PowerOfTwo, Random, RoundRobin};

/// The name of a routing policy. The table in the module documentation says when to use each policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The server with the smallest share of its places taken.
    LeastLoad,
    /// The less loaded of two servers drawn at random.
    PowerOfTwo,
    /// The server with the fewest expected tokens outstanding.
    LeastWork,
    /// The server that got the group's previous sample. If that server is too full, or the group has no
    /// previous sample, the least loaded server.
    #[default]
    GroupAffinity,
    /// The server that would have the fewest samples in proportion to the measured speed of one sample.
    Weighted,
    /// Each server in turn.
    RoundRobin,
    /// Any server with room, at random.
    Random,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 7] = [
        Self::LeastLoad,
        Self::PowerOfTwo,
        Self::LeastWork,
        Self::GroupAffinity,
        Self::Weighted,
        Self::RoundRobin,
        Self::Random,
    ];
}

/// When a group leaves its server for a less loaded one.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AffinityConfig {
    /// Load above which a server is too full for further samples of its groups. The load is
    /// [`Candidate::load`].
    pub load_max: f32,
    /// Multiple of the other servers' mean load above which a server is too full.
    pub ratio_max: f32,
    /// Load up to which `ratio_max` does not apply.
    pub load_min: f32,
}

impl Default for AffinityConfig {
    fn default() -> Self {
        Self { load_max: 0.9, ratio_max: 1.5, load_min: 0.25 }
    }
}

/// A request that needs a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Number of samples.
    pub weight: u32,
    /// Expected tokens of all samples together.
    pub tokens: u32,
    /// The group that the samples belong to.
    pub group: Option<u64>,
    /// The server of the group's previous sample. `None` if it is not known, or if the policy does not
    /// [keep groups together](RoutingPolicy::keeps_groups).
    pub home: Option<ServerId>,
    /// Number of samples of the group that one server should get in a row. After as many, the group has no server. With
    /// 0 the group has no preference, and its server stays that of its previous sample.
    pub in_a_row: u32,
    /// Servers that may not be chosen.
    pub avoid: &'a [ServerId],
}

impl Ask<'_> {
    /// Whether the server has room for the request and may be chosen.
    #[inline]
    pub fn fits(&self, candidate: &Candidate) -> bool {
        candidate.free >= self.weight
            && candidate.free_tokens >= self.tokens
            && (self.avoid.is_empty() || !self.avoid.contains(&candidate.server))
    }
}

/// A rule for choosing a server. The balancer calls it under its lock, so it must not block.
pub trait RoutingPolicy: Send + Debug + 'static {
    /// The index of a server that [fits](Ask::fits) the request; `None` if there is none.
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize>;

    /// Whether the samples of a group should run on one server. If so, a server that gets room while requests wait
    /// serves its own groups first, within a bound, and the policy is not asked.
    fn keeps_groups(&self) -> bool {
        false
    }
}

/// The policy of this name; `affinity` is for [`Policy::GroupAffinity`].
pub(crate) fn of(policy: Policy, affinity: AffinityConfig) -> Box<dyn RoutingPolicy> {
    match policy {
        Policy::LeastLoad => Box::new(Least::new(Cost::Load)),
        Policy::LeastWork => Box::new(Least::new(Cost::Work)),
        Policy::Weighted => Box::new(Least::new(Cost::SamplesBySpeed)),
        Policy::PowerOfTwo => Box::new(PowerOfTwo::default()),
        Policy::RoundRobin => Box::new(RoundRobin::default()),
        Policy::Random => Box::new(Random::default()),
        Policy::GroupAffinity => Box::new(GroupAffinity::new(affinity)),
    }
}

#[cfg(test)]
mod tests;
