//! `rolldock why`: explains why the current step of a run has not ended, and what would end it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use reqwest::Client;
use rolldock_cli::args::WhyArgs;
use rolldock_dispatch::StepEnd;
use rolldock_ledger::{LedgerError, LedgerState, is_being_written};

use crate::process::{plural, say};
use crate::recipe::{LoadOptions, Recipe};
use crate::report::{Status, why};
use crate::run::{RECIPE_FILE, RunAddress, STATUS_PATH};
use crate::scope::blocking;

/// The maximum time for a run to answer. The run reads its status from memory, so an answer is fast.
const ANSWER_MAX: Duration = Duration::from_secs(5);

pub(super) async fn run(args: WhyArgs) -> anyhow::Result<()> {
    let WhyArgs { source, json } = args;
    if source.contains("://") {
        let status = ask(source.trim_end_matches('/')).await?;
        return tell(&status, json);
    }
    let dir = source.clone();
    let looking = move || Found::look(dir.as_ref());
    let found = blocking("run directory", looking).await??;
    let asked = match &found.address {
        Some(address) => ask_of(address).await,
        None => Err(anyhow::anyhow!("the run's directory has no address.json")),
    };
    match asked {
        Ok(status) => tell(&status, json),
        Err(error) if found.is_under_way => Err(error.context(format!(
            "a process works on the run in {source}, and its status cannot be read here: the run is starting or \
             ending, report.listen is \"off\", or the run is on another machine; {source}/run.log says more"
        ))),
        Err(_) if json => anyhow::bail!("no process works on the run in {source}, so it has no status"),
        Err(_) => {
            say(&found.words(&source));
            Ok(())
        }
    }
}

fn tell(status: &Status, json: bool) -> anyhow::Result<()> {
    say(&if json { serde_json::to_string_pretty(status)? } else { why(status) });
    Ok(())
}

/// The status of the run at `url`.
async fn ask(url: &str) -> anyhow::Result<Status> {
    let client = Client::builder().no_proxy().timeout(ANSWER_MAX).build()?;
    let cannot = || format!("expected the status of a run at {url}{STATUS_PATH}");
    let answer = client.get(format!("{url}{STATUS_PATH}")).send().await.with_context(cannot)?;
    answer.error_for_status().with_context(cannot)?.json().await.with_context(cannot)
}

/// The status of the run that has written `address`. Another run may use the port now, so the run id is
/// checked.
async fn ask_of(address: &RunAddress) -> anyhow::Result<Status> {
    let status = ask(&address.url).await?;
    let (expected, found) = (&address.run_id, &status.run_id);
    anyhow::ensure!(expected == found, "expected run_id={expected} at {}, found run_id={found}", address.url);
    Ok(status)
}

/// The state of a run, as its directory shows it.
struct Found {
    address: Option<RunAddress>,
    /// Whether a process works on the run.
    is_under_way: bool,
    state: LedgerState,
    /// The recipe's number of steps.
    steps: Option<u64>,
}

impl Found {
    /// Reads the directory. Blocks.
    fn look(dir: &Path) -> anyhow::Result<Self> {
        let is_under_way = match is_being_written(dir) {
            Err(LedgerError::NoLedger { .. }) => {
                let dir = dir.display();
                anyhow::bail!(
                    "{dir} holds no run; expected a directory with a ledger.log, or the URL of a run"
                );
            }
            found => found?,
        };
        let (state, _) = LedgerState::read(dir).context("cannot read the ledger")?;
        let recipe = Recipe::load(&dir.join(RECIPE_FILE), &LoadOptions::default()).ok();
        let steps = recipe.and_then(|recipe| recipe.run.steps);
        Ok(Self { address: RunAddress::read(dir)?, is_under_way, state, steps })
    }

    /// Describes a run on which no process works.
    fn words(&self, dir: &str) -> String {
        let Some((number, step)) = self.state.steps().last_key_value() else {
            return format!(
                "The run has ended before its first step. `rolldock run --resume {dir}` begins it."
            );
        };
        let groups = plural(step.target, "group");
        let accepted = format!("{} of {groups} accepted", step.totals.accepted);
        let again = format!("`rolldock run --resume {dir}` continues the run.");
        let more_epochs =
            format!("`rolldock run --resume {dir} --set data.epochs=N` continues it with more epochs.");
        let in_flight = self.state.open().count();
        if step.end.is_none() {
            let dispatches = plural(in_flight as u64, "dispatch");
            return format!(
                "The run's process is gone: it ended within step {number}, with {accepted} and {dispatches} in \
                 flight. Nothing is waited for. {again}"
            );
        }
        let ended = match step.end {
            Some(StepEnd::Interrupted) => "the step was interrupted",
            Some(StepEnd::OutOfBatches) => "the step used up its generation batches",
            Some(StepEnd::OutOfPrompts) => "the data had no more prompts",
            _ => "the step reached its target",
        };
        let (done, next) = match self.steps {
            Some(steps) if *number >= steps && step.end != Some(StepEnd::Interrupted) => {
                (format!("The run is complete: it has done {}.", plural(steps, "step")), "")
            }
            _ if step.end == Some(StepEnd::OutOfPrompts) && in_flight == 0 => {
                ("The run is complete.".to_owned(), more_epochs.as_str())
            }
            _ => ("Nothing is waited for.".to_owned(), again.as_str()),
        };
        let words = format!(
            "The run's process has ended after step {number}, with {accepted}: {ended}. {done} {next}"
        );
        words.trim_end().to_owned()
    }
}
