//! The policies that choose the server with the lowest cost.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Ask, Candidate, Candidates, RoutingPolicy};

/// The cost to minimise.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cost {
    /// The share of the server's places that are taken, plus its load penalty.
    Load,
    /// The expected tokens outstanding, which the load penalty raises.
    Work,
    /// The samples that the server would run, divided by the measured tokens per second of one sample, which the
    /// load penalty lowers.
    SamplesBySpeed,
}

/// Number of servers in a block. The search for the chosen server skips whole blocks.
const BLOCK: usize = 64;

/// Chooses the server with the lowest cost. If several servers have this cost, each of them has an equal
/// chance. The loops that find the lowest cost and count the servers with it have no branches. Choosing among a
/// thousand servers takes about a microsecond.
#[derive(Debug)]
pub(super) struct Least {
    cost: Cost,
    /// The costs of the last choice; infinite for servers that do not fit. The vector is kept to reuse its
    /// allocation.
    costs: Vec<f32>,
}

impl Least {
    pub(super) fn new(cost: Cost) -> Self {
        Self { cost, costs: Vec::new() }
    }

    fn by(
        &mut self,
        ask: &Ask<'_>,
        servers: &[Candidate],
        rng: &mut ChaCha8Rng,
        cost: impl Fn(&Candidate) -> f32,
    ) -> Option<usize> {
        let cost_if_it_fits = |server: &Candidate| {
            let fits = (server.free >= ask.weight) & (server.free_tokens >= ask.tokens);
            if fits { cost(server) } else { f32::INFINITY }
        };
        self.costs.clear();
        self.costs.extend(servers.iter().map(cost_if_it_fits));
        if !ask.avoid.is_empty() {
            let avoided = |server: &Candidate| ask.avoid.contains(&server.server);
            let pairs = self.costs.iter_mut().zip(servers).filter(|(_, server)| avoided(server));
            pairs.for_each(|(cost, _)| *cost = f32::INFINITY);
        }
        let least = least_of(&self.costs);
        if least == f32::INFINITY {
            return None;
        }
        let equals_in = |block: &[f32]| block.iter().map(|cost| u32::from(*cost == least)).sum::<u32>();
        let count = equals_in(&self.costs);
        let mut before = if count > 1 { rng.random_range(0..count) } else { 0 };
        for (number, block) in self.costs.chunks(BLOCK).enumerate() {
            let equals = equals_in(block);
            if before >= equals {
                before -= equals;
                continue;
            }
            let mut indexes = (0..block.len()).filter(|index| block[*index] == least);
            return indexes.nth(before as usize).map(|index| number * BLOCK + index);
        }
        None
    }
}

fn least_of(costs: &[f32]) -> f32 {
    // Eight costs are compared at a time, so that the compiler can use vector instructions.
    let (eights, rest) = costs.as_chunks::<8>();
    let less = |left: f32, right: f32| if right < left { right } else { left };
    let mut least = [f32::INFINITY; 8];
    for eight in eights {
        for lane in 0..8 {
            least[lane] = less(least[lane], eight[lane]);
        }
    }
    least.into_iter().chain(rest.iter().copied()).fold(f32::INFINITY, less)
}

impl RoutingPolicy for Least {
    fn pick(&mut self, ask: &Ask<'_>, servers: &Candidates, rng: &mut ChaCha8Rng) -> Option<usize> {
        match self.cost {
            Cost::Load => self.by(ask, servers, rng, |server| server.load),
            Cost::Work => self.by(ask, servers, rng, |server| server.work),
            Cost::SamplesBySpeed => {
                let weight = ask.weight;
                self.by(ask, servers, rng, |server| (server.in_use + weight) as f32 / server.speed)
            }
        }
    }
}
