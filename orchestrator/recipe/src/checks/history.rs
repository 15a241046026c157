//! Checks of `[data.history]`, and of the column that it and `[rollout.stop_unlikely]` add.

use rolldock_dispatch::rows::IMPORTANCE_WEIGHT;

use super::Checks;
use crate::Recipe;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let chooses = recipe.data.history.is_some_and(|history| history.chooses());
    if let Some(history) = &recipe.data.history {
        let keep_min = history.keep_min;
        checks.require(keep_min > 0.0 && keep_min <= 1.0, "data.history.keep_min", || {
            format!("expected a probability above 0 and at most 1, found {keep_min}")
        });
    }
    checks.require(!chooses || recipe.filter.enable, "data.history.sampling", || {
        "without [filter] every group is accepted, and nothing is gained by \"difficulty\"; expected \"all\""
            .to_owned()
    });
    let has_weights = chooses || recipe.rollout.stop_unlikely.is_some();
    for task in recipe.queue.tasks.specs() {
        let waits = task.columns.iter().any(|column| column == IMPORTANCE_WEIGHT);
        checks.require(!waits || has_weights, &format!("queue.tasks.{}.columns", task.name), || {
            format!(
                "rows have {IMPORTANCE_WEIGHT} only with data.history.sampling = \"difficulty\" or \
                 [rollout.stop_unlikely]"
            )
        });
    }
    let is_declared = recipe.queue.columns.contains_key(IMPORTANCE_WEIGHT);
    checks.require(!is_declared, &format!("queue.columns.{IMPORTANCE_WEIGHT}"), || {
        "expected a column that other processes add, found one of the rollout".to_owned()
    });
}
