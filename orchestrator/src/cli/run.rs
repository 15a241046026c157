//! `rolldock run`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::shipped;
use rolldock_cli::args::RunArgs;
use rolldock_cli::{UsageError, seconds};
use rolldock_ledger::{LedgerState, check_unused, ledger_file};

use crate::process::{Ending, queue_folder, say};
use crate::recipe::{LoadOptions, Recipe, RecipeError, Verdict, changes};
use crate::report::{Progress, RUN_LOG_ONLY};
use crate::run::{RECIPE_FILE, Run, Unfinished, default_out, is_free, missing_secrets, resume_command};
use crate::scope::Scope;

/// The maximum number of default directories of one recipe. If all of them are taken, a run needs `--out`.
const OUTS_MAX: u32 = 10_000;

pub(super) async fn run(args: RunArgs, progress: &Progress) -> anyhow::Result<ExitCode> {
    let mut set = args.set;
    if let Some(steps) = args.steps {
        set.push(format!("run.steps={steps}"));
    }
    let servers_wait = args.wait_for_servers.map(|wait| seconds("--wait-for-servers", wait)).transpose()?;
    let is_kept = args.recipe.is_none();
    let file = recipe_file(args.recipe, args.resume.as_deref())?;
    let options = LoadOptions { set, endpoints: args.endpoints };
    let loaded = match is_kept {
        true => Recipe::load_kept(&file, &options),
        false => Recipe::load(&file, &options),
    };
    let recipe = loaded.map_err(|error| with_out(error, args.out.clone(), &file))?;
    let asked = args.resume.clone().or(args.out).or(recipe.run.out.clone());
    let out = choose_out(asked, &file)?;
    if args.resume.is_some() && !is_run(&out) {
        let words = format!("{} holds no run; expected a directory with a ledger.log", out.display());
        return Err(UsageError(words).into());
    }
    if is_run(&out) {
        check_unused(&out).with_context(|| {
            format!("the run in {} is under way; end it first, or name another --out", out.display())
        })?;
        check_changes(&out, &recipe)?;
        check_secrets(&out, &recipe)?;
    }
    let recipe_text = recipe.to_toml()?;
    let command = is_run(&out).then(|| resume_command(&out, &recipe));
    let run = Run::prepare(recipe, out, servers_wait, Scope::new()).await.map_err(|cause| match command {
        Some(command) if !args.dry_run => Unfinished { cause, command }.into(),
        _ => cause,
    })?;
    if args.dry_run {
        say(&format!("{recipe_text}\n{}\ndry run: nothing was written", run.describe()));
        return Ok(ExitCode::SUCCESS);
    }
    say(&run.describe());
    let summary = run.execute(progress).await?;
    say(&summary.to_string());
    tracing::info!(target: RUN_LOG_ONLY, "{summary}");
    Ok(match summary.ended_by {
        Some(Ending::Terminate) => ExitCode::from(Ending::Terminate.exit_code()),
        Some(Ending::Interrupt) | None => ExitCode::SUCCESS,
    })
}

/// The file of the named recipe. If no recipe is named, it is the recipe in the directory of the resumed run.
fn recipe_file(named: Option<PathBuf>, resume: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(shipped::recipe(named));
    }
    let dir = resume.unwrap_or(Path::new(""));
    let file = dir.join(RECIPE_FILE);
    match file.exists() {
        true => Ok(file),
        false => Err(UsageError(without_recipe(dir)?).into()),
    }
}

/// Says why the run in `dir`, which has no recipe, cannot be resumed without one, and what to do.
fn without_recipe(dir: &Path) -> anyhow::Result<String> {
    let (file, shown) = (dir.join(RECIPE_FILE), dir.display());
    let file = file.display();
    if !is_run(dir) {
        return Ok(format!("expected the directory of a run, but {file} does not exist"));
    }
    let (state, _) = LedgerState::read(dir)?;
    Ok(match state.totals().dispatched {
        0 => format!(
            "{file} does not exist: the run in {shown} was ended while it started, and nothing was collected; start \
             it again with `rolldock run RECIPE --out {shown}`, or remove the directory"
        ),
        dispatched => format!(
            "{file} does not exist, found a ledger of {dispatched} dispatches; put the file back, or name the recipe \
             of the run: rolldock run RECIPE --resume {shown}"
        ),
    })
}

/// Adds the error of the `--out` directory, if there is one, to the error of the recipe, so that both are
/// reported together.
fn with_out(error: RecipeError, out: Option<PathBuf>, recipe: &Path) -> anyhow::Error {
    match out.map(|out| choose_out(Some(out), recipe)) {
        Some(Err(wrong)) => UsageError(format!("{error}\n\n{wrong}")).into(),
        _ => error.into(),
    }
}

fn is_run(out: &Path) -> bool {
    ledger_file(out).exists()
}

/// Checks that the run in `out` may continue with `recipe`. It may continue if all changes keep the run's
/// data valid.
fn check_changes(out: &Path, recipe: &Recipe) -> anyhow::Result<()> {
    let file = out.join(RECIPE_FILE);
    // A run without a recipe file ended before it sent out any prompts.
    if !file.exists() {
        return Ok(());
    }
    let before = Recipe::load_begun(&file)?;
    let changes = changes(&before, recipe)?;
    let refused: Vec<String> = changes
        .iter()
        .filter(|change| matches!(change.verdict, Verdict::Refused(_)))
        .map(ToString::to_string)
        .collect();
    if !refused.is_empty() {
        let words = format!(
            "the run in {} cannot go on with this recipe:\n  {}\nresume it with the old values, or name another \
             --out to begin a new run",
            out.display(),
            refused.join("\n  ")
        );
        return Err(UsageError(words).into());
    }
    for change in &changes {
        match change.verdict {
            Verdict::Warned(_) => tracing::warn!("the recipe has changed: {change}"),
            _ => tracing::info!("the recipe has changed: {change}"),
        }
    }
    Ok(())
}

/// Checks that the user has given the secrets of the run in `out` again. The run's directory does not store
/// secrets. Without its token, a listener of the run would admit every client.
fn check_secrets(out: &Path, recipe: &Recipe) -> anyhow::Result<()> {
    let missing = missing_secrets(out, recipe)?;
    if missing.is_empty() {
        return Ok(());
    }
    let options: Vec<String> = missing.iter().map(|key| format!("--set {key}=...")).collect();
    let words = format!(
        "the run in {} had {}, and its directory keeps no secrets; expected {}, or the same in the recipe",
        out.display(),
        missing.join(" and "),
        options.join(" ")
    );
    Err(UsageError(words).into())
}

/// The directory of the run. A named directory must have a run with a ledger, or be free. If no directory is
/// named, the run gets the default directory or, if that is taken, the first free directory of its numbered
/// variants.
fn choose_out(asked: Option<PathBuf>, recipe: &Path) -> anyhow::Result<PathBuf> {
    let Some(out) = asked else {
        let first = default_out(recipe);
        let numbered = (2..=OUTS_MAX).map(|number| PathBuf::from(format!("{}-{number}", first.display())));
        let free = std::iter::once(first.clone()).chain(numbered).find(|out| is_free(out));
        let taken = || {
            let first = first.display();
            let words =
                format!("{first} and {first}-2 to {first}-{OUTS_MAX} are taken; name another with --out");
            UsageError(words)
        };
        return Ok(free.ok_or_else(taken)?);
    };
    if is_run(&out) || is_free(&out) {
        return Ok(out);
    }
    let found = if !out.is_dir() {
        "is not a directory"
    } else if out.join(RECIPE_FILE).exists() || queue_folder(&out).exists() {
        "holds a run without a ledger, which cannot go on"
    } else {
        "is not empty and holds no run"
    };
    let words = format!("{} {found}; expected a new or empty directory for --out", out.display());
    Err(UsageError(words).into())
}
