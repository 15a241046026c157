//! Random permit holders, cancellations, deaths, revivals, joins and departures. The invariants are checked
//! after each event.

use futures::stream::{FuturesUnordered, StreamExt};
use proptest::prelude::*;
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use super::*;

struct Play {
    rng: ChaCha8Rng,
    balancer: LoadBalancer,
    held: Vec<Permit>,
    /// Requests that wait or have just been granted a permit. They may be cancelled at any moment.
    cancels: Vec<CancellationToken>,
}

fn any_request(rng: &mut ChaCha8Rng, event: u64, any: Option<ServerId>) -> PermitRequest {
    let priorities = [Priority::New, Priority::Started, Priority::Validation];
    PermitRequest {
        priority: priorities[rng.random_range(0..3)],
        exclude: any.filter(|_| rng.random_bool(0.2)).into_iter().collect(),
        deadline: rng.random_bool(0.3).then(|| Instant::now() + Duration::from_millis(50)),
        group: Some(event / 4),
        expected_tokens: rng.random_range(0..50),
        ..PermitRequest::new(rng.random_range(1..=6))
    }
}

impl Play {
    fn finish_any(&mut self) {
        let permit = self.held.swap_remove(self.rng.random_range(0..self.held.len()));
        permit.finish(match self.rng.random_range(0..5) {
            0 => Outcome::Fault,
            1 => Outcome::Backpressure { retry_after: Some(Duration::from_secs(1)) },
            2 => Outcome::Cancelled,
            _ => Outcome::Success { tokens: 10 },
        });
    }

    /// Lets a random event happen to a server.
    fn befall(&mut self, event: u64, id: ServerId) {
        let Self { rng, balancer, .. } = self;
        let is_only = balancer.snapshot().servers.len() == 1;
        match rng.random_range(0..9) {
            0 | 1 => balancer.declare_dead(id, "simulated").unwrap(),
            2 | 3 => {
                balancer.snapshot().servers.iter().for_each(|server| balancer.revive(server.id).unwrap())
            }
            4 if !is_only && rng.random_bool(0.5) => balancer.remove(id).unwrap(),
            4 => {
                let tokens = rng.random_bool(0.5).then(|| rng.random_range(50..300));
                let spec = ServerSpec {
                    capacity_tokens: tokens,
                    ..spec(&format!("n{event}"), rng.random_range(1..8))
                };
                balancer.add(spec).unwrap();
            }
            5 => {
                balancer.set_capacity(id, rng.random_range(1..9)).unwrap();
                let running = rng.random_range(0..20);
                let load = EngineLoad { running, ..EngineLoad::default() };
                balancer.observe(id, &load, rng.random_range(0..9)).unwrap();
            }
            6 => balancer.set_paused(id, rng.random_bool(0.3)).unwrap(),
            7 => balancer.set_draining(id).unwrap(),
            _ => {
                let (epoch, _) = balancer.life_and_places(id).unwrap();
                balancer.has_generated(id, epoch, Instant::now());
                balancer.has_proved(id, epoch);
            }
        }
    }

    fn check(&self, words: &str) {
        let fleet = self.balancer.snapshot();
        invariants::within_capacity(&fleet).unwrap_or_else(|error| panic!("{words}: {error}"));
        for server in &fleet.servers {
            let is_of_it = |permit: &&Permit| permit.server() == server.id && permit.epoch() == server.epoch;
            let out: u32 = self.held.iter().filter(is_of_it).map(Permit::weight).sum();
            // Grants that have not been received yet take places, too.
            assert!(out <= server.in_use, "{words}: {server:?} has {out} out");
        }
    }
}

/// The granted permits, in order. They depend on the seed only.
async fn play(seed: u64, policy: Policy) -> Vec<(ServerId, u32)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let balancer = fleet(&[4, 8, 2], policy);
    if rng.random_bool(0.5) {
        balancer.set_capacity_ceiling(8);
    }
    let mut play = Play { rng, balancer, held: Vec::new(), cancels: Vec::new() };
    let (mut waiting, mut granted) = (FuturesUnordered::new(), Vec::new());
    for event in 0..300 {
        let ids: Vec<ServerId> = play.balancer.snapshot().servers.iter().map(|server| server.id).collect();
        let any = ids[play.rng.random_range(0..ids.len())];
        match play.rng.random_range(0..14) {
            0..=4 => {
                let request = any_request(&mut play.rng, event, Some(any));
                let (asker, cancel) = (play.balancer.clone(), CancellationToken::new());
                play.cancels.push(cancel.clone());
                waiting.push(async move {
                    tokio::select! {
                        biased;
                        () = cancel.cancelled() => None,
                        permit = asker.acquire(request) => permit.ok(),
                    }
                });
            }
            5..=7 if !play.held.is_empty() => play.finish_any(),
            8 if !play.cancels.is_empty() => {
                let index = play.rng.random_range(0..play.cancels.len());
                play.cancels.swap_remove(index).cancel();
                // Sometimes other events happen between the cancellation and its effect.
                if play.rng.random_bool(0.5) && !play.held.is_empty() {
                    play.finish_any();
                }
            }
            9..=11 => play.befall(event, any),
            _ => tokio::time::advance(Duration::from_millis(play.rng.random_range(1..400))).await,
        }
        while let Some(Some(done)) = waiting.next().now_or_never() {
            granted.extend(done.iter().map(|permit: &Permit| (permit.server(), permit.weight())));
            play.held.extend(done);
        }
        play.check(&format!("seed={seed} event={event}"));
    }
    drop(waiting);
    play.held.clear();
    let fleet = play.balancer.snapshot();
    invariants::all_returned(&fleet).unwrap_or_else(|error| panic!("seed={seed}: {error}"));
    assert_eq!(fleet.waiting, 0, "seed={seed}");
    granted
}

fn simulate(seed: u64, policy: Policy) -> Vec<(ServerId, u32)> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(play(seed, policy))
}

#[test]
fn a_seed_repeats() {
    for policy in Policy::ALL {
        assert_eq!(simulate(11, policy), simulate(11, policy), "{policy:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn everything_at_once_keeps_the_invariants(seed in any::<u64>(), policy in 0..Policy::ALL.len()) {
        simulate(seed, Policy::ALL[policy]);
    }
}
