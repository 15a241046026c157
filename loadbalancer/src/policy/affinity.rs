//! The samples of a group on one server, as long as that costs nobody much.
//!
//! A cache of prefixes is worth a prompt's prefill, not a place in a long queue: where the group's server is far above
//! the others or near its end, the group lets go of it and goes where there is least load. (Routers that never let go
//! have been seen to feed a saturated engine until its cache evicted the very prefixes they came for.)

use std::collections::{HashMap, VecDeque};

use rand_chacha::ChaCha8Rng;

use super::least::{Least, Measure};
use super::{Ask, Candidate, RoutingPolicy};
use crate::{AffinityConfig, ServerId};

/// Groups that are remembered; the oldest are forgotten first.
const GROUPS_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct GroupAffinity {
    config: AffinityConfig,
    least: Least,
    homes: HashMap<u64, ServerId>,
    order: VecDeque<u64>,
}

impl GroupAffinity {
    pub(super) fn new(config: AffinityConfig) -> Self {
        Self { config, least: Least::new(Measure::Load), homes: HashMap::new(), order: VecDeque::new() }
    }

    /// The group's server, if it is not over a threshold.
    fn home(&self, group: u64, ask: &Ask<'_>, servers: &[Candidate]) -> Option<usize> {
        let home = self.homes.get(&group)?;
        let index = servers.binary_search_by_key(home, |server| server.server).ok()?;
        let server = servers.get(index).filter(|server| ask.fits(server))?;
        let mean_of_others = || {
            let (sum, count) = loads_of_living(servers);
            (sum - server.load) / (count - 1.0).max(1.0)
        };
        let is_over = server.load > self.config.load_max
            || (server.load > self.config.load_min && server.load > mean_of_others() * self.config.ratio_max);
        (!is_over).then_some(index)
    }

    fn settle(&mut self, group: u64, server: ServerId) {
        if self.homes.insert(group, server).is_some() {
            return;
        }
        self.order.push_back(group);
        if self.order.len() > GROUPS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.homes.remove(&oldest);
        }
    }
}

/// Their sum and how many they are. Eight sums side by side: one alone would have every addition wait for the one before.
fn loads_of_living(servers: &[Candidate]) -> (f32, f32) {
    let (lanes, rest) = servers.as_chunks::<8>();
    let (mut sums, mut counts) = ([0.0; 8], [0.0; 8]);
    let add = |server: &Candidate, sum: &mut f32, count: &mut f32| {
        *sum += if server.is_live { server.load } else { 0.0 };
        *count += if server.is_live { 1.0 } else { 0.0 };
    };
    for lane in lanes {
        for place in 0..8 {
            add(&lane[place], &mut sums[place], &mut counts[place]);
        }
    }
    let (mut sum, mut count) = (sums.iter().sum(), counts.iter().sum());
    rest.iter().for_each(|server| add(server, &mut sum, &mut count));
    (sum, count)
}

impl RoutingPolicy for GroupAffinity {
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize> {
        let Some(group) = ask.group else { return self.least.pick(ask, servers, rng) };
        if let Some(home) = self.home(group, ask, servers) {
            return Some(home);
        }
        let chosen = self.least.pick(ask, servers, rng)?;
        self.settle(group, servers[chosen].server);
        Some(chosen)
    }
}
