#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;

/// The smallest valid recipe.
const MINIMAL: &str = include_str!("../tests/minimal.toml");
/// The tables that the smallest recipe lacks.
const REST: &str = r#"[data.columns]
prompt = "p"
answer = "a"
[data.history]
sampling = "difficulty"
[validation]
every_steps = 2
samples_per_prompt = 2
[environment]
name = "calculator"
[reward.overlong]
buffer_length = 10
penalty_factor = 1.0
[queue.consumer]
task = "train"
take_groups = 2
[agent]
command = ["a"]
[gateway]
turns_max = 2
"#;

/// A recipe with every table that a recipe can have.
fn full() -> String {
    format!("{MINIMAL}{REST}")
}

fn recipe(text: &str) -> Recipe {
    toml::from_str(text).unwrap()
}

fn changed(replace: &str, by: &str) -> Vec<Change> {
    let full = full();
    assert!(full.contains(replace), "{replace}");
    changes(&recipe(&full), &recipe(&full.replace(replace, by))).unwrap()
}

/// The keys that serde accepts in a table of a recipe. The list is empty if the table accepts any key.
fn fields_of(full: &Table, path: &[String]) -> Vec<String> {
    let mut probed = full.clone();
    let mut table = &mut probed;
    for name in path {
        table = table.get_mut(name).and_then(Value::as_table_mut).unwrap();
    }
    table.insert("no_such_key".to_owned(), Value::Integer(1));
    let Err(error) = probed.try_into::<Recipe>() else { return Vec::new() };
    let message = error.to_string();
    let (_, expected) = message.split_once("unknown field `no_such_key`, expected").unwrap_or_else(|| {
        panic!("{}: {message}", path.join("."));
    });
    let names = expected.lines().next().unwrap_or("");
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn every_key(full: &Table, path: &[String], keys: &mut Vec<String>) {
    for field in fields_of(full, path) {
        let inner: Vec<String> = path.iter().cloned().chain([field]).collect();
        let mut value = full.get(&inner[0]);
        for name in &inner[1..] {
            value = value.and_then(|value| value.get(name));
        }
        match value {
            Some(Value::Table(_)) if !fields_of(full, &inner).is_empty() => every_key(full, &inner, keys),
            _ => keys.push(inner.join(".")),
        }
    }
}

#[test]
fn every_key_of_a_recipe_has_a_verdict() {
    let full = Table::try_from(recipe(&full())).unwrap();
    let mut keys = Vec::new();
    every_key(&full, &[], &mut keys);
    assert!(keys.len() > 80, "{keys:?}");
    for known in ["model.name", "fleet.api_key", "rollout.sampling.top_k", "queue.consumer.task", "trainer"] {
        assert!(keys.iter().any(|key| key == known), "{known} was not found: {keys:?}");
    }
    let forgotten: Vec<&String> = keys.iter().filter(|key| verdict_of(key).is_none()).collect();
    assert!(forgotten.is_empty(), "add these to the table of verdicts: {forgotten:?}");
}

#[test]
fn equal_recipes_have_no_changes() {
    assert_eq!(changes(&recipe(&full()), &recipe(&full())).unwrap(), []);
    assert_eq!(changed("train = \"t.jsonl\"", "train = [\"t.jsonl\"]"), []);
}

#[test]
fn each_change_has_its_verdict() {
    let of = |replace: &str, by: &str| {
        let changes = changed(replace, by);
        assert_eq!(changes.len(), 1, "{changes:?}");
        (changes[0].key.clone(), changes[0].verdict)
    };
    assert_eq!(of("servers = 2", "servers = 3"), ("fleet.simulated.servers".to_owned(), Verdict::Allowed));
    assert!(matches!(of("train = \"t", "train = \"u").1, Verdict::Refused(_)));
    assert!(matches!(of("samples_per_prompt = 4", "samples_per_prompt = 5").1, Verdict::Refused(_)));
    assert!(matches!(of("train_batch_size = 8", "train_batch_size = 9").1, Verdict::Warned(_)));
    assert!(matches!(of("mode = \"off\"", "mode = \"off\"\nmax_staleness = 3").1, Verdict::Warned(_)));
}

/// A prompt that waits and its kept tokens stay valid only if the prompt is cut as before.
#[test]
fn a_change_of_the_lengths_of_prompts_is_judged_by_its_values() {
    let with = |length: u32, overlong: &str| {
        let lengths = format!("max_prompt_length = {length}\noverlong_prompts = \"{overlong}\"");
        recipe(&full().replace("train = \"t.jsonl\"", &format!("train = \"t.jsonl\"\n{lengths}")))
    };
    let is_refused = |old: (u32, &str), new: (u32, &str)| {
        let changes = changes(&with(old.0, old.1), &with(new.0, new.1)).unwrap();
        assert!(!changes.is_empty(), "{old:?} {new:?}");
        changes.iter().any(|change| matches!(change.verdict, Verdict::Refused(_)))
    };
    for (old, new, refused) in [
        ((256, "drop"), (128, "drop"), false),
        ((256, "drop"), (512, "error"), false),
        ((256, "drop"), (256, "truncate_left"), false),
        ((256, "drop"), (512, "truncate_left"), false),
        ((256, "drop"), (128, "truncate_left"), true),
        ((256, "truncate_left"), (512, "truncate_left"), true),
        ((256, "truncate_left"), (256, "drop"), true),
    ] {
        assert_eq!(is_refused(old, new), refused, "{old:?} {new:?}");
    }
}

#[test]
fn an_added_or_removed_table_is_judged_key_by_key() {
    let changes = changed("[fleet.simulated]\nservers = 2", "[fleet]\nendpoints = [\"http://a:1\"]");
    let of = |key: &str| changes.iter().find(|change| change.key == key).unwrap();
    assert_eq!(of("fleet.endpoints").old, None);
    assert_eq!(of("fleet.simulated.servers").new, None);
    assert!(matches!(of("fleet.simulated.seed").verdict, Verdict::Warned(_)));
    assert!(changes.iter().all(|change| !matches!(change.verdict, Verdict::Refused(_))), "{changes:?}");
}

#[test]
fn unknown_keys_have_the_verdict_of_their_table_or_none() {
    assert_eq!(verdict_of("rollout.no_such_key"), None);
    assert_eq!(verdict_of("policy.no_such_key"), Some(Verdict::Allowed));
    assert!(matches!(verdict_of("policy.mode"), Some(Verdict::Warned(_))));
    assert_eq!(verdict_of("policyx.mode"), None);
    assert_eq!(verdict_of("trainer.optimizer.lr"), Some(Verdict::Allowed));
}

#[test]
fn a_change_is_shown_in_one_line() {
    let changes = changed("gen_batch_size = 16", "gen_batch_size = 32");
    let words = changes[0].to_string();
    assert!(words.starts_with("rollout.gen_batch_size: 16 -> 32 (warning: "), "{words}");
}
