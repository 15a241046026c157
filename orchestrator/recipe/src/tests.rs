mod any_text;
mod consumer;
mod mistakes;
mod refused;
mod simulated;

use std::fs;
use std::path::PathBuf;

use rolldock_data::{Duplicates, OverlongPrompts};
use rolldock_dispatch::modes::{Launch, OnStale};
use rolldock_engine::SamplingParams;
use rolldock_policy::{PolicyMode, UpdatePause};

use super::*;

/// The smallest valid recipe.
const MINIMAL: &str = include_str!("tests/minimal.toml");

fn load_text(text: &str, options: &LoadOptions) -> Result<Recipe, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, text).unwrap();
    Recipe::load(&path, options)
        .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

fn complaint(text: &str) -> String {
    load_text(text, &LoadOptions::default()).unwrap_err()
}

fn recipes() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../recipes")
}

#[test]
fn every_recipe_in_the_repository_loads() {
    let mut count = 0;
    for entry in fs::read_dir(recipes()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let recipe =
                Recipe::load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
            let again: Recipe = toml::from_str(&recipe.to_toml().unwrap()).unwrap();
            assert_eq!(again, recipe, "{} differs after it was printed and read", path.display());
            count += 1;
        }
    }
    assert!(count >= 5, "found {count} recipes");
}

#[test]
fn the_recipe_of_the_example_script_has_these_values() {
    let recipe = Recipe::load(&recipes().join("dapo_qwen3_8b.toml"), &LoadOptions::default()).unwrap();
    let rollout = &recipe.rollout;
    assert_eq!(
        (rollout.train_batch_size, rollout.gen_batch_size, rollout.samples_per_prompt),
        (512, 1024, 16)
    );
    assert_eq!((recipe.data.max_prompt_length, rollout.max_response_length), (1024, 8192));
    assert_eq!(recipe.data.overlong_prompts, OverlongPrompts::Drop);
    assert_eq!((rollout.workers, rollout.max_concurrent_prompts, rollout.max_gen_batches), (8, 16, 20));
    assert_eq!(
        rollout.sampling,
        SamplingParams { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: vec![] }
    );
    assert_eq!(recipe.fleet.max_loads_per_server, MaxLoads::Fixed(256));
    assert_eq!((recipe.policy.mode, recipe.policy.staleness_max()), (PolicyMode::Sync, 0));
    assert_eq!((recipe.launch(), recipe.reward.advantage), (Launch::Batch, AdvantageEstimator::Grpo));
    assert_eq!((recipe.data.epochs, recipe.data.duplicates), (Some(10), Duplicates::Drop));
    assert!(recipe.is_announced_to() && recipe.queue.listen.is_some());
    let overlong = recipe.reward.overlong.as_ref().unwrap();
    assert_eq!((overlong.buffer_length, overlong.penalty_factor), (512, 1.0));
    assert!(recipe.filter.enable);
    let validation = recipe.validation.as_ref().unwrap();
    assert!(validation.before_training);
    assert_eq!((validation.samples_per_prompt, validation.every_steps), (8, 10));
    assert_eq!(validation.sampling.temperature, 0.6);
    let trainer = &recipe.trainer;
    for (key, value) in [
        ("clip_ratio_low", 0.2),
        ("clip_ratio_high", 0.28),
        ("clip_ratio_c", 10.0),
        ("entropy_coefficient", 0.0),
        ("learning_rate", 1e-6),
        ("weight_decay", 0.1),
        ("gradient_clip", 1.0),
    ] {
        assert_eq!(trainer[key].as_float(), Some(value), "{key}");
    }
    assert_eq!(trainer["loss_aggregation"].as_str(), Some("token-mean"));
    assert_eq!(trainer["use_kl_loss"].as_bool(), Some(false));
    assert_eq!(
        (trainer["warmup_steps"].as_integer(), trainer["mini_batch_size"].as_integer()),
        (Some(5), Some(32))
    );
}

#[test]
fn later_layers_override_earlier_layers() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("base.toml"), format!("{MINIMAL}workers = 3\nmax_gen_batches = 5\n"))
        .unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, "base = \"base.toml\"\n[rollout]\nworkers = 4\n").unwrap();
    let options = LoadOptions {
        set: vec!["rollout.max_gen_batches=6".into(), "model.name=tiny-qwen3".into()],
        ..Default::default()
    };
    let recipe = Recipe::load(&path, &options).unwrap();
    assert_eq!((recipe.rollout.workers, recipe.rollout.max_gen_batches), (4, 6));
    assert_eq!(recipe.model.name, "tiny-qwen3", "a bare word is a string");
}

#[test]
fn an_endpoint_replaces_the_simulated_fleet() {
    let options = LoadOptions { endpoints: vec!["http://127.0.0.1:8000".into()], ..Default::default() };
    let recipe = load_text(MINIMAL, &options).unwrap();
    assert_eq!(recipe.fleet.endpoints, ["http://127.0.0.1:8000"]);
    assert_eq!(recipe.fleet.simulated, None);
}

#[test]
fn a_base_that_is_its_own_base_is_an_error() {
    let error = complaint("base = \"r.toml\"\n");
    assert!(error.starts_with("r.toml:1:8: `base`"), "{error}");
    assert!(error.contains("its own base"), "{error}");
}

#[test]
fn errors_name_file_line_key_and_the_expected_value() {
    let unknown = complaint(&format!("{MINIMAL}wokers = 3\n"));
    assert!(unknown.starts_with("r.toml:16:1: `rollout.wokers`: unknown field `wokers`"), "{unknown}");
    assert!(unknown.contains("did you mean `workers`?"), "{unknown}");
    assert!(unknown.contains("16 | wokers = 3"), "{unknown}");

    let wrong_type = complaint(&format!("{MINIMAL}workers = \"many\"\n"));
    assert!(
        wrong_type.starts_with("r.toml:16:11: `rollout.workers`: invalid type: string \"many\""),
        "{wrong_type}"
    );

    let wrong_word = complaint(&format!("{MINIMAL}early_stop = \"fifi\"\n"));
    assert!(
        wrong_word.contains("`rollout.early_stop`") && wrong_word.contains("did you mean `fifo`?"),
        "{wrong_word}"
    );

    let missing = complaint(&MINIMAL.replace("name = \"m\"\n", ""));
    assert!(missing.contains("`model`: missing field `name`"), "{missing}");

    let syntax = complaint("[model\n");
    assert!(syntax.starts_with("r.toml:1:"), "{syntax}");
}

#[test]
fn errors_of_options_name_the_option() {
    let options = LoadOptions { set: vec!["rollout.workers=0".into()], ..Default::default() };
    let error = load_text(MINIMAL, &options).unwrap_err();
    assert!(error.starts_with("--set rollout.workers=0:1:"), "{error}");
    let options = LoadOptions { set: vec!["rollout.workers".into()], ..Default::default() };
    assert!(load_text(MINIMAL, &options).unwrap_err().contains("expected key=value"));
}

#[test]
fn the_error_of_invalid_utf8_names_byte_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, b"[model]\nname = \"\xff\"\n").unwrap();
    let error = Recipe::load(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("byte 16, in line 2"), "{error}");
}

#[test]
fn errors_of_rewards_and_filters_name_the_key_and_the_file() {
    for (written, expected) in [
        ("[reward]\npython = \"nomodule\"\n", "`reward.python.function`: expected module:function"),
        ("[reward.guard]\nretries = 1000\n", "`reward.guard`: it guards rewards from outside"),
        (
            "[reward]\nhttp = \"http://h\"\nguard = { retries = 1000 }\n",
            "`reward.guard.retries`: expected 0 to 100",
        ),
        ("[reward]\nhttp = \"http://h\"\npython = \"m:f\"\n", "`reward`: expected exactly one of python"),
        (
            "[filter]\nkeep_if_short = [\"nobody\"]\n",
            "`filter.keep_if_short`: invalid keep_if_short gate=\"nobody\"",
        ),
    ] {
        let error = complaint(&format!("{MINIMAL}{written}"));
        assert!(error.contains(expected), "{written}: {error}");
        assert!(error.contains("r.toml:"), "the error names no file: {error}");
    }
}

#[test]
fn a_bad_base_is_shown_where_it_is_named() {
    let missing = complaint("base = \"nowhere.toml\"\n");
    assert!(missing.starts_with("r.toml:1:8: `base`: cannot read nowhere.toml"), "{missing}");
    let number = complaint("base = 3\n");
    assert!(number.starts_with("r.toml:1:8: `base`: expected a file name, found integer"), "{number}");
}

#[test]
fn an_error_in_a_base_names_the_file_of_the_base() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("base.toml"), format!("{MINIMAL}workers = 0\n")).unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, "base = \"base.toml\"\n").unwrap();
    let error = Recipe::load(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("base.toml:16:11: `rollout.workers`: expected 1 to 4096, found 0"), "{error}");
}

#[test]
fn files_are_found_beside_the_file_that_names_them() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    let shared = folder.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("base.toml"), MINIMAL).unwrap();
    let path = folder.join("r.toml");
    fs::write(&path, "base = \"shared/base.toml\"\n").unwrap();
    let train = |options: &LoadOptions| Recipe::load(&path, options).unwrap().data.train.paths()[0].clone();

    assert_eq!(
        train(&LoadOptions::default()),
        PathBuf::from("t.jsonl"),
        "a path that is not found stays as it is written"
    );
    fs::write(folder.join("t.jsonl"), "").unwrap();
    assert_eq!(train(&LoadOptions::default()), folder.join("t.jsonl"), "the file is beside the recipe");
    fs::write(shared.join("t.jsonl"), "").unwrap();
    assert_eq!(train(&LoadOptions::default()), shared.join("t.jsonl"), "the base's folder is searched first");
    let typed = LoadOptions { set: vec!["data.train=t.jsonl".into()], ..Default::default() };
    assert_eq!(train(&typed), folder.join("t.jsonl"), "a path in an option is not relative to the base");
}

/// A file has one path, whatever leads to it, so a resumed run finds its files from any directory.
#[test]
fn the_paths_of_a_loaded_recipe_are_absolute() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    fs::create_dir(folder.join("recipes")).unwrap();
    fs::write(folder.join("t.jsonl"), "").unwrap();
    let train = |recipe: &Recipe| recipe.data.train.paths()[0].clone();
    let path = folder.join("recipes/r.toml");
    fs::write(&path, MINIMAL.replace("t.jsonl", "../t.jsonl")).unwrap();
    for named in ["recipes/r.toml", "recipes/../recipes/./r.toml"] {
        let recipe = Recipe::load(&folder.join(named), &LoadOptions::default()).unwrap();
        assert_eq!(train(&recipe), folder.join("t.jsonl"));
    }

    let set = [
        "data.train=Cargo.toml",
        "policy.mode=fully_async",
        "policy.watch=versions",
        "reward.python=\"m:f\"",
        "environment.python={class=\"m:C\",directory=\"src\"}",
    ];
    let options = LoadOptions { set: set.map(str::to_owned).to_vec(), ..Default::default() };
    let recipe = Recipe::load(&path, &options).unwrap();
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(train(&recipe), here.join("Cargo.toml"));
    assert_eq!(recipe.policy.watch, Some(here.join("versions")));
    assert_eq!(recipe.reward.python.unwrap().directory, Some(here.clone()), "it would begin here");
    assert_eq!(recipe.environment.unwrap().python.unwrap().directory, Some(here.join("src")));
}

#[test]
fn the_value_of_an_option_may_be_a_bare_word_and_has_one_line() {
    let refused = |set: &str| {
        let options = LoadOptions { set: vec![set.to_owned()], ..Default::default() };
        load_text(MINIMAL, &options).unwrap_err()
    };
    assert!(refused("run.steps=3\nrun.seed=4").contains("expected one line"));
    assert!(refused("base=other.toml").contains("only be named in a file"));
    assert!(refused("rollout.workers=many").contains("invalid type: string \"many\""));
    assert!(refused("=3").contains("--set =3"));
}

#[test]
fn carets_are_below_the_text_that_they_mark() {
    let error = complaint(&format!("{MINIMAL}workers\t=\t0\n"));
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[2..], ["16 | workers = 0", "   |           ^"], "{error}");
}

#[test]
fn errors_point_at_the_invalid_endpoint() {
    let fleet = "[fleet]\nendpoints = [\"http://a:1\", \"http://b:2/v1\", \"http://a:1/\"]";
    let error = complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", fleet));
    assert!(error.contains("r.toml:10:28: `fleet.endpoints.1`: expected the server's base URL"), "{error}");
    assert!(error.contains("r.toml:10:45: `fleet.endpoints.2`: this endpoint is listed twice"), "{error}");
}

#[test]
fn a_secret_is_read_and_never_written() {
    let options = LoadOptions { set: vec!["fleet.api_key=hush-1234".into()], ..Default::default() };
    let recipe = load_text(MINIMAL, &options).unwrap();
    assert_eq!(recipe.fleet.api_key.as_deref(), Some("hush-1234"));
    assert!(!recipe.to_toml().unwrap().contains("hush"));
}

#[test]
fn the_policy_is_read_with_its_defaults_and_without_its_token() {
    let written = "mode = \"fully_async\"\nlisten = \"127.0.0.1:7401\"\ntoken = \"hush-1234\"\n\
                   update = { method = \"reload\", cache_salt = true, timeouts = { pause = 5 } }\n";
    let text = MINIMAL.replace("mode = \"off\"\n", written);
    let text = text.replace("servers = 2", "servers = 2\ntransport = \"http\"");
    let recipe = load_text(&text, &LoadOptions::default()).unwrap();
    let policy = &recipe.policy;
    assert_eq!((policy.mode, policy.max_staleness, policy.pacing), (PolicyMode::FullyAsync, Some(1), true));
    assert_eq!(policy.on_stale, OnStale::Requeue);
    assert_eq!(policy.address(), Some(([127, 0, 0, 1], 7401).into()));
    assert_eq!((policy.update.rpc.as_str(), policy.update.pause), ("reload_weights", UpdatePause::Keep));
    assert!(!policy.update.resets_cache(), "each version has a cache of its own");
    assert_eq!((policy.update.timeouts.pause, policy.update.timeouts.update), (5.0, 600.0));
    assert!(recipe.is_announced_to());
    assert!(!load_text(MINIMAL, &LoadOptions::default()).unwrap().is_announced_to());
    let printed = recipe.to_toml().unwrap();
    assert!(!printed.contains("hush"), "{printed}");
    let without_token = Policy { token: None, ..recipe.policy.clone() };
    assert_eq!(toml::from_str::<Recipe>(&printed).unwrap().policy, without_token);
}

#[test]
fn the_mode_determines_the_values_of_absent_settings() {
    let of = |sets: &[&str]| {
        let set = sets.iter().map(|set| (*set).to_owned()).collect();
        let recipe = load_text(MINIMAL, &LoadOptions { set, ..Default::default() }).unwrap();
        (recipe.policy.max_staleness, recipe.rollout.launch)
    };
    let listen = "policy.listen=127.0.0.1:0";
    assert_eq!(of(&["policy.mode=sync", listen]), (Some(0), Some(Launch::OnDemand)));
    assert_eq!(of(&["policy.mode=one_step_off", listen]), (Some(1), Some(Launch::OnDemand)));
    assert_eq!(of(&["policy.mode=fully_async"]), (Some(1), Some(Launch::Batch)));
    assert_eq!(of(&["policy.mode=off"]).1, Some(Launch::Batch));
    let named = ["policy.mode=sync", listen, "policy.max_staleness=1", "rollout.launch=batch"];
    assert_eq!(
        of(&named),
        (Some(1), Some(Launch::Batch)),
        "explicit settings override the defaults of the mode"
    );
}

/// The recipe is of an older version. In that version `sync` ran without a trainer, and the default of
/// `max_staleness` was the same in all modes.
#[test]
fn a_kept_recipe_of_an_older_version_keeps_its_meaning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recipe.toml");
    let old = MINIMAL
        .replace("run.steps = 1\n", "")
        .replace("mode = \"off\"", "mode = \"sync\"\nmax_staleness = 1");
    fs::write(&path, &old).unwrap();
    let load = |sets: &[&str]| {
        let set = sets.iter().map(|set| (*set).to_owned()).collect();
        Recipe::load_kept(&path, &LoadOptions { set, ..Default::default() }).unwrap().policy
    };
    let kept = load(&[]);
    assert_eq!((kept.mode, kept.max_staleness), (PolicyMode::Off, Some(1)));
    let announced = load(&["policy.listen=127.0.0.1:0"]);
    assert_eq!((announced.mode, announced.staleness_max()), (PolicyMode::Sync, 1));
    let error = Recipe::load(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`policy.mode`") && error.contains("`run.steps`"), "{error}");
}

/// An older version accepted the recipe. It can be compared with the one with which the run goes on, which must be
/// valid. The capacity of a queue that exists cannot be changed, so it is no reason to refuse the run.
#[test]
fn a_kept_recipe_that_is_refused_now_can_be_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recipe.toml");
    let consumer =
        "[queue]\ncapacity_rows = 40\nconsumer = { task = \"train\", take_groups = 5, announces = true }\n";
    fs::write(&path, MINIMAL.replace("mode = \"off\"", "mode = \"one_step_off\"") + consumer).unwrap();
    assert_eq!(Recipe::load_begun(&path).unwrap().queue.consumer.unwrap().take_groups, 5);
    let error = Recipe::load_kept(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`queue.consumer.take_groups`") && !error.contains("capacity"), "{error}");
    let set = vec!["queue.consumer.take_groups=8".to_owned(), "run.steps=9".to_owned()];
    Recipe::load_kept(&path, &LoadOptions { set: set.clone(), ..Default::default() }).unwrap();
    let error = Recipe::load(&path, &LoadOptions { set, ..Default::default() }).unwrap_err().to_string();
    assert!(error.contains("`queue.capacity_rows`"), "{error}");
}

#[test]
fn files_that_are_not_found_are_remembered_with_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("base.toml"), MINIMAL).unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, "base = \"inner/base.toml\"\n").unwrap();
    let places =
        |recipe: &Recipe| recipe.looked_for.places(recipe.data.train.paths()[0].as_path()).map(<[_]>::to_vec);
    let recipe = Recipe::load(&path, &LoadOptions::default()).unwrap();
    let expected = vec![inner.join("t.jsonl"), folder.path().join("t.jsonl"), PathBuf::from("t.jsonl")];
    assert_eq!(places(&recipe), Some(expected));
    // Each place is named once. The current directory is the first and the last one for a value of `--set`.
    let set = vec!["data.train=other.jsonl".to_owned()];
    let recipe = Recipe::load(&path, &LoadOptions { set, ..Default::default() }).unwrap();
    assert_eq!(places(&recipe), Some(vec![PathBuf::from("other.jsonl"), folder.path().join("other.jsonl")]));
    fs::write(folder.path().join("t.jsonl"), "").unwrap();
    assert_eq!(places(&Recipe::load(&path, &LoadOptions::default()).unwrap()), None);
}

#[test]
fn a_recipe_that_is_too_large_is_an_error() {
    let error = complaint(&"# data\n".repeat(200_000));
    assert!(error.contains("expected a recipe of at most 1048576 bytes"), "{error}");
}

#[test]
fn deep_nesting_is_an_error_and_does_not_overflow_the_stack() {
    let dotted = vec!["a"; 20_000].join(".");
    let options = LoadOptions { set: vec![format!("{dotted}=1")], ..Default::default() };
    assert!(load_text(MINIMAL, &options).is_err());
    assert!(load_text(&format!("x = {}", "[".repeat(20_000)), &LoadOptions::default()).is_err());
}
