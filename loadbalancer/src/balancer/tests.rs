//! The faults of other balancers, by name, and a seeded simulation of everything at once.

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use proptest::prelude::*;
use rand::RngExt;
use tokio::time::Instant;

use super::*;
use crate::{Epoch, Outcome, Policy, ServerSpec, invariants};

fn spec(name: &str, capacity: u32) -> ServerSpec {
    ServerSpec::unreached(name, capacity)
}

fn fleet(capacities: &[u32], policy: Policy) -> LoadBalancer {
    let servers =
        capacities.iter().enumerate().map(|(i, capacity)| spec(&format!("s{i}"), *capacity)).collect();
    LoadBalancer::new(BalancerConfig { policy, seed: 7, ..BalancerConfig::default() }, servers).unwrap()
}

fn request(weight: u32) -> PermitRequest {
    PermitRequest::new(weight)
}

fn in_use(balancer: &LoadBalancer) -> u64 {
    balancer.snapshot().in_use()
}

#[tokio::test]
async fn cancelling_waiters_leaks_no_permit() {
    let balancer = fleet(&[512], Policy::LeastLoad);
    let mut held = Vec::new();
    for _ in 0..512 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let mut waiting: Vec<_> = (0..256).map(|_| Box::pin(balancer.acquire(request(1)))).collect();
    for wait in &mut waiting {
        assert!(wait.now_or_never().is_none());
    }
    assert_eq!(balancer.snapshot().waiting, 256);
    // Half are granted, all are dropped before they look.
    held.truncate(384);
    drop(waiting);
    drop(held);
    assert_eq!((in_use(&balancer), balancer.snapshot().waiting), (0, 0));
    let whole = balancer.acquire(request(512)).await.unwrap();
    assert_eq!(whole.weight(), 512);
}

#[tokio::test]
async fn a_new_life_is_not_blocked_by_waiters_of_the_old_one() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    let old = balancer.acquire(request(1)).await.unwrap();
    let mut waiting = Box::pin(balancer.acquire(request(1)));
    assert!((&mut waiting).now_or_never().is_none());
    balancer.declare_dead(old.server(), "test").unwrap();
    balancer.revive(old.server()).unwrap();
    let new = waiting.await.unwrap();
    assert_eq!((old.epoch(), new.epoch()), (Epoch(0), Epoch(1)));
    new.finish(Outcome::Success { tokens: 1 });
}

#[tokio::test(start_paused = true)]
async fn what_is_decoded_for_nobody_is_counted_in_tokens() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let decoded_for = async |weight, seconds| {
        let permit = balancer.acquire(request(weight)).await.unwrap();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        permit
    };
    decoded_for(1, 10).await.finish(Outcome::Success { tokens: 1_000 });
    drop(decoded_for(2, 3).await);
    let lost = decoded_for(1, 1).await;
    balancer.declare_dead(lost.server(), "test").unwrap();
    drop(lost);
    let outcomes = &balancer.snapshot().servers[0].outcomes;
    assert_eq!((outcomes.tokens, outcomes.tokens_wasted), (1_000, 600 + 100));
}

#[tokio::test]
async fn returns_after_a_death_do_not_raise_the_capacity() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let mut old = Vec::new();
    for _ in 0..8 {
        old.push(balancer.acquire(request(1)).await.unwrap());
    }
    let id = old[0].server();
    balancer.declare_dead(id, "test").unwrap();
    assert!(old[0].revoked().now_or_never().is_some(), "holders learn of the death");
    balancer.revive(id).unwrap();
    balancer.acquire(request(1)).await.unwrap().finish(Outcome::Success { tokens: 1 });
    let new = balancer.acquire(request(8)).await.unwrap();
    drop(old);
    assert_eq!(in_use(&balancer), 8);
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "still full");
    drop(new);
    assert_eq!(in_use(&balancer), 0);
}

#[tokio::test]
async fn a_dead_server_attracts_no_traffic() {
    let balancer = fleet(&[100, 100], Policy::LeastLoad);
    let mut on_bad = 0;
    let mut held = Vec::new();
    for _ in 0..100 {
        let permit = balancer.acquire(request(1)).await.unwrap();
        if &*permit.server_name() == "s0" {
            on_bad += 1;
            permit.finish(Outcome::Fault);
        } else {
            held.push(permit);
        }
    }
    assert_eq!(on_bad, 3, "faults_max of them, though it always looks idle");
}

#[tokio::test]
async fn ties_go_to_everyone() {
    let balancer = fleet(&[10, 10, 10, 10], Policy::LeastLoad);
    let mut firsts = [0_u32; 4];
    for _ in 0..400 {
        firsts[balancer.acquire(request(1)).await.unwrap().server().0 as usize] += 1;
    }
    assert!(firsts.iter().all(|count| (60..=140).contains(count)), "{firsts:?}");
}

#[tokio::test]
async fn client_errors_never_eject_a_server() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    for _ in 0..50 {
        balancer.acquire(request(1)).await.unwrap().finish(Outcome::ClientError);
    }
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
}

#[tokio::test(start_paused = true)]
async fn busy_servers_are_penalised_for_a_while_and_never_ejected() {
    let balancer = fleet(&[10, 10], Policy::LeastLoad);
    for _ in 0..20 {
        let permit = balancer.acquire(request(1)).await.unwrap();
        if permit.server() == ServerId(0) {
            permit.finish(Outcome::Backpressure { retry_after: None });
        }
    }
    let states: Vec<_> = balancer.snapshot().servers.iter().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Active, ServerState::Active]);
    let first = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(first.server(), ServerId(1), "the other one is preferred");
    tokio::time::advance(Duration::from_secs(30)).await;
    let second = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(second.server(), ServerId(0), "forgotten, and now the less loaded");
}

#[tokio::test]
async fn a_trial_cannot_stick() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let id = ServerId(0);
    balancer.declare_dead(id, "test").unwrap();
    balancer.revive(id).unwrap();
    let trial = balancer.acquire(request(1)).await.unwrap();
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "one at a time");
    drop(trial);
    let again = balancer.acquire(request(1)).await.unwrap();
    again.finish(Outcome::Success { tokens: 1 });
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
    balancer.declare_dead(id, "test").unwrap();
    balancer.revive(id).unwrap();
    balancer.acquire(request(1)).await.unwrap().finish(Outcome::Fault);
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Dead, "one fault on trial is enough");
}

#[tokio::test]
async fn a_heavy_request_is_granted_whole_and_not_overtaken() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let mut light: Vec<Permit> = Vec::new();
    for _ in 0..8 {
        light.push(balancer.acquire(request(1)).await.unwrap());
    }
    let mut heavy = Box::pin(balancer.acquire(request(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let mut behind = Box::pin(balancer.acquire(request(1)));
    assert!((&mut behind).now_or_never().is_none());
    for _ in 0..7 {
        drop(light.pop());
        assert!((&mut behind).now_or_never().is_none(), "there is room, but it is kept for the heavy one");
    }
    drop(light.pop());
    let whole = heavy.await.unwrap();
    assert_eq!(whole.weight(), 8);
    drop(whole);
    behind.await.unwrap();
}

#[tokio::test]
async fn dropping_a_heavy_waiter_frees_who_waited_behind_it() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let _held = balancer.acquire(request(4)).await.unwrap();
    let mut heavy = Box::pin(balancer.acquire(request(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let mut behind = Box::pin(balancer.acquire(request(1)));
    assert!((&mut behind).now_or_never().is_none());
    drop(heavy);
    assert!(behind.now_or_never().is_some());
}

#[tokio::test]
async fn started_groups_go_first() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    let held = balancer.acquire(request(1)).await.unwrap();
    let mut new = Box::pin(balancer.acquire(request(1)));
    let mut started = Box::pin(balancer.acquire(PermitRequest { priority: Priority::Started, ..request(1) }));
    assert!((&mut new).now_or_never().is_none() && (&mut started).now_or_never().is_none());
    drop(held);
    assert!((&mut new).now_or_never().is_none());
    assert!(started.now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn exclusion_holds_while_another_server_is_alive() {
    let balancer = fleet(&[1, 1], Policy::LeastLoad);
    let exclude = vec![ServerId(0)];
    let first = balancer.acquire(PermitRequest { exclude: exclude.clone(), ..request(1) }).await.unwrap();
    assert_eq!(first.server(), ServerId(1));
    let mut second = Box::pin(balancer.acquire(PermitRequest { exclude: exclude.clone(), ..request(1) }));
    assert!((&mut second).now_or_never().is_none(), "it waits for the other server");
    let other = balancer.acquire(request(1)).await.unwrap();
    assert_eq!(other.server(), ServerId(0), "who does not mind is not kept waiting");
    drop(other);
    balancer.declare_dead(ServerId(1), "test").unwrap();
    assert_eq!(second.await.unwrap().server(), ServerId(0), "nobody else is left");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_and_says_why() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    balancer.declare_dead(ServerId(0), "test").unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(3));
    let error = balancer.acquire(PermitRequest { deadline, ..request(1) }).await.unwrap_err();
    assert!(error.to_string().contains("1 dead"), "{error}");
    assert_eq!(balancer.snapshot().waiting, 0);
}

#[tokio::test]
async fn impossible_requests_are_refused_at_once() {
    let balancer = fleet(&[4, 8], Policy::LeastLoad);
    let error = balancer.acquire(request(9)).await.unwrap_err();
    assert_eq!(error, BalancerError::TooHeavy { weight: 9, largest: 8 });
    assert_eq!(balancer.acquire(request(0)).await.unwrap_err(), BalancerError::Weightless);
    let config = BalancerConfig { waiting_max: 1, ..BalancerConfig::default() };
    let small = LoadBalancer::new(config, vec![spec("a", 1)]).unwrap();
    let _held = small.acquire(request(1)).await.unwrap();
    let mut waiting = Box::pin(small.acquire(request(1)));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(small.acquire(request(1)).await.unwrap_err(), BalancerError::QueueFull { waiting_max: 1 });
    small.close();
    assert_eq!(waiting.await.unwrap_err(), BalancerError::Closed);
}

#[tokio::test]
async fn a_fleet_without_servers_is_waited_for() {
    let balancer = fleet(&[], Policy::LeastLoad);
    let mut waiting = Box::pin(balancer.acquire(request(1)));
    assert!((&mut waiting).now_or_never().is_none());
    balancer.add(spec("late", 1)).unwrap();
    assert!(waiting.now_or_never().is_some());
}

#[tokio::test]
async fn draining_waits_for_the_last_permit() {
    let balancer = fleet(&[2], Policy::LeastLoad);
    let held = balancer.acquire(request(1)).await.unwrap();
    let mut drained = Box::pin(balancer.drain(ServerId(0)));
    assert!((&mut drained).now_or_never().is_none());
    assert!(balancer.acquire(request(1)).now_or_never().is_none(), "it takes no more");
    drop(held);
    drained.await.unwrap();
    balancer.remove(ServerId(0)).unwrap();
    assert!(balancer.remove(ServerId(0)).is_err());
}

#[tokio::test]
async fn a_server_that_joins_again_has_nothing_to_do_with_what_it_was() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let old = balancer.acquire(request(3)).await.unwrap();
    balancer.remove(old.server()).unwrap();
    assert!(old.revoked().now_or_never().is_some());
    balancer.add(spec("s0", 4)).unwrap();
    let new = balancer.acquire(request(2)).await.unwrap();
    assert_ne!(old.server(), new.server());
    drop(old);
    assert_eq!(in_use(&balancer), 2, "the old permit is not the new server's");
    assert!(balancer.acquire(request(3)).now_or_never().is_none());
}

#[tokio::test]
async fn a_stale_picture_of_the_load_herds_nobody() {
    let balancer = fleet(&[100, 100, 100, 100], Policy::LeastWork);
    // One look: three servers had others' samples, one had none. Nobody looks again.
    for (id, running) in [(0, 20), (1, 20), (2, 20), (3, 0)] {
        let load = EngineLoad { running, ..EngineLoad::default() };
        balancer.observe(ServerId(id), &load).unwrap();
    }
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let on = |id| held.iter().filter(|permit| permit.server() == ServerId(id)).count();
    let spread = [on(0), on(1), on(2), on(3)];
    assert_eq!(spread, [20, 20, 20, 40], "the idle one gets what it lacked, and no more");
}

#[tokio::test]
async fn without_a_servers_own_figures_routing_goes_by_our_permits() {
    let balancer = fleet(&[100, 100], Policy::LeastWork);
    let mut held = Vec::new();
    for _ in 0..60 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let servers = balancer.snapshot().servers;
    assert_eq!((servers[0].in_use, servers[1].in_use), (30, 30));
}

#[tokio::test]
async fn a_server_that_exaggerates_its_load_is_believed_up_to_its_capacity() {
    let balancer = fleet(&[10, 10], Policy::LeastWork);
    let load = EngineLoad { running: u64::MAX / 4, ..EngineLoad::default() };
    balancer.observe(ServerId(0), &load).unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    assert_eq!(in_use(&balancer), 20, "it is full all the same");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_honoured_and_then_over() {
    let balancer = fleet(&[4], Policy::LeastLoad);
    let busy = balancer.acquire(request(1)).await.unwrap();
    let mut early = Box::pin(balancer.acquire(request(4)));
    assert!((&mut early).now_or_never().is_none());
    busy.finish(Outcome::Backpressure { retry_after: Some(Duration::from_secs(5)) });
    assert!((&mut early).now_or_never().is_none(), "there is room, but it asked to be left alone");
    let started = Instant::now();
    early.await.unwrap().finish(Outcome::Backpressure { retry_after: Some(Duration::from_secs(3600)) });
    assert_eq!(started.elapsed().as_secs(), 5);
    let started = Instant::now();
    balancer.acquire(request(1)).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 30, "no longer than retry_after_ms_max");
}

#[tokio::test]
async fn faults_that_come_now_and_then_are_too_many_in_the_end() {
    let balancer = fleet(&[1], Policy::LeastLoad);
    for answer in 0..40 {
        if balancer.snapshot().servers[0].state == ServerState::Dead {
            assert_eq!(answer, 21, "ten of the last twenty");
            return;
        }
        let permit = balancer.acquire(request(1)).await.unwrap();
        permit.finish(if answer % 2 == 0 { Outcome::Fault } else { Outcome::Success { tokens: 1 } });
    }
    panic!("half of its answers are faults");
}

#[tokio::test]
async fn the_fleet_as_a_whole_has_a_bound_too() {
    let servers = vec![spec("a", 8), spec("b", 8)];
    let config = BalancerConfig { capacity_total: Some(10), ..BalancerConfig::default() };
    let balancer = LoadBalancer::new(config, servers).unwrap();
    let first = balancer.acquire(request(7)).await.unwrap();
    let mut second = Box::pin(balancer.acquire(request(4)));
    assert!((&mut second).now_or_never().is_none());
    let error = balancer.acquire(request(11)).await.unwrap_err();
    assert_eq!(error, BalancerError::TooHeavy { weight: 11, largest: 8 });
    drop(first);
    assert!(second.now_or_never().is_some());
}

#[tokio::test]
async fn places_can_be_priced_by_expected_tokens() {
    let spec = ServerSpec { capacity_tokens: Some(1000), ..spec("a", 100) };
    let balancer = LoadBalancer::new(BalancerConfig::default(), vec![spec]).unwrap();
    let long = PermitRequest { expected_tokens: 400, ..request(2) };
    let first = balancer.acquire(long.clone()).await.unwrap();
    assert!(balancer.acquire(long).now_or_never().is_none(), "1600 tokens");
    balancer.acquire(PermitRequest { expected_tokens: 200, ..request(1) }).await.unwrap();
    drop(first);
    let huge = PermitRequest { expected_tokens: 5000, ..request(1) };
    let alone = balancer.acquire(huge).await.unwrap();
    assert_eq!(balancer.snapshot().servers[0].expected_tokens, 1000, "it has the server to itself");
    assert!(balancer.acquire(request(1)).now_or_never().is_none());
    drop(alone);
}

#[tokio::test]
async fn permits_above_a_lowered_capacity_stay_until_they_are_returned() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    balancer.set_capacity(ServerId(0), 2).unwrap();
    let mut waiting = Box::pin(balancer.acquire(request(1)));
    held.truncate(2);
    assert!((&mut waiting).now_or_never().is_none());
    held.truncate(1);
    let granted = waiting.await.unwrap();
    assert_eq!(balancer.snapshot().servers[0].overhang, 0);
    balancer.set_capacity(ServerId(0), 3).unwrap();
    let _third = balancer.acquire(request(1)).await.unwrap();
    drop(granted);
}

#[tokio::test(start_paused = true)]
async fn weighted_gives_a_faster_server_its_share() {
    let balancer = fleet(&[100, 100], Policy::Weighted);
    // The second is three times as fast.
    for _ in 0..20 {
        let (first, second) =
            (balancer.acquire(request(1)).await.unwrap(), balancer.acquire(request(1)).await.unwrap());
        tokio::time::advance(Duration::from_secs(1)).await;
        for permit in [first, second] {
            let tokens = if permit.server() == ServerId(1) { 300 } else { 100 };
            permit.finish(Outcome::Success { tokens });
        }
    }
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    let on_fast = held.iter().filter(|permit| permit.server() == ServerId(1)).count();
    assert!((58..=62).contains(&on_fast), "{on_fast} of 80");
}

/// Random holders, cancels, deaths, returns, additions and removals; invariants after every step.
fn simulate(seed: u64, policy: Policy) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let balancer = fleet(&[4, 8, 2], policy);
        let mut waiting = FuturesUnordered::new();
        let mut held: Vec<Permit> = Vec::new();
        for event in 0..300_u64 {
            let ids: Vec<ServerId> = balancer.snapshot().servers.iter().map(|server| server.id).collect();
            let any = (!ids.is_empty()).then(|| ids[rng.random_range(0..ids.len())]);
            match rng.random_range(0..12) {
                0..=4 => {
                    let weight = rng.random_range(1..=4);
                    let exclude = any.filter(|_| rng.random_bool(0.2)).into_iter().collect();
                    let priority = if rng.random_bool(0.5) { Priority::New } else { Priority::Started };
                    let deadline = rng.random_bool(0.3).then(|| Instant::now() + Duration::from_millis(50));
                    let request = PermitRequest {
                        priority,
                        exclude,
                        deadline,
                        group: Some(event / 4),
                        ..PermitRequest::new(weight)
                    };
                    let (cancel, cancelled) = oneshot::channel::<()>();
                    let asker = balancer.clone();
                    if rng.random_bool(0.7) {
                        std::mem::forget(cancel);
                    }
                    waiting.push(async move {
                        tokio::select! {
                            permit = asker.acquire(request) => permit.ok(),
                            _ = cancelled => None,
                        }
                    });
                }
                5..=7 if !held.is_empty() => {
                    let permit = held.swap_remove(rng.random_range(0..held.len()));
                    permit.finish(match rng.random_range(0..5) {
                        0 => Outcome::Fault,
                        1 => Outcome::Backpressure { retry_after: Some(Duration::from_secs(1)) },
                        2 => Outcome::Cancelled,
                        _ => Outcome::Success { tokens: 10 },
                    });
                }
                8 => {
                    if let Some(id) = any {
                        balancer.declare_dead(id, "simulated").unwrap();
                    }
                }
                9 => ids.iter().for_each(|id| balancer.revive(*id).unwrap()),
                10 if ids.len() > 1 && rng.random_bool(0.3) => balancer.remove(ids[0]).unwrap(),
                10 if rng.random_bool(0.5) => {
                    if let Some(id) = any {
                        balancer.set_capacity(id, rng.random_range(4..9)).unwrap();
                        let running = rng.random_range(0..20);
                        balancer.observe(id, &EngineLoad { running, ..EngineLoad::default() }).unwrap();
                    }
                }
                10 => {
                    let _ = balancer.add(spec(&format!("n{event}"), rng.random_range(1..6)));
                }
                _ => tokio::time::advance(Duration::from_millis(20)).await,
            }
            while let Some(Some(done)) = waiting.next().now_or_never() {
                held.extend(done);
            }
            let fleet = balancer.snapshot();
            invariants::within_capacity(&fleet).unwrap_or_else(|error| panic!("seed={seed}: {error}"));
            for server in &fleet.servers {
                let out: u32 = held
                    .iter()
                    .filter(|permit| permit.server() == server.id && permit.epoch() == server.epoch)
                    .map(Permit::weight)
                    .sum();
                assert!(out <= server.in_use, "seed={seed} event={event}: {server:?} has {out} out");
            }
        }
        drop(waiting);
        drop(held);
        invariants::all_returned(&balancer.snapshot()).unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        assert_eq!(balancer.snapshot().waiting, 0, "seed={seed}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn everything_at_once_keeps_the_invariants(seed in any::<u64>(), policy in 0..Policy::ALL.len()) {
        simulate(seed, Policy::ALL[policy]);
    }
}
