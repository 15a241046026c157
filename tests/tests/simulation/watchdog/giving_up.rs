//! The watchdog gives up groups on silent servers. These groups are dispatched again.

use std::time::Duration;

use rolldock::dispatch::{DispatchId, StepEnd};
use rolldock::rollout::{OnSilence, OnStop, Phase};
use rolldock_simengine::{Fault, SimServer};

use super::{Acting, SILENCE};
use crate::support::{World, prompts};

/// A world that runs one group at a time, so every dispatch that the watchdog gives up can be counted.
fn one_at_a_time(servers: usize) -> World {
    let mut world = World::calm(servers, 4);
    world.config.max_concurrent_prompts = 1;
    world.config.on_stop = OnStop::Discard;
    world
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_ends_when_the_server_recovers() {
    let world = one_at_a_time(1);
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let server = world.engine.server("s0").unwrap().clone();
    let mut acting = Acting::new(world);
    let recovering = async {
        tokio::time::sleep(SILENCE * 2 + SILENCE / 2).await;
        server.heal();
    };
    let end = acting.step(OnSilence::CancelAndRequeue, 1, recovering).await;
    let totals = acting.manager.run_totals();
    assert_eq!((end, totals.accepted, totals.failed), (StepEnd::Reached, 1, 0), "{totals:?}");
    // The watchdog gives up the first two dispatches of group 0. The third one continues when the server
    // is healthy again.
    assert!((1..=3).contains(&totals.requeued), "{totals:?}");
    assert_eq!(totals.dispatched, totals.accepted + totals.filtered + totals.requeued + totals.cancelled);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_ends_elsewhere() {
    let world = one_at_a_time(2);
    world.engine.server("s0").unwrap().inject(Fault::Stall);
    let ids: Vec<_> = world.balancer.snapshot().servers.iter().map(|server| server.id).collect();
    world.balancer.set_paused(ids[1], true).unwrap();
    let balancer = world.balancer.clone();
    let mut acting = Acting::new(world);
    let moving = async {
        tokio::time::sleep(SILENCE / 2).await;
        // The group on the silent server stays there, and the server gets no further group.
        balancer.set_draining(ids[0]).unwrap();
        balancer.set_paused(ids[1], false).unwrap();
    };
    let end = acting.step(OnSilence::CancelAndRequeue, 1, moving).await;
    let totals = acting.manager.run_totals();
    assert_eq!((end, totals.accepted, totals.failed), (StepEnd::Reached, 1, 0), "{totals:?}");
    assert_eq!(totals.requeued, 1, "{totals:?}");
    let others = acting.world.engine.server("s1").unwrap().stats().generation_tokens_total;
    assert!(others > 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_too_often_fails() {
    let mut world = one_at_a_time(1);
    world.config.gen_batch_size = 1;
    world.config.max_gen_batches = 2;
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let mut acting = Acting::new(world);
    let end = acting.step(OnSilence::CancelAndRequeue, 1, async {}).await;
    let totals = acting.manager.run_totals();
    assert_eq!(end, StepEnd::OutOfBatches);
    assert_eq!((totals.dispatched, totals.requeued, totals.failed), (8, 6, 2), "{totals:?}");
    assert_eq!(acting.manager.last_failure().as_deref(), Some("given up times=4"));
}

/// One of two groups holds all permits of a silent server, and the other waits for them. Giving up the
/// waiting group would not help.
#[tokio::test(start_paused = true)]
async fn the_group_that_holds_the_permits_is_given_up_and_not_the_waiting_one() {
    let mut world = World::calm(1, 4);
    world.config.max_concurrent_prompts = 2;
    world.config.on_stop = OnStop::Discard;
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let mut manager = world.manager();
    let control = manager.control();
    let looking = control.watchdog(SILENCE, OnSilence::Report);
    let giving_up = control.watchdog(SILENCE, OnSilence::CancelAndRequeue);
    let feed = prompts(1_000);
    let watching = async {
        let mut given_up = Vec::new();
        for _ in 0..3 {
            tokio::time::sleep(SILENCE - Duration::from_secs(1)).await;
            let cause = looking.look(SILENCE).cause.unwrap();
            assert_eq!(cause.phase, Phase::Engine, "{cause}");
            given_up.push(cause.subject.dispatch.unwrap());
            let requeued = looking.look(SILENCE).counts;
            assert_eq!(requeued.running, 2);
            let before = control.waits().progress();
            while control.waits().progress() == before {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        given_up
    };
    let given_up = tokio::select! {
        biased;
        given_up = watching => given_up,
        said = giving_up.run() => panic!("{said}"),
        ended = manager.generate(&feed, 2) => panic!("{ended:?}"),
    };
    // Dispatch 2 repeats the group of dispatch 0, and dispatch 3 repeats the group of dispatch 1.
    assert_eq!(given_up, [DispatchId(0), DispatchId(1), DispatchId(2)]);
    world.engine.servers().for_each(SimServer::heal);
    world.scope.close(Duration::from_secs(1)).await;
}
