//! Policies that do not compare all servers. They choose each server in turn, a random server, or the less
//! loaded of two random servers.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Ask, Candidate, Candidates, RoutingPolicy};

/// Number of random draws before all servers that fit are listed. In a fleet with room the first draw nearly
/// always fits.
const DRAWS_MAX: usize = 8;

/// Chooses each server in turn, and skips servers without room.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl RoutingPolicy for RoundRobin {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, _: &mut ChaCha8Rng) -> Option<usize> {
        let count = servers.len();
        let in_turn = (0..count).map(|step| (self.next + step) % count);
        let chosen = in_turn.into_iter().find(|index| ask.fits(&servers[*index]))?;
        self.next = (chosen + 1) % count;
        Some(chosen)
    }
}

/// Chooses a server with room at random.
#[derive(Debug, Default)]
pub(super) struct Random {
    /// The servers that fit, if they had to be listed. The vector is kept to reuse its allocation.
    fitting: Vec<usize>,
}

impl Random {
    /// Draws a server with room, other than the server with the index `but`.
    fn draw(
        &mut self,
        ask: &Ask<'_>,
        servers: &[Candidate],
        rng: &mut ChaCha8Rng,
        but: Option<usize>,
    ) -> Option<usize> {
        let fits = |index: &usize| Some(*index) != but && ask.fits(&servers[*index]);
        if servers.is_empty() {
            return None;
        }
        for _ in 0..DRAWS_MAX {
            let index = rng.random_range(0..servers.len());
            if fits(&index) {
                return Some(index);
            }
        }
        self.fitting.clear();
        self.fitting.extend((0..servers.len()).filter(fits));
        if self.fitting.is_empty() {
            None
        } else {
            Some(self.fitting[rng.random_range(0..self.fitting.len())])
        }
    }
}

impl RoutingPolicy for Random {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        self.draw(ask, servers, rng, None)
    }
}

/// Chooses the less loaded of two servers that are drawn at random.
#[derive(Debug, Default)]
pub(super) struct PowerOfTwo {
    random: Random,
}

impl RoutingPolicy for PowerOfTwo {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        let first = self.random.draw(ask, servers, rng, None)?;
        let second = self.random.draw(ask, servers, rng, Some(first));
        Some(second.filter(|second| servers[*second].load < servers[first].load).unwrap_or(first))
    }
}
