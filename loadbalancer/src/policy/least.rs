//! The server with the least of something.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Ask, Candidate, RoutingPolicy};

/// Of what there shall be least.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measure {
    Load,
    Work,
    /// Running samples for each token a second.
    Speed,
}

/// One pass finds the least and how many have it, a second one goes to the one that was drawn: among equals each has the
/// same chance.
#[derive(Debug)]
pub(super) struct Least {
    measure: Measure,
}

impl Least {
    pub(super) fn new(measure: Measure) -> Self {
        Self { measure }
    }
}

fn least_by(
    ask: &Ask<'_>,
    servers: &[Candidate],
    rng: &mut ChaCha8Rng,
    cost: impl Fn(&Candidate) -> f32,
) -> Option<usize> {
    let (mut least, mut equals, mut first) = (f32::INFINITY, 0_usize, 0);
    for (index, server) in servers.iter().enumerate() {
        let cost = cost(server);
        if cost > least || !ask.fits(server) {
            continue;
        }
        if cost < least {
            (least, equals, first) = (cost, 0, index);
        }
        equals += 1;
    }
    match equals {
        0 => None,
        1 => Some(first),
        count => {
            let is_equal = |index: &usize| cost(&servers[*index]) == least && ask.fits(&servers[*index]);
            (first..servers.len()).filter(is_equal).nth(rng.random_range(0..count))
        }
    }
}

impl RoutingPolicy for Least {
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize> {
        match self.measure {
            Measure::Load => least_by(ask, servers, rng, |server| server.load),
            Measure::Work => least_by(ask, servers, rng, |server| server.work),
            Measure::Speed => {
                let weight = ask.weight;
                least_by(ask, servers, rng, |server| (server.in_use + weight) as f32 / server.speed)
            }
        }
    }
}
