//! Choosing among the servers with room.

use std::time::Duration;

use rand::{Rng, RngExt};
use tokio::time::Instant;

use crate::Policy;
use crate::server::Server;

/// The index of the chosen server among `servers`, of those that `eligible` accepts.
pub(crate) fn pick(
    policy: Policy,
    servers: &[Server],
    eligible: impl Fn(&Server) -> bool,
    turn: &mut usize,
    rng: &mut impl Rng,
    half_life: Duration,
) -> Option<usize> {
    let now = Instant::now();
    match policy {
        Policy::LeastLoad => least_loaded(servers, eligible, rng, |server| server.load(now, half_life)),
        Policy::RoundRobin => {
            let count = servers.len();
            let chosen =
                (0..count).map(|step| (*turn + step) % count).find(|index| eligible(&servers[*index]))?;
            *turn = (chosen + 1) % count;
            Some(chosen)
        }
        Policy::Random => random(servers, &eligible, rng),
        Policy::PowerOfTwo => {
            let first = random(servers, &eligible, rng)?;
            let second = random(servers, |server| eligible(server) && server.id != servers[first].id, rng);
            let load = |index: usize| servers[index].load(now, half_life);
            Some(second.filter(|second| load(*second) < load(first)).unwrap_or(first))
        }
    }
}

/// One pass; among equals each has the same chance, so that no server is favoured for its place in a list.
fn least_loaded(
    servers: &[Server],
    eligible: impl Fn(&Server) -> bool,
    rng: &mut impl Rng,
    load: impl Fn(&Server) -> f64,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut equals = 0_u32;
    for (index, server) in servers.iter().enumerate().filter(|(_, server)| eligible(server)) {
        let candidate = load(server);
        match best {
            Some((_, smallest)) if candidate > smallest => continue,
            Some((_, smallest)) if candidate == smallest => {
                equals += 1;
                if rng.random_range(0..equals) == 0 {
                    best = Some((index, candidate));
                }
            }
            _ => {
                best = Some((index, candidate));
                equals = 1;
            }
        }
    }
    best.map(|(index, _)| index)
}

fn random(servers: &[Server], eligible: impl Fn(&Server) -> bool, rng: &mut impl Rng) -> Option<usize> {
    least_loaded(servers, eligible, rng, |_| 0.0)
}
