//! Keeps the samples of a group on one server, unless this server is much fuller than the others.
//!
//! A cached prefix saves the prefill of a prompt. This saving is not worth a wait in a long queue. If the
//! group's server is nearly full, or has far more load than the others, the next sample goes to the server
//! with the least load. That server becomes the group's server. Routers that never changed a group's server
//! have been observed to send requests to a saturated engine until its cache evicted the group's prefixes.

use std::collections::{HashMap, VecDeque};

use rand_chacha::ChaCha8Rng;

use super::least::{Cost, Least};
use super::{Ask, Candidate, RoutingPolicy};
use crate::policy::AffinityConfig;
use crate::server::ServerId;

/// Maximum number of groups whose servers are remembered. The oldest are forgotten first.
const GROUPS_MAX: usize = 1 << 16;

/// Sends the samples of a group to one server until it is too full.
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

    /// The index of the group's server, if the request fits there and the server is not too full.
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

/// The sum of the live servers' loads, and their number. The loop keeps eight sums, because each addition to
/// a single sum would have to wait for the previous one.
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
