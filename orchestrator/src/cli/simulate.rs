//! `rolldock simulate`: loads the recipe once for each setting of the sweep, simulates the settings in
//! parallel, and prints their results.

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use rolldock_cli::args::SimulateArgs;
use rolldock_cli::{UsageError, seconds};
use rolldock_simulate::sweep::{Change, combinations};

use super::shipped;
use crate::policy::PolicyMode;
use crate::process::{plural, say, say_error};
use crate::recipe::{LoadOptions, Recipe};
use crate::run::RECIPE_FILE;
use crate::scope::blocking;
use crate::simulate::{
    Outcome, PARETO_FILE, Replay, STEPS, Setting, Terms, Workload, json, pareto, requests, simulate, table,
};

/// Short names of keys, and the keys for which they stand.
const SHORT_KEYS: [(&str, &str); 2] =
    [("fleet.servers", "fleet.simulated.servers"), ("fleet.speeds", "fleet.simulated.speeds")];

pub(super) async fn run(args: SimulateArgs) -> anyhow::Result<()> {
    let training =
        args.training_seconds.map(|training| seconds("--training-seconds", training)).transpose()?;
    let training = training.unwrap_or_default();
    let replay = args.replay.as_deref().map(Replay::read).transpose()?.map(Arc::new);
    let recorded = replay.as_ref().map(|replay| replay.steps.len() as u64);
    let workload = match (replay.clone(), args.prompt_tokens) {
        (Some(replay), _) => Workload::Recorded(replay),
        (None, Some(tokens)) => Workload::Prompts(tokens as usize),
        (None, None) => Workload::Data,
    };
    let terms = Terms { steps: args.steps.or(recorded).unwrap_or(STEPS), training, workload };
    let settings = settings(&args)?;
    let first = settings.first().map(|setting| setting.recipe.clone());
    let results = simulate_all(settings, &terms).await?;
    if let Some(folder) = &args.svg {
        draw(folder, &results)?;
    }
    if args.json {
        say(&json(&results)?);
    } else {
        let which = if results.len() > 1 { "the first setting: " } else { "" };
        first.iter().for_each(|recipe| say_error(&format!("{which}{}", described(recipe, &terms))));
        replay.iter().for_each(|replay| say_error(&recorded_words(replay)));
        say(&table(&results));
        results.iter().filter_map(no_reference).for_each(|words| say_error(&words));
    }
    Ok(())
}

/// The settings of the sweep, each with its checked recipe.
fn settings(args: &SimulateArgs) -> anyhow::Result<Vec<Setting>> {
    let file = match (&args.recipe, &args.replay) {
        (Some(recipe), _) => shipped::recipe(recipe.clone()),
        (None, replay) => replay.clone().unwrap_or_default().join(RECIPE_FILE),
    };
    let combinations = combinations(&args.sweep).map_err(|error| UsageError(error.to_string()))?;
    combinations.into_iter().map(|changes| setting(args, &file, changes)).collect()
}

fn setting(args: &SimulateArgs, file: &Path, changes: Vec<Change>) -> anyhow::Result<Setting> {
    let mut set = args.engine.as_deref().map(engine).transpose()?.unwrap_or_default();
    set.extend(args.set.iter().map(|set| long(set)));
    set.extend(args.servers.map(|servers| format!("fleet.simulated.servers={servers}")));
    set.extend(changes.iter().map(|change| long(&format!("{}={}", change.key, change.value))));
    if set.iter().any(|set| is_of_key(set, "run.steps")) {
        let wrong = "run.steps: a simulation takes its number of steps from --steps";
        return Err(UsageError(wrong.to_owned()).into());
    }
    let load = |set: &Vec<String>| {
        let options = LoadOptions { set: set.clone(), endpoints: Vec::new() };
        Recipe::load_simulated(file, &options)
    };
    let mut recipe = load(&set)?;
    if !args.speeds.is_empty() {
        let servers = recipe.fleet.simulated.as_ref().map_or(0, |simulated| simulated.servers);
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

/// Whether `set`, which is `key=value`, is for this key.
fn is_of_key(set: &str, key: &str) -> bool {
    set.split('=').next().is_some_and(|of| of.trim() == key)
}

/// The change of a key, with a short name replaced by the key for which it stands.
fn long(set: &str) -> String {
    match SHORT_KEYS.iter().find(|(short, _)| is_of_key(set, short)) {
        Some((short, whole)) => set.replacen(short, whole, 1),
        None => set.to_owned(),
    }
}

/// Simulates the settings, as many at a time as the machine has cores. The results have the order of the
/// settings.
async fn simulate_all(settings: Vec<Setting>, terms: &Terms) -> anyhow::Result<Vec<(Setting, Outcome)>> {
    let simulate_one = |setting: Setting| async move {
        let terms = terms.clone();
        let working =
            blocking("simulation", move || simulate(&setting, &terms).map(|outcome| (setting, outcome)));
        working.await.context("a simulation died")?
    };
    let cores = available_parallelism().map_or(1, usize::from);
    stream::iter(settings).map(simulate_one).buffered(cores).try_collect().await
}

fn draw(folder: &Path, results: &[(Setting, Outcome)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let write = |name: &str, svg: &str| {
        let file = folder.join(name);
        std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))
    };
    write(PARETO_FILE, &pareto(results))?;
    for (number, (setting, outcome)) in results.iter().enumerate() {
        if let Some((name, svg)) = requests(number, setting, outcome) {
            write(&name, &svg)?;
        }
    }
    Ok(())
}

/// The parts of the recipe that the table does not show.
fn described(recipe: &Recipe, terms: &Terms) -> String {
    let rollout = &recipe.rollout;
    let simulated = recipe.fleet.simulated.clone().unwrap_or_default();
    let training = match recipe.policy.mode {
        PolicyMode::Off => String::new(),
        _ => format!(", {} s of training", terms.training.as_secs_f64()),
    };
    format!(
        "{} steps of {} groups x {} samples on {} simulated servers, mean response length {} tokens, policy \
         {}{training}",
        terms.steps,
        rollout.train_batch_size,
        rollout.samples_per_prompt,
        simulated.servers,
        simulated.mean_response_length,
        recipe.policy.mode,
    )
}

/// Why a setting has no bounds and no biases, if groups were kept for a short step.
fn no_reference((setting, outcome): &(Setting, Outcome)) -> Option<String> {
    let groups = Some(outcome.kept_if_short).filter(|groups| *groups > 0)?;
    let setting = match setting.label() {
        label if label.is_empty() => String::new(),
        label => format!("{label}: "),
    };
    Some(format!(
        "{setting}no bounds and no biases, because filter.keep_if_short has kept {} for steps that were short; which \
         groups a step keeps does not follow from the draws alone",
        plural(groups, "group")
    ))
}

/// The recorded steps, for comparison with the table.
fn recorded_words(replay: &Replay) -> String {
    let (first, last) = (replay.steps.first(), replay.steps.last());
    let number = |step: Option<&(u64, Option<f64>)>| step.map_or(0, |(number, _)| *number);
    let time = replay.step_s().map_or("not known".to_owned(), |step_s| format!("{step_s:.1} s"));
    let (first, last, groups) = (number(first), number(last), replay.groups());
    let without = match replay.resumed_in.as_slice() {
        [] => String::new(),
        [step] => format!(" (without step {step}, which an earlier process of the run may have begun)"),
        steps => {
            let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
            format!(
                " (without the steps {}, which earlier processes of the run may have begun)",
                steps.join(", ")
            )
        }
    };
    format!("recorded: steps {first} to {last}, {groups} groups, mean step time {time}{without}")
}

#[cfg(test)]
mod tests {
    use super::long;

    #[test]
    fn a_short_key_stands_for_the_key_of_the_simulated_fleet() {
        assert_eq!(long("fleet.servers=8"), "fleet.simulated.servers=8");
        assert_eq!(long("fleet.servers_min=8"), "fleet.servers_min=8");
        assert_eq!(long("run.seed=fleet.servers"), "run.seed=fleet.servers");
    }
}
