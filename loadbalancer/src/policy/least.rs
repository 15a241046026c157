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

/// One pass, which leaves a bit for each server with the least: among equals each has the same chance.
#[derive(Debug)]
pub(super) struct Least {
    measure: Measure,
    /// The equals of the last pass, 64 to a word; kept for its room.
    equals: Vec<u64>,
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
        // Words before this one are of servers that cost more.
        let mut first_word = 0;
        let mut least = f32::INFINITY;
        for (number, word) in servers.chunks(64).enumerate() {
            let mut equals = 0_u64;
            for (bit, server) in word.iter().enumerate() {
                let cost = cost(server);
                if cost > least || !ask.fits(server) {
                    continue;
                }
                if cost < least {
                    (least, equals, first_word) = (cost, 0, number);
                }
                equals |= 1 << bit;
            }
            self.equals.push(equals);
        }
        let words = self.equals.get(first_word..)?;
        let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
        let mut chosen = match count {
            0 => return None,
            1 => 0,
            _ => rng.random_range(0..count),
        };
        for (number, word) in (first_word..).zip(words) {
            let ones = word.count_ones() as usize;
            if chosen < ones {
                let without_lower = (0..chosen).fold(*word, |left, _| left & (left - 1));
                return Some(64 * number + without_lower.trailing_zeros() as usize);
            }
            chosen -= ones;
        }
        None
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
