//! Shows a run as one self-contained HTML page, which has no script and loads nothing.
//!
//! The page is made from the figures in the run's directory, so the run may be in progress or have ended.

mod charts;
mod gantt;
mod plot;
mod read;
mod scatter;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::figures::{KeptTimeline, STEPS_FILE, VALIDATIONS_FILE, kept_timelines};
use read::RunFigures;

pub use scatter::{Point, Scatter};

const STYLE: &str = include_str!("page.css");

/// The reason why a page cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// No step has ended.
    #[error("{} is missing or empty; expected the directory of a run in which a step has ended", file.display())]
    NoSteps {
        /// The file of steps.
        file: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A line of a file cannot be parsed.
    #[error("{} is damaged at line {line}; expected a JSON object with the figures of a step or a validation", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
    /// The times of the requests of a step are not kept.
    #[error("no times of the requests of step {step} are kept; expected one of the steps {kept:?}")]
    NoTimeline {
        /// The step.
        step: u64,
        /// The steps whose times are kept.
        kept: Vec<u64>,
    },
    /// The run keeps no times of requests.
    #[error("found --step {step}, but {} keeps no times of requests; expected no --step", run.display())]
    NoTimelines {
        /// The step.
        step: u64,
        /// The directory of the run.
        run: PathBuf,
    },
}

/// Makes the page of the run whose directory is `run`. The chart of requests shows `step`, or the newest step
/// with kept times if `step` is `None`. The call blocks while it reads files.
///
/// # Errors
/// Returns a [`PageError`] if the files of the run cannot be used.
pub fn report_page(run: &Path, step: Option<u64>) -> Result<String, PageError> {
    let figures = RunFigures::read(&run.join(STEPS_FILE), &run.join(VALIDATIONS_FILE))?;
    let timeline = timeline(run, step)?;
    let name = run.canonicalize().unwrap_or_else(|_| run.to_owned());
    let name = plot::escaped(&name.file_name().unwrap_or(name.as_os_str()).to_string_lossy());
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<style>\n{STYLE}</style></head>\n\
         <body><h1>{name}</h1>\n"
    );
    html.push_str(&tables::totals(&figures));
    if figures.steps.steps_each > 1 {
        let each = figures.steps.steps_each;
        html.push_str(&format!("<p>Each point of a plot is the mean of up to {each} steps.</p>\n"));
    }
    html.push_str("<main>\n");
    for (plot, points) in charts::plots(&figures) {
        html.push_str(&plot.html(&points.labels()));
    }
    html.push_str(&timeline.as_ref().map(gantt::html).unwrap_or_default());
    html.push_str(&tables::slowest(&figures));
    html.push_str(&tables::servers(&figures));
    html.push_str(&tables::newest(&figures));
    html.push_str("</main></body></html>\n");
    Ok(html)
}

/// The requests of a step by server, as an SVG file.
pub fn timeline_svg(timeline: &KeptTimeline, title: &str) -> String {
    let (height, inner) = gantt::picture(timeline);
    let heading = format!(
        "<text x=\"4\" y=\"14\">{} step {}: requests by server, seconds since the step began</text>",
        plot::escaped(title),
        timeline.step
    );
    standalone(
        gantt::WIDTH,
        height + HEADING,
        &format!("{heading}<g transform=\"translate(0 {HEADING})\">{inner}</g>"),
    )
}

/// The height of a heading, in units of the view box.
const HEADING: f64 = 24.0;

/// An SVG file with the colours of the page.
fn standalone(width: f64, height: f64, inner: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"system-ui, sans-serif\">\n<style>\n{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" style=\"fill: var(--surface)\"/>\n{inner}\n</svg>\n"
    )
}

fn timeline(run: &Path, step: Option<u64>) -> Result<Option<KeptTimeline>, PageError> {
    let unreadable = |file: PathBuf| move |source| PageError::Unreadable { file, source };
    let kept = kept_timelines(run).map_err(unreadable(run.to_owned()))?;
    let step = match step {
        Some(step) if kept.is_empty() => {
            return Err(PageError::NoTimelines { step, run: run.to_owned() });
        }
        Some(step) if !kept.contains(&step) => return Err(PageError::NoTimeline { step, kept }),
        Some(step) => step,
        None => match kept.last() {
            Some(newest) => *newest,
            None => return Ok(None),
        },
    };
    let file = KeptTimeline::file(run, step);
    let text = fs::read_to_string(&file).map_err(unreadable(file.clone()))?;
    serde_json::from_str(&text).map(Some).map_err(|error| unreadable(file)(error.into()))
}

#[cfg(test)]
mod tests;
