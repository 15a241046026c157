//! Checks of `[queue]`.

use arrow_schema::Schema;
use rolldock_queue::{OnFull, TaskSpec};

use super::{Checks, Origin, SECONDS_MAX, consumer, within};
use crate::sections::added_columns;
use crate::{Queue, Recipe, VALIDATION};

/// The shortest lease, in seconds. It leaves a client enough time to renew the lease over a network.
const LEASE_S_MIN: f64 = 0.1;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    check_tasks(queue, &recipe.row_schema(), checks);
    checks.require(!queue.partition.is_empty(), "queue.partition", || "expected a name".to_owned());
    checks.require(queue.listen.is_none() || queue.address().is_some(), "queue.listen", || {
        format!(
            "expected an address and a port, for example \"127.0.0.1:7070\", found {:?}",
            queue.listen.as_deref().unwrap_or_default()
        )
    });
    checks.require(queue.token.as_ref().is_none_or(|token| !token.is_empty()), "queue.token", || {
        "expected a token that cannot be guessed".to_owned()
    });
    within(queue.lease_s, LEASE_S_MIN, SECONDS_MAX, "queue.lease_s", checks);
    checks.require(recipe.validation.is_none() || queue.partition != VALIDATION, "queue.partition", || {
        format!("the rows of [validation] are in the partition {VALIDATION:?}; expected another name")
    });
    match &queue.consumer {
        None => check_room_for_all(recipe, checks),
        Some(consumer) => consumer::check(recipe, consumer, checks),
    }
}

fn is_repeated(names: &[String]) -> bool {
    (1..names.len()).any(|at| names[..at].contains(&names[at]))
}

fn check_tasks(queue: &Queue, own: &Schema, checks: &mut Checks<'_>) {
    let names = queue.tasks.names();
    let are_named = !names.is_empty() && names.iter().all(|task| !task.is_empty());
    checks.require(are_named, "queue.tasks", || "expected at least one task name".to_owned());
    checks.require(!is_repeated(&names), "queue.tasks", || "a task is listed twice".to_owned());
    for TaskSpec { name, columns } in queue.tasks.specs() {
        let key = format!("queue.tasks.{name}.columns");
        checks.require(!is_repeated(&columns), &key, || "a column is listed twice".to_owned());
        checks.require(!columns.contains(&String::new()), &key, || "expected names of columns".to_owned());
    }
    for name in queue.columns.keys() {
        let is_own = own.column_with_name(name).is_some();
        checks.require(!is_own, &format!("queue.columns.{name}"), || {
            "expected a column that other processes add, found one of the rollout".to_owned()
        });
    }
    let added: Vec<String> = added_columns(&queue.tasks, own).into_iter().collect();
    checks.require(added.is_empty() || queue.listen.is_some(), "queue.listen", || {
        format!(
            "tasks wait for columns that other processes add ({}); expected an address at which these reach the queue",
            added.join(", ")
        )
    });
}

/// Checks the capacity for a run without a consumer. Rows are then freed during the run only if other
/// processes take them.
fn check_room_for_all(recipe: &Recipe, checks: &mut Checks<'_>) {
    let queue = &recipe.queue;
    let group_rows = recipe.rollout.samples_per_prompt as usize;
    let step_rows = group_rows.saturating_mul(recipe.rollout.train_batch_size);
    if queue.listen.is_some() {
        checks.require(queue.capacity_rows >= group_rows, "queue.capacity_rows", || {
            format!("one group must fit; expected at least {group_rows}, found {}", queue.capacity_rows)
        });
        return;
    }
    // A resumed run may have begun with a version of Rolldock that did not make this check.
    let ends = recipe.run.steps.is_some() || queue.on_full != OnFull::Block || checks.origin == Origin::Kept;
    checks.require(ends, "run.steps", || {
        "no consumer takes rows during the run, so it would wait for room in the queue for ever; expected run.steps, \
         queue.listen, a [queue.consumer], or queue.on_full = \"refuse\", with which a full queue ends the run"
            .to_owned()
    });
    let steps = recipe.run.steps.map_or(1, |steps| usize::try_from(steps).unwrap_or(usize::MAX));
    let (needed, of_what) = match (queue.on_full, recipe.run.steps) {
        (OnFull::DropOldest, _) => (group_rows, "one group"),
        (_, None) => (step_rows, "one step"),
        (_, Some(_)) => (step_rows.saturating_mul(steps), "all of run.steps"),
    };
    checks.require(queue.capacity_rows >= needed, "queue.capacity_rows", || {
        format!(
            "no consumer takes rows during the run, so {of_what} must fit; expected at least {needed}, found {}, or a \
             [queue.consumer]",
            queue.capacity_rows
        )
    });
}
