//! `rolldock run`

use std::path::{Path, PathBuf};

use super::UsageError;
use super::args::RunArgs;
use crate::recipe::{LoadOptions, Recipe};
use crate::report::Progress;
use crate::run::{Run, default_out, queue_folder};
use crate::scope::Scope;

/// Runs of one recipe that are kept side by side before somebody has to tidy up.
const OUTS_MAX: u32 = 10_000;

pub(super) async fn run(args: RunArgs, progress: &Progress) -> anyhow::Result<()> {
    let mut set = args.set;
    if let Some(steps) = args.steps {
        set.push(format!("run.steps={steps}"));
    }
    let recipe = Recipe::load(&args.recipe, &LoadOptions { set, endpoints: args.endpoints })?;
    let out = choose_out(args.out.or(recipe.run.out.clone()), &args.recipe)?;
    let recipe_text = recipe.to_toml()?;
    let run = Run::prepare(recipe, out, Scope::new()).await?;
    if args.dry_run {
        super::say(&format!("{recipe_text}\n{}\ndry run: nothing was written", run.describe()));
        return Ok(());
    }
    super::say(&run.describe());
    let summary = run.execute(progress).await?;
    super::say(&summary.to_string());
    Ok(())
}

/// A named directory must not hold a run already; unnamed ones are numbered.
fn choose_out(asked: Option<PathBuf>, recipe: &Path) -> anyhow::Result<PathBuf> {
    let holds_run = |out: &Path| out.join("recipe.toml").exists() || queue_folder(out).exists();
    if let Some(out) = asked {
        if holds_run(&out) {
            let words =
                format!("{} holds a run already; expected a new or empty directory for --out", out.display());
            return Err(UsageError(words).into());
        }
        return Ok(out);
    }
    let first = default_out(recipe);
    let numbered = (2..OUTS_MAX).map(|number| PathBuf::from(format!("{}-{number}", first.display())));
    let free = std::iter::once(first.clone()).chain(numbered).find(|out| !holds_run(out));
    free.ok_or_else(|| {
        UsageError(format!("{} and its numbered neighbours are all taken", first.display())).into()
    })
}
