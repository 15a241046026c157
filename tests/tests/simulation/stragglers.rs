//! Tests of samples that move from a slow or full server to another, or are copied there: when this saves time, and
//! when no sample is moved or copied.

use std::time::Duration;

use rolldock::dispatch::StepEnd;
use rolldock::rollout::{EarlyStop, Fill, Launch, StepMetrics, Stragglers, invariants};
use rolldock_loadbalancer::AdaptiveConfig;
use rolldock_simengine::{Fault, ServerConfig};

use crate::support::{World, in_virtual_time, prompts};

/// Collects a step on two servers, which are slower than usual by these factors.
fn step(stragglers: Stragglers, [first, second]: [f64; 2]) -> StepMetrics {
    in_virtual_time(async {
        let mut world = World::calm(2, 16);
        world.config.stragglers = stragglers;
        world.config.workers = 2;
        // If samples were counted, new groups would fill the faster server until the step ends.
        world.config.fill = Fill::Groups;
        world.config.max_response_length = 400;
        for (server, factor) in [("s0", first), ("s1", second)] {
            world.engine.server(server).unwrap().inject(Fault::Slow { factor });
        }
        world.collect_step(8).await
    })
}

#[test]
fn stragglers_that_move_end_a_step_sooner_with_the_same_samples() {
    let [stay, moved] = [Stragglers::Stay, Stragglers::Move].map(|stragglers| step(stragglers, [1.0, 20.0]));
    assert_eq!(stay.costs.moves, 0);
    assert!(moved.costs.moves > 0 && moved.costs.moved_tokens > 0, "{:?}", moved.costs);
    let (stay_s, moved_s) = (stay.elapsed.as_secs_f64(), moved.elapsed.as_secs_f64());
    assert!(moved_s < 0.6 * stay_s, "{moved_s} s with moves, {stay_s} s without");
    assert_eq!(moved.tokens.wasted.failed_attempt, 0, "a move loses no token");
    assert_eq!(moved.tokens.accepted, stay.tokens.accepted, "the same responses");
}

/// The data has fewer prompts than the step needs. The step still needs new groups, but none can be sent out.
#[test]
fn stragglers_move_when_the_data_has_no_more_prompts() {
    let last_step = |stragglers| {
        in_virtual_time(async {
            let mut world = World::calm(2, 64);
            world.config.stragglers = stragglers;
            world.config.launch = Launch::OnDemand;
            world.config.max_response_length = 400;
            world.engine.server("s1").unwrap().inject(Fault::Slow { factor: 20.0 });
            let monitor = world.start_monitor();
            let step = world.manager().generate(&prompts(8), 9).await.unwrap().metrics;
            drop(monitor);
            world.scope.close(Duration::from_secs(1)).await;
            step
        })
    };
    let [stay, moved] = [Stragglers::Stay, Stragglers::Move].map(last_step);
    assert_eq!((stay.end, moved.end), (StepEnd::OutOfPrompts, StepEnd::OutOfPrompts));
    let (stay_s, moved_s) = (stay.elapsed.as_secs_f64(), moved.elapsed.as_secs_f64());
    assert!(moved_s < 0.6 * stay_s, "{moved_s} s with moves, {stay_s} s without");
}

#[test]
fn stragglers_that_are_copied_end_a_step_sooner_with_the_same_samples() {
    let [stay, hedged] =
        [Stragglers::Stay, Stragglers::Hedge].map(|stragglers| step(stragglers, [1.0, 20.0]));
    assert_eq!((stay.costs.hedges, stay.tokens.hedges), (0, 0));
    assert!(hedged.costs.hedges > 0 && hedged.tokens.hedges > 0, "{:?}", hedged.costs);
    assert_eq!(hedged.costs.moves, 0);
    let (stay_s, hedged_s) = (stay.elapsed.as_secs_f64(), hedged.elapsed.as_secs_f64());
    assert!(hedged_s < 0.6 * stay_s, "{hedged_s} s with copies, {stay_s} s without");
    assert_eq!(hedged.tokens.wasted.failed_attempt, 0);
    assert_eq!(hedged.tokens.accepted, stay.tokens.accepted, "the same responses");
}

/// A copy has to generate the tokens again that its sample has. On a server that is not even twice as fast this takes
/// longer than the rest of the sample, so moves gain there and copies do not.
#[test]
fn nothing_is_copied_to_a_server_that_is_little_faster() {
    let [stay, moved, hedged] = [Stragglers::Stay, Stragglers::Move, Stragglers::Hedge]
        .map(|stragglers| step(stragglers, [10.0, 20.0]));
    assert!(moved.costs.moves > 0 && moved.elapsed < stay.elapsed, "{:?}", moved.costs);
    assert_eq!((hedged.costs.hedges, hedged.tokens.hedges), (0, 0));
    assert_eq!(hedged.elapsed, stay.elapsed);
}

#[test]
fn nothing_moves_between_equal_servers() {
    let [stay, moved, hedged] = [Stragglers::Stay, Stragglers::Move, Stragglers::Hedge]
        .map(|stragglers| step(stragglers, [1.0, 1.0]));
    assert_eq!((moved.costs.moves, hedged.costs.hedges), (0, 0));
    assert_eq!((moved.elapsed, hedged.elapsed), (stay.elapsed, stay.elapsed));
}

/// The results of steps on servers with small caches.
struct Steps {
    seconds: f64,
    preemptions: u64,
    moves: u64,
    /// Tokens that the servers computed because a sample moved.
    moved_tokens: u64,
}

/// The number of permits of a server.
#[derive(Debug, Clone, Copy)]
enum Permits {
    Measured,
    Fixed(u32),
}

/// Four equal servers with this many tokens of cache. A sample runs for tens of seconds, and to compute its tokens
/// again takes as long as a few steps of the server.
fn small_caches(stragglers: Stragglers, cache_tokens: u32, permits: Permits) -> World {
    let server = ServerConfig {
        max_model_len: 512,
        kv_blocks: cache_tokens / 16,
        decode_base_ns: 200_000_000,
        prefill_ns_per_token: 5_000_000,
        ..ServerConfig::default()
    };
    let (start, adaptive) = match permits {
        Permits::Measured => (64, Some(AdaptiveConfig::default())),
        Permits::Fixed(permits) => (permits, None),
    };
    let mut world = World::calm_on(4, start, &server);
    world.config.stragglers = stragglers;
    world.config.workers = 4;
    world.config.max_concurrent_prompts = 64;
    world.config.gen_batch_size = 256;
    world.config.max_response_length = 400;
    world.monitor.adaptive = adaptive;
    world
}

/// Collects steps on [`small_caches`].
fn full_steps(stragglers: Stragglers, cache_tokens: u32, permits: Permits) -> Steps {
    in_virtual_time(async {
        let world = small_caches(stragglers, cache_tokens, permits);
        let monitor = world.start_monitor();
        let mut manager = world.manager();
        let mut steps = Steps { seconds: 0.0, preemptions: 0, moves: 0, moved_tokens: 0 };
        let prompts = prompts(100_000);
        for _ in 0..4 {
            let output = manager.generate(&prompts, 128).await.unwrap();
            output.groups.iter().for_each(|group| world.check_samples(group));
            world.check_between_steps(&manager);
            let generated = world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
            invariants::tokens_counted(&output.metrics.tokens_run, generated).unwrap();
            steps.seconds += output.metrics.elapsed.as_secs_f64();
            steps.moves += output.metrics.costs.moves;
            steps.moved_tokens += output.metrics.costs.moved_tokens;
        }
        drop(monitor);
        steps.preemptions = world.engine.servers().map(|server| server.stats().preemptions_total).sum();
        world.scope.close(Duration::from_secs(1)).await;
        steps
    })
}

fn with_and_without_moves(cache_tokens: u32, permits: Permits) -> (Steps, Steps) {
    let steps = |stragglers| full_steps(stragglers, cache_tokens, permits);
    let (moved, stay) = (steps(Stragglers::Move), steps(Stragglers::Stay));
    assert_eq!(stay.moves, 0);
    (moved, stay)
}

#[test]
fn samples_that_a_full_server_has_preempted_leave_it() {
    let (moved, stay) = with_and_without_moves(4_000, Permits::Measured);
    assert!(moved.moves > 0);
    assert!(moved.preemptions * 4 < stay.preemptions * 3, "{} of {}", moved.preemptions, stay.preemptions);
    assert!(
        moved.seconds < 0.9 * stay.seconds,
        "{} s, and {} s if samples stay",
        moved.seconds,
        stay.seconds
    );
}

#[test]
fn no_sample_leaves_a_full_server_for_another_full_one() {
    // The servers have more permits than their caches hold, so a sample that left would wait elsewhere.
    let (moved, stay) = with_and_without_moves(4_000, Permits::Fixed(256));
    assert!(stay.preemptions > 0);
    assert_eq!(moved.moves, 0);
}

#[test]
fn no_sample_leaves_a_server_with_room() {
    let (moved, stay) = with_and_without_moves(400_000, Permits::Measured);
    assert_eq!((stay.preemptions, moved.preemptions, moved.moves), (0, 0, 0));
}

#[test]
fn the_tokens_of_moved_samples_are_not_wasted_on_the_servers_that_they_leave() {
    in_virtual_time(async {
        let mut world = small_caches(Stragglers::Move, 4_000, Permits::Measured);
        // Nothing is cut off, so every token is of use.
        world.config.early_stop = EarlyStop::Off;
        let _monitor = world.start_monitor();
        let mut manager = world.manager();
        let feed = prompts(100_000);
        let mut moves = 0;
        for _ in 0..4 {
            moves += manager.generate(&feed, 128).await.unwrap().metrics.costs.moves;
        }
        assert!(moves > 0);
        let servers = world.balancer.snapshot().servers;
        let tokens: u64 = servers.iter().map(|server| server.outcomes.tokens).sum();
        let wasted: u64 = servers.iter().map(|server| server.outcomes.tokens_wasted).sum();
        let by_engines: u64 =
            world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
        assert_eq!((tokens, wasted), (by_engines, 0));
        world.scope.close(Duration::from_secs(1)).await;
    });
}
