//! Tests of samples that move from a slow server to a fast server: when a move saves time, and when no sample
//! moves.

use std::time::Duration;

use rolldock::rollout::{StepMetrics, Stragglers, invariants};
use rolldock_simengine::Fault;

use crate::support::{World, in_virtual_time, prompts};

/// Collects a step on two servers. The second server is slower by `factor`. Checks that each sample equals its
/// draw, and that every token that the servers generated is in a bucket.
fn step(stragglers: Stragglers, factor: f64) -> StepMetrics {
    in_virtual_time(async {
        let mut world = World::calm(2, 16);
        world.config.stragglers = stragglers;
        world.config.workers = 2;
        world.config.max_response_length = 400;
        world.engine.server("s1").unwrap().inject(Fault::Slow { factor });
        let monitor = world.start_monitor();
        let mut manager = world.manager();
        let output = manager.generate(&prompts(1_000), 8).await.unwrap();
        assert_eq!(output.groups.len(), 8);
        output.groups.iter().for_each(|group| world.check_samples(group));
        world.check_between_steps(&manager);
        let generated = world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
        invariants::tokens_counted(&output.metrics.tokens_run, generated).unwrap();
        drop(monitor);
        world.scope.close(Duration::from_secs(1)).await;
        output.metrics
    })
}

#[test]
fn stragglers_that_move_end_a_step_sooner_with_the_same_samples() {
    let [stay, moved] = [Stragglers::Stay, Stragglers::Move].map(|stragglers| step(stragglers, 20.0));
    assert_eq!(stay.costs.moves, 0);
    assert!(moved.costs.moves > 0 && moved.costs.moved_tokens > 0, "{:?}", moved.costs);
    let (stay_s, moved_s) = (stay.elapsed.as_secs_f64(), moved.elapsed.as_secs_f64());
    assert!(moved_s < 0.6 * stay_s, "{moved_s} s with moves, {stay_s} s without");
    assert_eq!(moved.tokens.wasted.failed_attempt, 0, "a move loses no token");
    assert_eq!(moved.tokens.accepted, stay.tokens.accepted, "the same responses");
}

#[test]
fn nothing_moves_between_equal_servers() {
    let [stay, moved] = [Stragglers::Stay, Stragglers::Move].map(|stragglers| step(stragglers, 1.0));
    assert_eq!(moved.costs.moves, 0);
    assert_eq!(moved.elapsed, stay.elapsed);
}
