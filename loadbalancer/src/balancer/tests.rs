//! Known faults of other balancers, each as a test, and a seeded simulation of all events together.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod groups;
mod health;
mod property;
mod waiting;

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::*;
use crate::outcome::{Outcome, Unanswered};
use crate::policy::Policy;
use crate::server::{Epoch, ServerState};
use crate::{Priority, ServerSpec, invariants};

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
    // 64 requests are dropped without a grant. Half of the other 192 requests are granted. Then all 192 are
    // dropped before they are polled.
    waiting.truncate(192);
    held.truncate(416);
    assert_eq!((in_use(&balancer), balancer.snapshot().waiting), (512, 96));
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
    let new = waiting.now_or_never().expect("it waits for its old life").unwrap();
    assert_eq!((old.epoch(), new.epoch()), (Epoch(0), Epoch(1)));
    new.finish(Outcome::Success { tokens: 1 });
}

#[tokio::test(start_paused = true)]
async fn tokens_that_were_decoded_in_vain_are_counted() {
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

#[tokio::test(start_paused = true)]
async fn known_tokens_of_a_request_without_an_answer_are_not_estimated() {
    let balancer = fleet(&[8], Policy::LeastLoad);
    let decoded_for = async |seconds| {
        let permit = balancer.acquire(request(1)).await.unwrap();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        permit
    };
    decoded_for(10).await.finish(Outcome::Success { tokens: 1_000 });
    decoded_for(60).await.finish_unanswered(Outcome::Cancelled, Unanswered { kept: 70, wasted: 0 });
    decoded_for(60).await.finish_unanswered(Outcome::Fault, Unanswered { kept: 0, wasted: 5 });
    let outcomes = &balancer.snapshot().servers[0].outcomes;
    assert_eq!((outcomes.tokens, outcomes.tokens_wasted), (1_070, 5));
    assert_eq!((outcomes.success, outcomes.cancelled, outcomes.fault), (1, 1, 1));
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
async fn ties_go_to_every_server() {
    let balancer = fleet(&[10, 10, 10, 10], Policy::LeastLoad);
    let mut firsts = [0_u32; 4];
    for _ in 0..400 {
        firsts[balancer.acquire(request(1)).await.unwrap().server().0 as usize] += 1;
    }
    assert!(firsts.iter().all(|count| (60..=140).contains(count)), "{firsts:?}");
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
async fn a_server_that_joins_again_shares_nothing_with_its_former_self() {
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
async fn an_old_reading_of_the_load_does_not_send_all_requests_to_one_server() {
    let balancer = fleet(&[100, 100, 100, 100], Policy::LeastWork);
    // There is only one reading: three servers had samples of other clients, and one had none.
    for (id, running) in [(0, 20), (1, 20), (2, 20), (3, 0)] {
        let load = EngineLoad { running, ..EngineLoad::default() };
        balancer.observe(ServerId(id), &load, 0).unwrap();
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
async fn without_a_servers_figures_routing_goes_by_our_permits() {
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
    balancer.observe(ServerId(0), &load, 0).unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(balancer.acquire(request(1)).await.unwrap());
    }
    assert_eq!(in_use(&balancer), 20, "it is full all the same");
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
    // The second server is three times as fast.
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
