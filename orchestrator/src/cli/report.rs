//! `rolldock report` writes a page with plots of a run.

use anyhow::Context;
use rolldock_cli::UsageError;
use rolldock_cli::args::ReportArgs;

use crate::process::say;
use crate::report::{PageError, report_page};
use crate::run::write_whole;
use crate::scope::blocking;

/// The name of the page in the run's directory.
const PAGE: &str = "report.html";

pub(super) async fn run(args: ReportArgs) -> anyhow::Result<()> {
    let file = args.output.clone().unwrap_or_else(|| args.dir.join(PAGE));
    let writing = move || {
        let page = report_page(&args.dir, args.step).map_err(|error| match error {
            PageError::NoTimeline { .. } | PageError::NoTimelines { .. } => {
                UsageError(error.to_string()).into()
            }
            error => anyhow::Error::from(error),
        })?;
        // A device or a pipe cannot be replaced.
        if file.metadata().is_ok_and(|there| !there.is_file()) {
            std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
        } else {
            write_whole(&file, &page)?;
        }
        anyhow::Ok(file)
    };
    let file = blocking("report page", writing).await.context("cannot make the page")??;
    say(&file.display().to_string());
    Ok(())
}
