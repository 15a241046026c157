//! The settings of a simulation: the recipe with the changes of the command line, once for each combination of
//! swept values. A swept value is stronger than an option such as `--servers`, so each row of the table shows
//! what was simulated.

use std::path::Path;

use anyhow::Context;
use rolldock_cli::UsageError;
use rolldock_cli::args::SimulateArgs;
use rolldock_simulate::sweep::{Change, combinations, label, stands_for, whole_key};

use crate::cli::shipped;
use crate::process::plural;
use crate::recipe::{LoadOptions, Recipe};
use crate::run::RECIPE_FILE;
use crate::simulate::Setting;

/// The settings of the sweep, each with its checked recipe.
pub(super) fn settings(args: &SimulateArgs) -> anyhow::Result<Vec<Setting>> {
    let file = match (&args.recipe, &args.replay) {
        (Some(recipe), _) => shipped::recipe(recipe.clone()),
        (None, replay) => replay.clone().unwrap_or_default().join(RECIPE_FILE),
    };
    let combinations = combinations(&args.sweep).map_err(|error| UsageError(error.to_string()))?;
    let checked = |changes: Vec<Change>| {
        let label = label(&changes);
        let setting = setting(args, &file, changes);
        if label.is_empty() { setting } else { setting.with_context(|| format!("setting {label}")) }
    };
    combinations.into_iter().map(checked).collect()
}

fn setting(args: &SimulateArgs, file: &Path, changes: Vec<Change>) -> anyhow::Result<Setting> {
    let mut set = args.engine.as_deref().map(engine).transpose()?.unwrap_or_default();
    set.extend(args.set.iter().map(|set| long(set)));
    set.extend(args.servers.map(|servers| format!("fleet.simulated.servers={servers}")));
    set.extend(changes.iter().map(|change| long(&written(change))));
    if set.iter().any(|set| sets(set, "run.steps")) {
        let wrong = "run.steps: a simulation takes its number of steps from --steps";
        return Err(UsageError(wrong.to_owned()).into());
    }
    let load = |set: &Vec<String>| {
        let options = LoadOptions { set: set.clone(), endpoints: Vec::new() };
        Recipe::load_simulated(file, &options)
    };
    let mut recipe = load(&set)?;
    let is_swept = changes.iter().any(|change| sets(&written(change), "fleet.simulated.speeds"));
    if !args.speeds.is_empty() && !is_swept {
        let servers = recipe.fleet.simulated.as_ref().map_or(0, |simulated| simulated.servers);
        let are_swept = changes.iter().any(|change| sets(&written(change), "fleet.simulated.servers"));
        check_number(args.speeds.len(), servers, are_swept)?;
        let speeds: Vec<f64> = args.speeds.iter().copied().cycle().take(servers).collect();
        set.push(format!("fleet.simulated.speeds={speeds:?}"));
        recipe = load(&set)?;
    }
    let several_turns =
        [("[environment]", recipe.environment.is_some()), ("[agent]", recipe.agent.is_some())];
    if let Some((table, _)) = several_turns.into_iter().find(|(_, is_given)| *is_given) {
        let wrong = format!("expected a recipe whose samples are single answers, found one with {table}");
        return Err(UsageError(format!("{}: {wrong}", file.display())).into());
    }
    Ok(Setting { changes, recipe })
}

/// Checks that there are not more speeds than servers. Each of several numbers of servers takes the first speeds.
fn check_number(speeds: usize, servers: usize, are_swept: bool) -> Result<(), UsageError> {
    if are_swept || speeds <= servers {
        return Ok(());
    }
    let at_most = format!("expected at most one speed for each of {}", plural(servers as u64, "server"));
    Err(UsageError(format!("--speeds: {at_most}, found {speeds}")))
}

/// The change as the user wrote it.
fn written(change: &Change) -> String {
    format!("{}={}", change.key, change.value)
}

/// The constants in a file of `rolldock calibrate`, as changes of keys.
fn engine(file: &Path) -> anyhow::Result<Vec<String>> {
    let wrong = |reason: String| {
        let file = file.display();
        UsageError(format!("--engine {file}: {reason}; expected a file of `rolldock calibrate`"))
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let file: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    let engine = ["fleet", "simulated", "engine"]
        .iter()
        .try_fold(&toml::Value::Table(file), |table, key| table.get(*key))
        .and_then(|engine| engine.as_table().cloned())
        .ok_or_else(|| wrong("it has no table [fleet.simulated.engine]".to_owned()))?;
    Ok(engine.iter().map(|(key, value)| format!("fleet.simulated.engine.{key}={value}")).collect())
}

/// The change of a key, with a short name replaced by the key for which it stands.
fn long(set: &str) -> String {
    match set.split_once('=') {
        Some((key, value)) => stands_for(key).map_or(set.to_owned(), |whole| format!("{whole}={value}")),
        None => set.to_owned(),
    }
}

/// Whether `set`, which is `key=value`, sets this key, alone or within a table.
fn sets(set: &str, key: &str) -> bool {
    let Some((of, value)) = set.split_once('=') else { return false };
    let of = whole_key(of);
    if of == key {
        return true;
    }
    let Some(inner) = key.strip_prefix(&of).and_then(|rest| rest.strip_prefix('.')) else { return false };
    // A value that is not TOML is a bare word, and no table.
    let Ok(table) = toml::from_str::<toml::Table>(&format!("value = {}", value.trim())) else { return false };
    inner.split('.').try_fold(&table["value"], |table, part| table.get(part)).is_some()
}

#[cfg(test)]
mod tests;
