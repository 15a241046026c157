//! Recipes that are loaded for a simulation.

use std::fs;

use rolldock_policy::PolicyMode;

use super::MINIMAL;
use crate::{LoadOptions, MaxLoads, Recipe};

fn load(text: &str, set: &[&str]) -> Result<Recipe, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    fs::write(&path, text).unwrap();
    let set = set.iter().map(|change| (*change).to_owned()).collect();
    Recipe::load_simulated(&path, &LoadOptions { set, endpoints: Vec::new() })
        .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

fn on_endpoints() -> String {
    let endpoints = "[fleet]\nendpoints = [\"http://a:1\", \"http://b:1\", \"http://c:1\"]\nservers_min = 3\n\
                     file = \"fleet.toml\"\nmax_loads_per_server = 7";
    MINIMAL.replace("[fleet.simulated]\nservers = 2", endpoints)
}

#[test]
fn a_simulated_fleet_of_the_same_number_replaces_the_servers() {
    let recipe = load(&on_endpoints(), &[]).unwrap();
    let simulated = recipe.fleet.simulated.unwrap();
    assert_eq!((simulated.servers, simulated.mean_response_length), (3, 25.0));
    assert!(recipe.fleet.endpoints.is_empty() && recipe.fleet.file.is_none());
    // Keys that do not name servers keep their values.
    assert_eq!((recipe.fleet.servers_min, recipe.fleet.max_loads_per_server), (1, MaxLoads::Fixed(7)));
}

#[test]
fn changes_are_stronger_than_the_replaced_servers() {
    let set = [
        "fleet.simulated.servers=16",
        "fleet.simulated.engine.kv_blocks=99",
        "fleet.simulated.engine.max_model_len=1000",
        "rollout.max_response_length=50",
    ];
    let simulated = load(&on_endpoints(), &set).unwrap().fleet.simulated.unwrap();
    assert_eq!((simulated.servers, simulated.mean_response_length), (16, 10.0));
    assert_eq!(simulated.engine.unwrap().kv_blocks, Some(99));
    let error = load(&on_endpoints(), &["fleet.simulated.engine.kv_block=9"]).unwrap_err();
    assert!(error.contains("fleet.simulated.engine") && error.contains("kv_blocks"), "{error}");
}

#[test]
fn a_simulated_fleet_of_the_recipe_stays_but_runs_at_its_own_time() {
    let text =
        MINIMAL.replace("servers = 2", "servers = 2\ntime_scale = 0.5\ntransport = \"http\"\nseed = 9");
    let simulated = load(&text, &[]).unwrap().fleet.simulated.unwrap();
    assert_eq!((simulated.servers, simulated.seed, simulated.time_scale), (2, 9, 1.0));
    assert_eq!(simulated.mean_response_length, 400.0);
}

#[test]
fn the_trainer_of_a_simulation_needs_no_address() {
    for mode in ["sync", "one_step_off", "fully_async", "off"] {
        let recipe = load(MINIMAL, &[&format!("policy.mode={mode}")]).unwrap();
        assert_eq!(recipe.policy.mode.to_string(), mode);
    }
    // A recipe with an address can be simulated without a trainer.
    let listening = load(MINIMAL, &["policy.listen=127.0.0.1:7401"]).unwrap();
    assert_eq!(listening.policy.mode, PolicyMode::Off);
    // The simulated trainer passes no weights.
    load(MINIMAL, &["policy.mode=sync", "policy.listen=127.0.0.1:0", "policy.update.method=reload"]).unwrap();
    let error = load(MINIMAL, &["policy.mode=fully_async", "policy.max_staleness=0"]).unwrap_err();
    assert!(error.contains("policy.max_staleness"), "{error}");
}

#[test]
fn an_engine_that_cannot_start_is_refused_with_its_key() {
    let refused = |set: &[&str]| load(MINIMAL, set).unwrap_err();
    let small = refused(&["fleet.simulated.engine.kv_blocks=300"]);
    let words = "`fleet.simulated.engine.kv_blocks`: must hold more than max_model_len=32768 tokens";
    assert!(small.contains(words) && small.contains("holds tokens=4800"), "{small}");
    let long = refused(&["fleet.simulated.engine.max_model_len=400000"]);
    assert!(long.contains("must hold more than max_model_len=400000 tokens"), "{long}");
    let free = refused(&["fleet.simulated.engine.decode_base_ns=0"]);
    assert!(free.contains("`fleet.simulated.engine.decode_base_ns`: must be at least 1"), "{free}");
}
