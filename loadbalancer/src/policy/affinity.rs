//! Keeps the samples of a group on one server, unless this server is much fuller than the others.
//!
//! A cached prefix saves the prefill of a prompt. This saving is not worth a wait in a long queue. If the
//! group's server is nearly full, or has far more load than the others, the next sample goes to the server
//! with the least load. That server becomes the group's server. Routers that never changed a group's server
//! have been observed to send requests to a saturated engine until its cache evicted the group's prefixes.

use std::collections::{HashMap, VecDeque};

use rand_chacha::ChaCha8Rng;

use super::least::{Cost, Least};
use super::{Ask, Candidates, RoutingPolicy};
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
    fn server_of(&self, group: u64, ask: &Ask<'_>, servers: &Candidates) -> Option<usize> {
        let server_of_group = self.servers_of_groups.get(&group)?;
        let index = servers.binary_search_by_key(server_of_group, |server| server.server).ok()?;
        let server = servers.get(index).filter(|server| ask.fits(server))?;
        let most = servers.mean_load_of_others(server) * self.config.ratio_max;
        let is_over =
            server.load > self.config.load_max || (server.load > self.config.load_min && server.load > most);
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

impl RoutingPolicy for GroupAffinity {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        let Some(group) = ask.group else { return self.least.pick(ask, servers, rng) };
        if let Some(index) = self.server_of(group, ask, servers) {
            return Some(index);
        }
        let chosen = self.least.pick(ask, servers, rng)?;
        self.remember(group, servers[chosen].server);
        Some(chosen)
    }
}
