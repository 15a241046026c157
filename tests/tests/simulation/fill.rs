//! Tests of `rollout.fill`: what a worker counts when it starts groups, when counting samples saves time, and when it
//! costs tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock::rollout::{EarlyStop, Fill, OnStop, RequestShape, StepMetrics};
use rolldock_reward::{Gates, GatesConfig, RewardError, RewardJob, RewardRunner, Score};
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

/// A gate that accepts each group after half a minute, which is far longer than a group is generated.
#[derive(Default)]
struct Slow {
    asked: AtomicUsize,
    asked_max: AtomicUsize,
}

impl RewardRunner for Slow {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        async {
            let asked = 1 + self.asked.fetch_add(1, Ordering::Relaxed);
            self.asked_max.fetch_max(asked, Ordering::Relaxed);
            sleep(Duration::from_secs(30)).await;
            self.asked.fetch_sub(1, Ordering::Relaxed);
            Ok(Score::right_or_wrong(true, None))
        }
        .boxed()
    }
}

/// The samples of one request end together, so only a gate that is asked after them gives places to further groups.
#[test]
fn groups_of_one_request_start_beyond_the_limit_only_while_a_gate_is_asked() {
    let whole = |world: &mut World| world.config.request = RequestShape::Group;
    let [groups, samples] = both(whole);
    assert_eq!((samples.elapsed, samples.tokens), (groups.elapsed, groups.tokens));

    let asked_max = |fill: Fill| {
        let gate = Arc::new(Slow::default());
        let metrics = step(fill, |world| {
            whole(world);
            let mut gates = Gates::new(&GatesConfig::default()).unwrap();
            gates.push_outside("slow", Arc::clone(&gate) as Arc<dyn RewardRunner>, false).unwrap();
            world.config.gates = Arc::new(gates);
        });
        (gate.asked_max.load(Ordering::Relaxed), metrics.elapsed)
    };
    let (groups, groups_time) = asked_max(Fill::Groups);
    let (samples, samples_time) = asked_max(Fill::Samples);
    assert_eq!((groups, samples), (4, 8), "the second rule has at most twice as many groups");
    assert!(samples_time < groups_time.mul_f64(0.6), "{samples_time:?}, {groups_time:?}");
}
