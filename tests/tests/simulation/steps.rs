//! Runs whole steps on a simulated fleet in virtual time.
//!
//! Servers die, stall, slow down, refuse requests and report false states, and some steps are dropped before
//! they end. Every seed is one run, and a failure prints the seed that repeats it.
//!
//! `ROLLDOCK_SIM_STEPS` sets the number of steps (2,000 by default). `ROLLDOCK_SIM_SEED` runs one seed only.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{World, in_virtual_time, prompts};
use rand::RngExt;
use rolldock::dispatch::StepEnd;
use rolldock::rollout::{Launch, invariants};
use rolldock_simengine::Fault;
use rolldock_tests::env_number;

async fn run(mut world: World, steps: usize) -> Vec<(u64, u64)> {
    let _monitoring = world.start_monitor();
    let mut manager = world.manager();
    let feed = prompts(1_000_000);
    let mut seen = BTreeSet::new();
    let mut fingerprint = Vec::new();
    for step in 0..steps {
        let target = world.rng.random_range(1..=8.min(world.config.gen_batch_size));
        manager.control().set_policy_version(step as u64 / 2);
        let patience = if world.rng.random_bool(0.1) { 1.0 } else { 3600.0 };
        let collected = {
            let mut collecting = std::pin::pin!(manager.generate(&feed, target));
            let give_up = tokio::time::Instant::now() + Duration::from_secs_f64(patience);
            loop {
                let disturbance = Duration::from_millis(world.rng.random_range(200..4000));
                tokio::select! {
                    biased;
                    output = &mut collecting => break Some(output.unwrap()),
                    () = tokio::time::sleep_until(give_up) => break None,
                    () = tokio::time::sleep(disturbance) => world.disturb(),
                }
            }
        };
        let Some(output) = collected else {
            assert!(patience < 3600.0, "a step hangs: {:?}", world.config);
            // The tasks of a dropped step end when they are polled next.
            tokio::time::sleep(Duration::from_millis(100)).await;
            world.check_between_steps(&manager);
            continue;
        };
        let numbers: Vec<u64> = output.groups.iter().map(|group| group.number).collect();
        invariants::accepted_once(&numbers, target, &mut seen).unwrap();
        let kept = output.groups.iter().position(|group| group.set_aside.is_some());
        let (passed, kept) = output.groups.split_at(kept.unwrap_or(output.groups.len()));
        assert!(kept.iter().all(|group| group.set_aside.is_some()), "groups that were set aside come last");
        if world.config.early_stop.keeps_dispatch_order() {
            for part in [passed, kept] {
                let numbers: Vec<u64> = part.iter().map(|group| group.number).collect();
                invariants::in_dispatch_order(&numbers).unwrap();
            }
        }
        match output.metrics.end {
            StepEnd::Reached => assert_eq!(numbers.len(), target),
            StepEnd::OutOfBatches => assert!(numbers.len() < target),
            other => panic!("unexpected event: {other:?}"),
        }
        output.groups.iter().for_each(|group| world.check_samples(group));
        world.check_between_steps(&manager);
        fingerprint.extend(output.groups.iter().map(|group| (group.number, group.tokens())));
    }
    world.scope.close(Duration::from_secs(1)).await;
    fingerprint
}

const STEPS_PER_SEED: usize = 10;

fn run_seed(seed: u64) -> Vec<(u64, u64)> {
    in_virtual_time(async { run(World::random(seed), STEPS_PER_SEED).await })
}

#[test]
fn invariants_hold_whatever_happens_to_the_fleet() {
    if let Some(seed) = env_number("ROLLDOCK_SIM_SEED") {
        run_seed(seed);
        return;
    }
    let steps = env_number("ROLLDOCK_SIM_STEPS").unwrap_or(2_000) as usize;
    for seed in 0..steps.div_ceil(STEPS_PER_SEED) as u64 {
        let outcome = std::panic::catch_unwind(|| run_seed(seed));
        assert!(outcome.is_ok(), "repeat with ROLLDOCK_SIM_SEED={seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 5, 8] {
        assert_eq!(run_seed(seed), run_seed(seed), "seed={seed}");
    }
}

/// No group ends on a silent fleet, so the workers must be filled without waiting for the end of a group.
#[tokio::test(start_paused = true)]
async fn workers_are_filled_before_anything_has_ended() {
    let mut world = World::random(1);
    world.config.workers = 4;
    world.config.max_concurrent_prompts = 50;
    world.config.gen_batch_size = 200;
    world.config.launch = Launch::Batch;
    world.engine.servers().for_each(|server| server.inject(Fault::Stall));
    let mut manager = world.manager();
    let view = manager.view();
    let feed = prompts(1_000);
    let step = tokio::time::timeout(Duration::from_secs(1), manager.generate(&feed, 200));
    let watch = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        view.counts().running
    };
    let (ended, running) = tokio::join!(step, watch);
    assert!(ended.is_err(), "a silent fleet finishes nothing");
    assert_eq!(running, 200);
}
