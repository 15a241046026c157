//! Keeps the samples of a group on one server, unless this server is much fuller than the others.
//!
//! A cached prefix saves the prefill of a prompt, and its space in the cache. This saving is not worth a wait in a long
//! queue. If the group's server is nearly full, or has far more load than the others, the next sample goes to the server
//! with the least load. That server becomes the group's server. Routers that never changed a group's server
//! have been observed to send requests to a saturated engine until its cache evicted the group's prefixes.
//!
//! This is the choice among servers with room. While all servers are full, requests wait, and a server that gets room
//! prefers requests of its own groups: see the balancer's waiting list.

use rand_chacha::ChaCha8Rng;

use super::least::{Cost, Least};
use super::{Ask, Candidates, RoutingPolicy};
use crate::policy::AffinityConfig;
use crate::server::ServerId;

/// Sends the samples of a group to one server until it is too full.
#[derive(Debug)]
pub(super) struct GroupAffinity {
    config: AffinityConfig,
    least: Least,
}

impl GroupAffinity {
    pub(super) fn new(config: AffinityConfig) -> Self {
        Self { config, least: Least::new(Cost::Load) }
    }

    /// The index of the group's server, if the request fits there and the server is not too full.
    fn index_of(&self, home: ServerId, ask: &Ask<'_>, servers: &Candidates) -> Option<usize> {
        let index = servers.binary_search_by_key(&home, |server| server.server).ok()?;
        let server = servers.get(index).filter(|server| ask.fits(server))?;
        let most = servers.mean_load_of_others(server) * self.config.ratio_max;
        let is_over =
            server.load > self.config.load_max || (server.load > self.config.load_min && server.load > most);
        (!is_over).then_some(index)
    }
}

impl RoutingPolicy for GroupAffinity {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        let at_home = ask.home.and_then(|home| self.index_of(home, ask, servers));
        at_home.or_else(|| self.least.pick(ask, servers, rng))
    }

    fn keeps_groups(&self) -> bool {
        true
    }
}
