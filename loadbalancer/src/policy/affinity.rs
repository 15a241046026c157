//! The samples of a group on one server, as long as that costs other requests little.
//!
//! A cached prefix saves a prompt's prefill, which is not worth a long queue. When the group's server is
//! loaded far above the others, or nearly full, its samples go to the server with the least load. (Routers
//! that never leave a server have been seen to feed a saturated engine until its cache evicted the very
//! prefixes that they came for.)

use std::collections::{HashMap, VecDeque};

use rand_chacha::ChaCha8Rng;

use super::least::{Cost, Least};
use super::{Ask, Candidate, RoutingPolicy};
use crate::policy::AffinityConfig;
use crate::server::ServerId;

/// Groups whose servers are remembered. The oldest are forgotten first.
const GROUPS_MAX: usize = 1 << 16;

/// Sends the samples of a group to the server that got the first of them.
#[derive(Debug)]
pub(super) struct GroupAffinity {
    config: AffinityConfig,
    least: Least,
    servers_of_groups: HashMap<u64, ServerId>,
    order: VecDeque<u64>,
}

impl GroupAffinity {
    pub(super) fn new(config: AffinityConfig) -> Self {
        Self {
            config,
            least: Least::new(Cost::Load),
            servers_of_groups: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// The index of the group's server, if the request fits there and the load is below the thresholds.
    fn server_of(&self, group: u64, ask: &Ask<'_>, servers: &[Candidate]) -> Option<usize> {
        let server_of_group = self.servers_of_groups.get(&group)?;
        let index = servers.binary_search_by_key(server_of_group, |server| server.server).ok()?;
        let server = servers.get(index).filter(|server| ask.fits(server))?;
        let mean_of_others = || {
            let (sum, count) = loads_of_living(servers);
            (sum - server.load) / (count - 1.0).max(1.0)
        };
        let is_over = server.load > self.config.load_max
            || (server.load > self.config.load_min && server.load > mean_of_others() * self.config.ratio_max);
        (!is_over).then_some(index)
    }

    fn remember(&mut self, group: u64, server: ServerId) {
        if self.servers_of_groups.insert(group, server).is_some() {
            return;
        }
        self.order.push_back(group);
        if self.order.len() > GROUPS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.servers_of_groups.remove(&oldest);
        }
    }
}

/// The sum of the live servers' loads, and their number. Eight sums run side by side, since each addition to
/// a single one would wait for the one before.
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
        if let Some(index) = self.server_of(group, ask, servers) {
            return Some(index);
        }
        let chosen = self.least.pick(ask, servers, rng)?;
        self.remember(group, servers[chosen].server);
        Some(chosen)
    }
}
