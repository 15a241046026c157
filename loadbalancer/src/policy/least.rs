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

/// One pass; among equals each has the same chance.
#[derive(Debug)]
pub(super) struct Least {
    measure: Measure,
    /// The equals of the last pass, kept for its room.
    equals: Vec<u32>,
}

impl Least {
    pub(super) fn new(measure: Measure) -> Self {
        Self { measure, equals: Vec::new() }
    }

    fn by(
        &mut self,
        ask: &Ask<'_>,
        servers: &[Candidate],
        rng: &mut ChaCha8Rng,
        cost: impl Fn(&Candidate) -> f32,
    ) -> Option<usize> {
        self.equals.clear();
        let mut least = f32::INFINITY;
        for (index, server) in (0_u32..).zip(servers) {
            let cost = cost(server);
            if cost > least || !ask.fits(server) {
                continue;
            }
            if cost < least {
                least = cost;
                self.equals.clear();
            }
            self.equals.push(index);
        }
        let chosen = match self.equals.len() {
            0 => return None,
            1 => 0,
            count => rng.random_range(0..count),
        };
        self.equals.get(chosen).map(|index| *index as usize)
    }
}

impl RoutingPolicy for Least {
    fn pick(&mut self, ask: &Ask<'_>, servers: &[Candidate], rng: &mut ChaCha8Rng) -> Option<usize> {
        match self.measure {
            Measure::Load => self.by(ask, servers, rng, |server| server.load),
            Measure::Work => self.by(ask, servers, rng, |server| server.work),
            Measure::Speed => {
                let weight = ask.weight;
                self.by(ask, servers, rng, |server| (server.in_use + weight) as f32 / server.speed)
            }
        }
    }
}
