//! Tests of `rollout.fill`: what a worker counts when it starts groups, when counting samples saves time, and when it
//! costs tokens.

use std::time::Duration;

use rolldock::rollout::{EarlyStop, Fill, OnStop, StepMetrics};
use tokio::time::sleep;

use crate::support::{World, in_virtual_time, prompts};

/// Collects a step of 24 groups on a server that has room for all samples.
fn step(fill: Fill, set: impl FnOnce(&mut World)) -> StepMetrics {
    in_virtual_time(async {
        let mut world = World::calm(1, 256);
        world.config.fill = fill;
        world.config.max_response_length = 400;
        set(&mut world);
        world.collect_step(24).await
    })
}

fn both(set: impl Fn(&mut World)) -> [StepMetrics; 2] {
    [Fill::Groups, Fill::Samples].map(|fill| step(fill, &set))
}

#[test]
fn counting_samples_keeps_more_of_them_in_flight() {
    let [groups, samples] = both(|_| {});
    let (groups_s, samples_s) = (groups.elapsed.as_secs_f64(), samples.elapsed.as_secs_f64());
    assert!(samples_s < 0.85 * groups_s, "{samples_s} s, and {groups_s} s if groups are counted");
    assert_eq!(samples.tokens.accepted, groups.tokens.accepted, "the same groups");
}

/// With a place for a single group, its last sample decides when the next group starts.
#[test]
fn counting_samples_changes_nothing_for_single_groups() {
    let [groups, samples] = both(|world| world.config.max_concurrent_prompts = 1);
    assert_eq!(samples.elapsed, groups.elapsed);
    assert_eq!(samples.tokens, groups.tokens);
}

/// More groups run at a time, so a stop at the first valid groups cuts more of them off.
#[test]
fn counting_samples_costs_tokens_where_running_groups_are_discarded() {
    let [groups, samples] = both(|world| {
        world.config.early_stop = EarlyStop::First;
        world.config.on_stop = OnStop::Discard;
    });
    assert!(samples.elapsed < groups.elapsed);
    let [groups, samples] = [groups, samples].map(|step| step.tokens.wasted.cut);
    assert!(samples > groups, "{samples} tokens are cut off, and {groups} if groups are counted");
}

/// With fewer permits than samples the fleet is full, although samples of the groups have ended.
#[test]
fn a_look_at_a_step_counts_the_workers_that_a_full_fleet_holds_back() {
    in_virtual_time(async {
        let world = World::calm(1, 8);
        let mut manager = world.manager();
        let view = manager.view();
        let held = async {
            loop {
                sleep(Duration::from_millis(10)).await;
                let look = view.look();
                if look.wants_new && look.workers_at_full_fleet > 0 {
                    return look;
                }
            }
        };
        let feed = prompts(1_000);
        let look = tokio::select! {
            biased;
            look = held => look,
            ended = manager.generate(&feed, 24) => panic!("no worker was held back: {ended:?}"),
        };
        assert_eq!((look.workers_at_full_fleet, look.workers_without_places), (1, 0));
        assert!(look.counts.running >= 4 && look.counts.hold.is_none(), "{look:?}");
        world.scope.close(Duration::from_secs(1)).await;
        let look = view.look();
        assert_eq!((look.workers_at_full_fleet, look.workers_without_places), (0, 0), "no worker is left");
    });
}
