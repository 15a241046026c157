//! Choosing among the servers with room.
//!
//! | policy | chooses | use it when |
//! |---|---|---|
//! | [`least_load`](crate::Policy::LeastLoad) | the smallest share of its places taken | requests belong to no groups |
//! | [`power_of_two`](crate::Policy::PowerOfTwo) | the less loaded of two at random | several balancers share a fleet and would herd |
//! | [`least_work`](crate::Policy::LeastWork) | the fewest expected tokens outstanding | lengths are known to differ, or others use the fleet too |
//! | [`group_affinity`](crate::Policy::GroupAffinity) | where the group's first sample went, else least load | the default: servers cache prefixes |
//! | [`weighted`](crate::Policy::Weighted) | the most tokens a second for a further sample | servers differ in speed |
//! | [`round_robin`](crate::Policy::RoundRobin), [`random`](crate::Policy::Random) | in turn; any | as a baseline |
//!
//! `bench/` has the measurements behind this table (`rolldock-bench fleet`). A policy is one pass over a few numbers for
//! each server, which lie next to each other; ties are drawn, so that no server is favoured for its place in a list.

mod affinity;
mod least;
mod simple;

use std::fmt::Debug;

use rand_chacha::ChaCha8Rng;

use crate::{BalancerConfig, Policy, ServerId};

use affinity::GroupAffinity;
use least::{Least, Measure};
use simple::{PowerOfTwo, Random, RoundRobin};

/// What a policy sees of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The server.
    pub server: ServerId,
    /// Samples that it takes now; 0 where nothing may be sent.
    pub free: u32,
    /// Expected tokens that it takes now.
    pub free_tokens: u32,
    /// Samples that it has.
    pub in_use: u32,
    /// Share of its places that are taken, and what is left of its penalties.
    pub load: f32,
    /// Expected tokens outstanding, those of others included.
    pub work: f32,
    /// Tokens a second of a running sample, measured; the fleet's mean where nothing was measured yet.
    pub speed: f32,
    /// Whether it may be sent something, now or later; a dead one has no load that says anything.
    pub is_live: bool,
}

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Samples.
    pub weight: u32,
    /// Expected tokens of all of them.
    pub tokens: u32,
    /// The group that they belong to.
    pub group: Option<u64>,
    /// Servers that will not do.
    pub avoid: &'a [ServerId],
}

impl Ask<'_> {
    /// Whether a server can have it.
    #[inline]
    pub fn fits(&self, candidate: &Candidate) -> bool {
        candidate.free >= self.weight
            && candidate.free_tokens >= self.tokens
            && (self.avoid.is_empty() || !self.avoid.contains(&candidate.server))
    }
}

/// A way to choose. It is called under the balancer's lock: it must not block.
pub trait RoutingPolicy: Send + Debug + 'static {
    /// The index of a server that [fits](Ask::fits); `None` if there is none.
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize>;
}

/// The policy of a name.
pub(crate) fn of(config: &BalancerConfig) -> Box<dyn RoutingPolicy> {
    match config.policy {
        Policy::LeastLoad => Box::new(Least::new(Measure::Load)),
        Policy::LeastWork => Box::new(Least::new(Measure::Work)),
        Policy::Weighted => Box::new(Least::new(Measure::Speed)),
        Policy::PowerOfTwo => Box::new(PowerOfTwo::default()),
        Policy::RoundRobin => Box::new(RoundRobin::default()),
        Policy::Random => Box::new(Random::default()),
        Policy::GroupAffinity => Box::new(GroupAffinity::new(config.affinity)),
    }
}

#[cfg(test)]
mod tests;
