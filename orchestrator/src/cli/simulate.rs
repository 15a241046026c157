//! `rolldock simulate`: loads the recipe once for each setting of the sweep, simulates the settings in
//! parallel, and prints their results.

mod settings;

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::Context;
use futures::stream::{self, StreamExt};
use rolldock_cli::args::SimulateArgs;
use rolldock_cli::seconds;

use crate::policy::PolicyMode;
use crate::process::{plural, say, say_error};
use crate::recipe::Recipe;
use crate::scope::blocking;
use crate::simulate::{
    Outcome, PARETO_FILE, Replay, STEPS, Setting, Terms, Workload, json, pareto, requests, simulate, table,
};

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
    let settings = settings::settings(&args)?;
    let first = settings.first().map(|setting| setting.recipe.clone());
    let are_several = settings.len() > 1;
    let (results, failures) = simulate_all(settings, &terms).await;
    if results.is_empty() {
        return Err(failed(failures));
    }
    if let Some(folder) = &args.svg {
        draw(folder, &results)?;
    }
    if args.json {
        say(&json(&results)?);
    } else {
        let which = if are_several { "the first setting: " } else { "" };
        first.iter().for_each(|recipe| say_error(&format!("{which}{}", described(recipe, &terms))));
        replay.iter().for_each(|replay| say_error(&recorded_words(replay)));
        say(&table(&results));
        results.iter().filter_map(no_reference).for_each(|words| say_error(&words));
    }
    if failures.is_empty() { Ok(()) } else { Err(failed(failures)) }
}

/// The error of the settings that could not be simulated.
fn failed(mut failures: Vec<anyhow::Error>) -> anyhow::Error {
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let lines: Vec<String> = failures.iter().map(|failure| format!("{failure:#}")).collect();
    anyhow::anyhow!("{} settings failed:\n{}", lines.len(), lines.join("\n"))
}

/// Simulates the settings, as many at a time as the machine has cores. The results have the order of the
/// settings. A setting that fails does not end the others.
async fn simulate_all(
    settings: Vec<Setting>,
    terms: &Terms,
) -> (Vec<(Setting, Outcome)>, Vec<anyhow::Error>) {
    let simulate_one = |setting: Setting| async move {
        let (terms, label) = (terms.clone(), setting.label());
        let working =
            blocking("simulation", move || simulate(&setting, &terms).map(|outcome| (setting, outcome)));
        let done = working.await.context("the simulation died").flatten();
        if label.is_empty() { done } else { done.with_context(|| format!("setting {label}")) }
    };
    let cores = available_parallelism().map_or(1, usize::from);
    let mut simulating = stream::iter(settings).map(simulate_one).buffered(cores);
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    while let Some(done) = simulating.next().await {
        match done {
            Ok(result) => results.push(result),
            Err(failure) => failures.push(failure),
        }
    }
    (results, failures)
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
        "{} of {} x {} on {}, mean response length {} tokens, policy {}{training}",
        plural(terms.steps, "step"),
        plural(rollout.train_batch_size as u64, "group"),
        plural(rollout.samples_per_prompt.into(), "sample"),
        plural(simulated.servers as u64, "simulated server"),
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
mod tests;
