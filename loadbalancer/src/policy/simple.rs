//! Policies that look at few servers, or at none.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Ask, Candidate, RoutingPolicy};

/// Draws before the servers that fit are listed: in a fleet with room the first one nearly always does.
const DRAWS_MAX: usize = 8;

/// Each in turn.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl RoutingPolicy for RoundRobin {
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], _: &mut ChaCha8Rng) -> Option<usize> {
        let count = servers.len();
        let in_turn = (0..count).map(|step| (self.next + step) % count);
        let chosen = in_turn.into_iter().find(|index| ask.fits(&servers[*index]))?;
        self.next = (chosen + 1) % count;
        Some(chosen)
    }
}

/// Any.
#[derive(Debug, Default)]
pub(super) struct Random {
    /// Those that fit, kept for its room.
    fitting: Vec<usize>,
}

impl Random {
    /// Any but `but`.
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
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize> {
        self.draw(ask, servers, rng, None)
    }
}

/// The less loaded of two.
#[derive(Debug, Default)]
pub(super) struct PowerOfTwo {
    random: Random,
}

impl RoutingPolicy for PowerOfTwo {
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize> {
        let first = self.random.draw(ask, servers, rng, None)?;
        let second = self.random.draw(ask, servers, rng, Some(first));
        Some(second.filter(|second| servers[*second].load < servers[first].load).unwrap_or(first))
    }
}
