use rolldock_cli::{Cli, Command};

use super::*;

/// The settings of `rolldock simulate recipes/quickstart.toml` with these options.
fn settings_of(options: &[&str]) -> Result<Vec<Setting>, String> {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/quickstart.toml");
    let line = ["rolldock", "simulate", recipe].into_iter().chain(options.iter().copied());
    let Command::Simulate(args) = Cli::of_line(line).unwrap().command else { panic!("another command") };
    settings(&args).map_err(|error| format!("{error:#}"))
}

/// The speeds of each setting, beside its label.
fn speeds(options: &[&str]) -> Vec<(String, Vec<f64>)> {
    let speeds = |setting: &Setting| setting.recipe.fleet.simulated.clone().unwrap().speeds;
    settings_of(options).unwrap().iter().map(|setting| (setting.label(), speeds(setting))).collect()
}

#[test]
fn a_short_key_stands_for_the_key_of_the_simulated_fleet() {
    assert_eq!(long("fleet.servers=8"), "fleet.simulated.servers=8");
    assert_eq!(long("fleet.servers_min=8"), "fleet.servers_min=8");
    assert_eq!(long("run.seed=fleet.servers"), "run.seed=fleet.servers");
}

#[test]
fn swept_speeds_and_servers_are_stronger_than_options() {
    let two = ["--servers", "2", "--speeds", "1,0.5", "--sweep"];
    let with = |sweep: &'static str| speeds(&[&two[..], &[sweep]].concat());
    let label = |text: &str| text.to_owned();
    assert_eq!(
        with("fleet.speeds=[1,1],[1,0.1]"),
        [(label("fleet.speeds=[1,1]"), vec![1.0, 1.0]), (label("fleet.speeds=[1,0.1]"), vec![1.0, 0.1])]
    );
    let table = with("fleet={simulated={speeds=[0.25,1]}}");
    assert_eq!(table[0].1, [0.25, 1.0]);
    // Without swept speeds, the option has a speed for each of the swept servers.
    assert_eq!(
        with("fleet.servers=1,3"),
        [(label("fleet.servers=1"), vec![1.0]), (label("fleet.servers=3"), vec![1.0, 0.5, 1.0])]
    );
}

#[test]
fn more_speeds_than_servers_are_refused() {
    let error = settings_of(&["--servers", "2", "--speeds", "1,0.5,0.2"]).unwrap_err();
    assert_eq!(error, "--speeds: expected at most one speed for each of 2 servers, found 3");
    let error = settings_of(&["--servers", "1", "--speeds", "1,0.5", "--sweep", "run.seed=1,2"]).unwrap_err();
    assert!(error.contains("for each of 1 server, found 2"), "{error}");
    let of_all = [1.0, 0.5, 0.2];
    assert_eq!(speeds(&["--servers", "3", "--speeds", "1,0.5,0.2"])[0].1, of_all);
}

#[test]
fn a_number_of_steps_in_a_table_is_refused_too() {
    for option in ["--set", "--sweep"] {
        for change in ["run.steps=3", "run={steps=3}", "run = { seed = 1, steps = 3 }", "run.\"steps\"=3"] {
            let error = settings_of(&[option, change]).unwrap_err();
            assert!(error.contains("run.steps: a simulation takes its number of steps"), "{change}: {error}");
        }
    }
    assert_eq!(settings_of(&["--set", "run={seed=3}"]).unwrap()[0].recipe.run.seed, 3);
}

#[test]
fn an_engine_that_cannot_start_is_found_before_the_first_simulation() {
    let sweep = "fleet.simulated.engine.kv_blocks=24000,300";
    let error = settings_of(&["--sweep", "rollout.workers=1,2", "--sweep", sweep]).unwrap_err();
    let setting = "setting rollout.workers=1 fleet.simulated.engine.kv_blocks=300: ";
    assert!(error.starts_with(setting), "{error}");
    assert!(error.contains("`fleet.simulated.engine.kv_blocks`: must hold more than"), "{error}");
}
