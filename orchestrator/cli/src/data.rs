//! `rolldock data`: makes the data files of a recipe.

use std::path::{Path, PathBuf};

use rolldock_data::{Prepare, Split, prepare};
use rolldock_process::say;
use rolldock_recipe::{Files, LoadOptions, Recipe};
use rolldock_scope::blocking;

use crate::args::{DataArgs, DataCommand, PrepareArgs};
use crate::usage::UsageError;

/// `rolldock data`: makes the data files of a recipe.
pub async fn run(args: DataArgs) -> anyhow::Result<()> {
    let DataCommand::Prepare(args) = args.command;
    // The command reads and writes files, and nothing else runs in this process.
    blocking("data command", move || make(args)).await?
}

fn make(args: PrepareArgs) -> anyhow::Result<()> {
    let PrepareArgs { recipe: path, train, validation, validation_prompts, set, force } = args;
    let recipe = Recipe::load(&path, &LoadOptions { set, endpoints: Vec::new() })?;
    let wants_validation = !validation.is_empty() || validation_prompts.is_some_and(|count| count > 0);
    let validation_to = match &recipe.data.validation {
        Some(files) if wants_validation => Some(target(&recipe, files, "data.validation")?),
        None if wants_validation => {
            return Err(UsageError(format!("{} names no data.validation", path.display())).into());
        }
        _ => None,
    };
    let train_to = target(&recipe, &recipe.data.train, "data.train")?;
    let made = [Some(&train_to), validation_to.as_ref()];
    for file in made.into_iter().flatten() {
        check_target(file, train.iter().chain(&validation), force)?;
    }
    // Without a split, the recipe would train with prompts of an earlier split if its file stayed.
    let stays = recipe.data.validation.iter().filter(|_| !wants_validation).flat_map(Files::paths);
    let validation_kept = stays.filter(|file| file.exists()).cloned().collect();
    let config = Prepare {
        train,
        validation,
        validation_prompts: validation_prompts.unwrap_or(0),
        seed: recipe.data.seed,
        columns: recipe.data.columns.clone(),
        train_to,
        validation_to,
        validation_kept,
    };
    let prepared = prepare(&config)?;
    for split in prepared.validation.iter().chain([&prepared.train]) {
        say(&words(split));
    }
    Ok(())
}

/// The file of a key of the recipe, at the first path at which a run looks for it.
fn target(recipe: &Recipe, files: &Files, key: &str) -> Result<PathBuf, UsageError> {
    let [path] = files.paths() else {
        return Err(UsageError(format!("{key} names several files; expected one file, which is made")));
    };
    let file = recipe.looked_for.places(path).and_then(|places| places.first()).unwrap_or(path);
    if file.extension().is_none_or(|extension| extension != "jsonl") {
        let words = format!("{key} names {}; expected a file whose name ends in .jsonl", file.display());
        return Err(UsageError(words));
    }
    Ok(file.clone())
}

fn check_target<'a>(
    file: &Path,
    mut sources: impl Iterator<Item = &'a PathBuf>,
    force: bool,
) -> Result<(), UsageError> {
    let Ok(whole) = file.canonicalize() else { return Ok(()) };
    if sources.any(|source| source.canonicalize().is_ok_and(|source| source == whole)) {
        return Err(UsageError(format!("{} would be made from itself", file.display())));
    }
    if !force {
        return Err(UsageError(format!("{} exists; --force replaces it", file.display())));
    }
    Ok(())
}

fn words(split: &Split) -> String {
    let Split { file, read, rows, duplicates, in_validation, conflicting_prompts, xxh128 } = split;
    format!(
        "{}: {rows} rows of {read} ({duplicates} duplicates, {in_validation} of prompts in the validation data, \
         {conflicting_prompts} prompts with several answers)\n  xxh128 {xxh128:032x}",
        file.display()
    )
}
