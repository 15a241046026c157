//! Tests of measured permits: when they are better than a fixed number, and when they change little.

use std::time::Duration;

use rolldock_loadbalancer::{AdaptiveConfig, MonitorConfig};
use rolldock_simengine::ServerConfig;

use crate::support::{World, in_virtual_time, prompts};

/// A number of permits that is too large for a server with a full cache.
const PERMITS: u32 = 256;
const SERVERS: usize = 2;

/// The results of a few steps.
struct Steps {
    /// Mean time of the steps that took time. A step takes none if the steps before it have held enough groups, and
    /// the number of such steps is left to chance.
    seconds: f64,
    preemptions: u64,
    /// The permits of each server at the end.
    capacities: Vec<u32>,
}

/// Collects steps on servers whose KV caches hold `cache_tokens` tokens. Without `start`, a server has
/// [`PERMITS`] permits. With `start`, it begins with this number of permits, and the number is then measured.
fn steps(cache_tokens: u32, start: Option<u32>) -> Steps {
    in_virtual_time(async {
        let server = ServerConfig {
            max_model_len: 512,
            kv_blocks: cache_tokens / 16,
            block_tokens: 16,
            max_num_seqs: PERMITS,
            // Three times the default: a preempted sample has to be computed again, and this is what is gained.
            prefill_ns_per_token: 100_000,
            ..ServerConfig::default()
        };
        let mut world = World::calm_on(SERVERS, start.unwrap_or(PERMITS), &server);
        world.config.workers = SERVERS;
        world.config.max_concurrent_prompts = 128;
        world.config.gen_batch_size = 512;
        world.config.max_response_length = 400;
        world.monitor = MonitorConfig {
            // The samples of this test take half a second.
            probe_interval: Duration::from_millis(50),
            adaptive: start.map(|start| AdaptiveConfig { start, ..AdaptiveConfig::default() }),
            ..world.monitor
        };
        let monitor = world.start_monitor();
        let mut manager = world.manager();
        let mut times = Vec::new();
        for _ in 0..8 {
            let output = manager.generate(&prompts(10_000), 256).await.unwrap();
            output.groups.iter().for_each(|group| world.check_samples(group));
            world.check_between_steps(&manager);
            times.push(output.metrics.elapsed.as_secs_f64());
        }
        drop(monitor);
        times.retain(|seconds| *seconds > 0.0);
        let steps = Steps {
            seconds: times.iter().sum::<f64>() / times.len() as f64,
            preemptions: world.engine.servers().map(|server| server.stats().preemptions_total).sum(),
            capacities: world.balancer.snapshot().servers.iter().map(|server| server.capacity).collect(),
        };
        world.scope.close(Duration::from_secs(1)).await;
        steps
    })
}

#[test]
fn measured_permits_win_where_the_caches_are_full() {
    let [fixed, measured] = [None, Some(64)].map(|start| steps(4_000, start));
    let Steps { seconds, preemptions, .. } = measured;
    assert!(preemptions < fixed.preemptions / 2, "{preemptions} preemptions of {}", fixed.preemptions);
    assert!(seconds < 0.95 * fixed.seconds, "{seconds} s, and {} s with {PERMITS} permits", fixed.seconds);
}

#[test]
fn measured_permits_reach_the_fixed_number_where_the_caches_have_room() {
    let [fixed, measured] = [None, Some(64)].map(|start| steps(400_000, start));
    let Steps { seconds, preemptions, capacities } = measured;
    assert_eq!((fixed.preemptions, preemptions), (0, 0));
    assert!(seconds < 1.1 * fixed.seconds, "{seconds} s, and {} s with {PERMITS} permits", fixed.seconds);
    assert!(capacities.iter().all(|capacity| *capacity > 3 * 64), "{capacities:?}");
}
