use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const MINIMAL: &str = r#"
[model]
name = "m"
tokenizer = "builtin"
[data]
train = "t.jsonl"
[fleet.simulated]
servers = 2
[rollout]
samples_per_prompt = 4
train_batch_size = 8
gen_batch_size = 16
max_response_length = 128
"#;

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
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../recipes")
}

#[test]
fn every_recipe_of_ours_loads() {
    let mut count = 0;
    for entry in fs::read_dir(recipes()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let recipe = Recipe::load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
            let again: Recipe = toml::from_str(&recipe.to_toml().unwrap()).unwrap();
            assert_eq!(again, recipe, "{} does not survive printing", path.display());
            count += 1;
        }
    }
    assert!(count >= 4, "found {count} recipes");
}

#[test]
fn the_published_run_is_carried_in_full() {
    let recipe = Recipe::load(&recipes().join("dapo_qwen3_8b.toml"), &LoadOptions::default()).unwrap();
    let rollout = &recipe.rollout;
    assert_eq!((rollout.train_batch_size, rollout.gen_batch_size, rollout.samples_per_prompt), (512, 1024, 16));
    assert_eq!((recipe.data.max_prompt_length, rollout.max_response_length), (1024, 8192));
    assert_eq!(recipe.data.overlong_prompts, OverlongPrompts::Drop);
    assert_eq!((rollout.workers, rollout.max_concurrent_prompts, rollout.max_gen_batches), (8, 16, 20));
    assert_eq!(rollout.sampling, Sampling { temperature: 1.0, top_p: 1.0, top_k: -1, stop_token_ids: vec![] });
    assert_eq!(recipe.fleet.max_loads_per_server, MaxLoads::Fixed(256));
    let overlong = recipe.reward.overlong.as_ref().unwrap();
    assert_eq!((overlong.buffer_length, overlong.penalty_factor), (512, 1.0));
    assert!(recipe.filter.enable);
    let validation = recipe.validation.as_ref().unwrap();
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
    assert_eq!((trainer["warmup_steps"].as_integer(), trainer["mini_batch_size"].as_integer()), (Some(5), Some(32)));
}

#[test]
fn later_layers_win() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("base.toml"), format!("{MINIMAL}workers = 3\nmax_gen_batches = 5\n")).unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, "base = \"base.toml\"\n[rollout]\nworkers = 4\n").unwrap();
    let options = LoadOptions { set: vec!["rollout.max_gen_batches=6".into(), "model.name=tiny-qwen3".into()], ..Default::default() };
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
    assert!(error.contains("its own base"), "{error}");
}

#[test]
fn complaints_name_file_line_key_and_what_was_expected() {
    let unknown = complaint(&format!("{MINIMAL}wokers = 3\n"));
    assert!(unknown.starts_with("r.toml:14:1: `rollout.wokers`: unknown field `wokers`"), "{unknown}");
    assert!(unknown.contains("did you mean `workers`?"), "{unknown}");
    assert!(unknown.contains("14 | wokers = 3"), "{unknown}");

    let wrong_type = complaint(&format!("{MINIMAL}workers = \"many\"\n"));
    assert!(wrong_type.starts_with("r.toml:14:11: `rollout.workers`: invalid type: string \"many\""), "{wrong_type}");

    let wrong_word = complaint(&format!("{MINIMAL}early_stop = \"fifi\"\n"));
    assert!(wrong_word.contains("`rollout.early_stop`") && wrong_word.contains("did you mean `fifo`?"), "{wrong_word}");

    let missing = complaint(&MINIMAL.replace("name = \"m\"\n", ""));
    assert!(missing.contains("`model`: missing field `name`"), "{missing}");

    let syntax = complaint("[model\n");
    assert!(syntax.starts_with("r.toml:1:"), "{syntax}");
}

#[test]
fn complaints_about_options_name_the_option() {
    let options = LoadOptions { set: vec!["rollout.workers=0".into()], ..Default::default() };
    let error = load_text(MINIMAL, &options).unwrap_err();
    assert!(error.starts_with("--set rollout.workers=0:1:"), "{error}");
    let options = LoadOptions { set: vec!["rollout.workers".into()], ..Default::default() };
    assert!(load_text(MINIMAL, &options).unwrap_err().contains("expected key=value"));
}

#[test]
fn values_that_cannot_go_together_are_all_named() {
    let text = MINIMAL.replace("train_batch_size = 8", "train_batch_size = 80\nrequest = \"group\"")
        + "[queue]\ncapacity_rows = 3\n[fleet]\nmax_loads_per_server = 2\n";
    let text = text.replace("[fleet.simulated]\nservers = 2\n", "") + "simulated = { servers = 2 }\n";
    let error = complaint(&text);
    for key in ["`fleet.max_loads_per_server`", "`rollout.train_batch_size`", "`queue.capacity_rows`"] {
        assert!(error.contains(key), "{key} is missing in:\n{error}");
    }
}

#[test]
fn both_fleets_or_none_is_an_error() {
    let both = complaint(&MINIMAL.replace("[fleet.simulated]", "[fleet]\nendpoints = [\"http://h:1\"]\n[fleet.simulated]"));
    assert!(both.contains("found both"), "{both}");
    let none = complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", "[fleet]"));
    assert!(none.contains("`fleet`"), "{none}");
    let https = complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", "[fleet]\nendpoints = [\"https://h\"]"));
    assert!(https.contains("https is not available yet"), "{https}");
}

#[test]
fn invalid_utf8_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, b"[model]\nname = \"\xff\"\n").unwrap();
    let error = Recipe::load(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("byte 16"), "{error}");
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(cut in 0..MINIMAL.len(), insert in ".{0,12}", length in 0_usize..20) {
        let end = (cut + length).min(MINIMAL.len());
        let text = format!("{}{insert}{}", &MINIMAL[..cut], &MINIMAL[end..]);
        let _ = load_text(&text, &LoadOptions::default()).map(|recipe| recipe.to_toml());
    }
}
