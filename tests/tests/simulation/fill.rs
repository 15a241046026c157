//! Tests of `rollout.fill`: what a worker counts when it starts groups, when counting samples saves time, and when it
//! costs tokens.

use rolldock::rollout::{EarlyStop, Fill, OnStop, StepMetrics};

use crate::support::{World, in_virtual_time};

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
