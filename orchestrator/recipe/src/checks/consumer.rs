//! Checks of `[queue.consumer]`.
//!
//! A consumer that announces is the run's trainer, and a run relies on the pace of its trainer: one version after every
//! `policy.steps_per_version` steps. With more versions than that, accepted groups would become too old in the queue.
//! With fewer versions, the run would wait for one that is never announced. A step that ends short has a version too,
//! which the consumer announces after the groups that there are.

use rolldock_dispatch::modes::OnStale;
use rolldock_policy::PolicyMode;
use rolldock_queue::OnFull;

use super::{BATCH_GROUPS_MAX, Checks, Origin, SECONDS_MAX, counted, within};
use crate::{Consumer, Policy, Recipe};

pub(super) fn check(recipe: &Recipe, consumer: &Consumer, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    checks.require(queue.tasks.names() == [consumer.task.clone()], "queue.consumer.task", || {
        format!(
            "the embedded consumer frees rows only if its task is the only one; queue.tasks = {:?}",
            queue.tasks.names()
        )
    });
    checks.require(
        consumer.keep_last_steps == 0 || recipe.run.steps.is_some(),
        "queue.consumer.keep_last_steps",
        || "the last steps are known only with `run.steps`; expected `run.steps`, or 0".to_owned(),
    );
    counted(consumer.take_groups, BATCH_GROUPS_MAX, "queue.consumer.take_groups", checks);
    within(consumer.train_s, 0.0, SECONDS_MAX, "queue.consumer.train_s", checks);
    // The values of `[policy]` have their own checks.
    if consumer.announces && recipe.policy.mode != PolicyMode::Off && recipe.policy.steps_per_version > 0 {
        check_whole_versions(recipe, consumer, checks);
        check_last_version(recipe, consumer, checks);
    }
    check_room(recipe, consumer, checks);
}

/// Checks that a batch of a consumer that announces has the groups of one version.
fn check_whole_versions(recipe: &Recipe, consumer: &Consumer, checks: &mut Checks<'_>) {
    let steps = usize::try_from(recipe.policy.steps_per_version).unwrap_or(usize::MAX);
    let groups = recipe.rollout.train_batch_size.saturating_mul(steps);
    checks.require(consumer.take_groups == groups, "queue.consumer.take_groups", || {
        format!(
            "the consumer announces a version after each batch, which must have all groups of a version; expected \
             {groups} (rollout.train_batch_size x policy.steps_per_version), found {}",
            consumer.take_groups
        )
    });
}

/// Checks that the consumer takes enough steps for the version that the last step needs. It takes no groups of the
/// steps that it keeps, and announces no version for them.
fn check_last_version(recipe: &Recipe, consumer: &Consumer, checks: &mut Checks<'_>) {
    let policy = &recipe.policy;
    let another_announces = policy.listen.is_some() || policy.watch.is_some();
    let (Some(steps), Some(ahead), false) = (recipe.run.steps, versions_ahead(policy), another_announces)
    else {
        return;
    };
    // Versions are counted from `first_version` here.
    let version = (steps.saturating_sub(1) / policy.steps_per_version).saturating_sub(ahead);
    let kept_max = steps - version * policy.steps_per_version;
    checks.require(
        version == 0 || consumer.keep_last_steps <= kept_max,
        "queue.consumer.keep_last_steps",
        || {
            format!(
                "the consumer announces no versions for the steps that it keeps, and in mode = \"{}\" the run would \
                 wait for one for ever; expected at most {kept_max}, found {}",
                policy.mode, consumer.keep_last_steps
            )
        },
    );
}

/// The greatest number of versions that a step may lack when it is generated. `None` if there is no limit.
fn versions_ahead(policy: &Policy) -> Option<u64> {
    match policy.mode {
        PolicyMode::Off => None,
        PolicyMode::Sync => Some(0),
        PolicyMode::OneStepOff => Some(1),
        // Without pacing, groups that are delivered although they are too old complete their step.
        PolicyMode::FullyAsync => {
            let delivers = matches!(policy.on_stale, OnStale::MaskTokens | OnStale::DeliverFlagged);
            (policy.pacing || !delivers).then(|| policy.staleness_max())
        }
    }
}

fn check_room(recipe: &Recipe, consumer: &Consumer, checks: &mut Checks<'_>) {
    let group_rows = recipe.rollout.samples_per_prompt as usize;
    // The capacity of a queue that exists cannot be changed. With `drop_oldest`, puts do not wait for room.
    let is_forced = checks.origin == Origin::Kept || recipe.queue.on_full == OnFull::DropOldest;
    let waiting = if consumer.trains() && !is_forced { groups_waiting(recipe, consumer) } else { 0 };
    let groups = waiting.max(kept_groups(recipe, consumer)).max(1);
    let needed = groups.saturating_mul(group_rows);
    checks.require(recipe.queue.capacity_rows >= needed, "queue.capacity_rows", || {
        let batches = match batches_at_a_time(recipe, consumer) {
            _ if !consumer.trains() => "one group",
            1 => "the groups that it takes at a time",
            _ => "twice the groups that it takes at a time, because in mode = \"one_step_off\" the next ones come \
                  before it acks",
        };
        format!(
            "[queue.consumer] needs room for {batches}, and for the steps that it keeps; expected at least {needed}, \
             found {}",
            recipe.queue.capacity_rows
        )
    });
}

/// The groups of the last steps that stay in the queue.
fn kept_groups(recipe: &Recipe, consumer: &Consumer) -> usize {
    let steps = consumer.keep_last_steps.min(recipe.run.steps.unwrap_or(u64::MAX));
    recipe.rollout.train_batch_size.saturating_mul(usize::try_from(steps).unwrap_or(usize::MAX))
}

/// The most groups that must be in the queue before a consumer that trains acks some of them. It takes whole
/// batches, and an incomplete one only at the end of the run, after the last put.
fn groups_waiting(recipe: &Recipe, consumer: &Consumer) -> usize {
    let batches = consumer.take_groups.saturating_mul(batches_at_a_time(recipe, consumer));
    let Some(steps) = recipe.run.steps else { return batches };
    let steps = usize::try_from(steps).unwrap_or(usize::MAX);
    let all = recipe.rollout.train_batch_size.saturating_mul(steps);
    let kept = kept_groups(recipe, consumer);
    let at_end = (all - kept) % consumer.take_groups.max(1) + kept;
    batches.min(all).max(at_end)
}

/// The batches that are in the queue together. In `one_step_off` the servers get the version of a batch only after
/// a further step, and the batch is acked after that.
fn batches_at_a_time(recipe: &Recipe, consumer: &Consumer) -> usize {
    let is_acked_later = consumer.announces && recipe.policy.mode == PolicyMode::OneStepOff;
    if is_acked_later { 2 } else { 1 }
}
