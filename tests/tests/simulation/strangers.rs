//! Servers that refuse every request, as a server does that was started again with another model or another API key. Their
//! health checks succeed. In virtual time.

use std::time::Duration;

use crate::support::{World, in_virtual_time, prompts};
use rolldock::dispatch::Totals;
use rolldock::rollout::{EarlyStop, RolloutOutput};
use tokio::time::{Instant, timeout};

/// The number of groups of a step.
const TARGET: usize = 32;
/// The virtual time that no step may exceed.
const LIMIT: Duration = Duration::from_secs(3_000);

/// A step that awaits all of its groups. Server `s0` has another model for the given time.
async fn step(servers: usize, other_for: Duration) -> (RolloutOutput, World) {
    let mut world = World::calm(servers, 64);
    world.config.early_stop = EarlyStop::Off;
    world.config.gen_batch_size = TARGET;
    world.config.max_gen_batches = 1;
    world.others_until.insert("s0".to_owned(), Instant::now() + other_for);
    let _monitoring = world.start_monitor();
    let mut manager = world.manager();
    let collected = timeout(LIMIT, manager.generate(&prompts(1_000), TARGET)).await;
    let output = collected.unwrap_or_else(|_| panic!("the step hangs")).unwrap();
    world.check_between_steps(&manager);
    (output, world)
}

fn assert_no_group_has_failed(output: &RolloutOutput) {
    let Totals { dispatched, accepted, filtered, .. } = output.metrics.totals;
    assert_eq!(
        (dispatched, accepted + filtered),
        (TARGET as u64, TARGET as u64),
        "{:?}",
        output.metrics.totals
    );
}

#[test]
fn groups_go_to_the_servers_that_serve_them() {
    in_virtual_time(async {
        let (output, world) = step(2, Duration::from_secs(1_000_000)).await;
        assert_no_group_has_failed(&output);
        let fleet = world.balancer.snapshot();
        let of_other = fleet.servers.iter().find(|server| &*server.name == "s0").unwrap();
        let (faults, refusals) = (of_other.outcomes.fault, of_other.outcomes.client_error);
        assert!(faults > 0 && refusals == 0, "{:?}", of_other.outcomes);
        // Only the first requests, and one at a time as a trial.
        let seconds = output.metrics.elapsed.as_secs();
        assert!(faults < 64 + seconds, "faults={faults} seconds={seconds}");
    });
}

#[test]
fn groups_wait_for_the_only_server_to_be_right_again() {
    in_virtual_time(async {
        let (output, _world) = step(1, Duration::from_secs(300)).await;
        assert_no_group_has_failed(&output);
        assert!(output.metrics.elapsed > Duration::from_secs(300), "{:?}", output.metrics.elapsed);
    });
}
