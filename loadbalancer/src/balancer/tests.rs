//! The faults of other balancers, by name, and a seeded simulation of everything at once.

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use proptest::prelude::*;
use rand::RngExt;
use tokio::time::Instant;

use super::*;
use crate::{Policy, ServerSpec};

fn spec(name: &str, capacity: u32) -> ServerSpec {
    ServerSpec { name: name.to_owned(), url: None, capacity }
}

fn fleet(capacities: &[u32], policy: Policy) -> LoadBalancer {
    let servers =
        capacities.iter().enumerate().map(|(i, capacity)| spec(&format!("s{i}"), *capacity)).collect();
    LoadBalancer::new(BalancerConfig { policy, seed: 7, ..BalancerConfig::default() }, servers).unwrap()
}

fn request(weight: u32) -> PermitRequest {
    PermitRequest { weight, priority: Priority::New, exclude: Vec::new(), deadline: None }
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

/// Random holders, cancels, deaths, returns, additions and removals; invariants after every step.
fn simulate(seed: u64, policy: Policy) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let balancer = fleet(&[4, 8, 2], policy);
        let mut waiting = FuturesUnordered::new();
        let mut held: Vec<Permit> = Vec::new();
        for event in 0..300 {
            let ids: Vec<ServerId> = balancer.snapshot().servers.iter().map(|server| server.id).collect();
            let any = (!ids.is_empty()).then(|| ids[rng.random_range(0..ids.len())]);
            match rng.random_range(0..12) {
                0..=4 => {
                    let weight = rng.random_range(1..=4);
                    let exclude = any.filter(|_| rng.random_bool(0.2)).into_iter().collect();
                    let priority = if rng.random_bool(0.5) { Priority::New } else { Priority::Started };
                    let deadline = rng.random_bool(0.3).then(|| Instant::now() + Duration::from_millis(50));
                    let request = PermitRequest { weight, priority, exclude, deadline };
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
    fn everything_at_once_keeps_the_invariants(seed in any::<u64>(), policy in 0..4) {
        let policies = [Policy::LeastLoad, Policy::PowerOfTwo, Policy::RoundRobin, Policy::Random];
        simulate(seed, policies[policy as usize]);
    }
}
