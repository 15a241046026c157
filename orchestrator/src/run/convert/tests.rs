#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;
use crate::recipe::LoadOptions;

fn validation_waits_as(keys: &str) -> Priority {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    let text = format!(
        "[policy]\nmode = \"off\"\n[run]\nsteps = 1\n\
         [model]\nname = \"m\"\ntokenizer = \"builtin\"\n[data]\ntrain = \"t.jsonl\"\nvalidation = \"v.jsonl\"\n\
         [fleet.simulated]\nservers = 2\n[rollout]\nsamples_per_prompt = 4\ntrain_batch_size = 8\ngen_batch_size = 16\n\
         max_response_length = 128\n[validation]\nevery_steps = 1\nsamples_per_prompt = 1\n{keys}\n"
    );
    std::fs::write(&path, text).unwrap();
    let recipe = Recipe::load(&path, &LoadOptions::default()).unwrap();
    let config = validation_rollout_config(&recipe, recipe.validation.as_ref().unwrap(), "run", 1, 7);
    assert_eq!(rollout_config(&recipe, "run", Arc::default()).priority_new, Priority::New);
    config.priority_new
}

#[test]
fn the_recipe_decides_the_priority_of_validation() {
    assert_eq!(validation_waits_as(""), Priority::Validation);
    assert_eq!(validation_waits_as("priority = \"last\""), Priority::Validation);
    assert_eq!(validation_waits_as("priority = \"equal\""), Priority::New);
    assert_eq!(validation_waits_as("priority = \"first\""), Priority::Started);
}
