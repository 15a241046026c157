//! Tests of groups that a step cannot need: what it saves to cut them off, and that the accepted groups are the same.

use std::time::Duration;

use rolldock::rollout::{Group, Staleness, StepMetrics, invariants};

use crate::support::{World, in_virtual_time, prompts};

const STEPS: u64 = 6;

/// Collects steps on a small fleet. The trainer announces a version after each step, and accepts groups that are at most
/// `max` versions old. Returns the accepted groups and the metrics of each step.
fn steps(max: u64) -> Vec<(Vec<Group>, StepMetrics)> {
    in_virtual_time(async {
        let mut world = World::calm(2, 16);
        world.config.max_concurrent_prompts = 24;
        world.config.gen_batch_size = 32;
        world.config.staleness = Staleness { max, is_announced: true, ..Staleness::default() };
        let mut manager = world.manager();
        let (control, feed) = (manager.control(), prompts(10_000));
        let mut steps = Vec::new();
        for step in 0..STEPS {
            control.set_policy_version(step);
            let output = manager.generate(&feed, 8).await.unwrap();
            output.groups.iter().for_each(|group| world.check_samples(group));
            world.check_between_steps(&manager);
            let generated = world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
            invariants::tokens_counted(&output.metrics.tokens_run, generated).unwrap();
            steps.push((output.groups, output.metrics));
        }
        world.scope.close(Duration::from_secs(1)).await;
        steps
    })
}

#[test]
fn surplus_that_the_next_step_could_not_use_is_cut_off_and_the_same_groups_are_accepted() {
    let (in_sync, one_behind) = (steps(0), steps(1));
    let numbers = |steps: &[(Vec<Group>, StepMetrics)]| -> Vec<u64> {
        steps.iter().flat_map(|(groups, _)| groups).map(|group| group.number).collect()
    };
    assert_eq!(numbers(&in_sync), numbers(&one_behind));
    // At the end of the first step, nothing is left of an earlier one: both have generated the same groups so far, and
    // only one of them can use the rest.
    let [(_, cut), (_, kept)] = [&in_sync[0], &one_behind[0]];
    let all = |metrics: &StepMetrics| metrics.tokens.generated;
    assert!(all(cut) < all(kept), "{} tokens with a cut, {} without", all(cut), all(kept));
    assert!(cut.elapsed <= kept.elapsed);
    assert!(kept.totals.held > 0, "{:?}", kept.totals);
    // Only groups that ended before they were known to be surplus are thrown away.
    let stale: u64 = in_sync.iter().map(|(_, metrics)| metrics.totals.stale).sum();
    let held: u64 = one_behind.iter().map(|(_, metrics)| metrics.totals.held).sum();
    assert!(2 * stale < held, "{stale} stale, {held} held");
}

#[test]
fn groups_that_are_cut_off_together_end_in_the_same_order_in_each_run() {
    let runs = [(); 2].map(|()| steps(0));
    let places = |steps: &[(Vec<Group>, StepMetrics)]| -> Vec<_> {
        let samples = steps.iter().flat_map(|(groups, _)| groups).flat_map(|group| &group.samples);
        samples.map(|sample| (sample.server.clone(), sample.spent)).collect()
    };
    assert_eq!(places(&runs[0]), places(&runs[1]));
}
