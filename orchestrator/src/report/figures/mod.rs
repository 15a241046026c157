//! The figures of a run for programs: files in its directory with one JSON object for each step and for each
//! validation, and the times of the newest steps' requests.
//!
//! `docs/src/figures.md` lists every name with its unit. A name never changes its meaning. A new figure gets
//! a new name.

mod accepted;
mod lines;
mod step;
mod timeline;
mod validation;

pub use accepted::AcceptedGroups;
pub use lines::FigureFile;
pub use step::{StepFigures, Written, recovered_step, step_figures};
pub use timeline::{GroupRow, KeptTimeline, RequestRow, kept_timelines};
pub use validation::{ValidationFigures, validation_figures};

/// The file of a run's steps, in its directory.
pub const STEPS_FILE: &str = "steps.jsonl";

/// The file of a run's validations, in its directory.
pub const VALIDATIONS_FILE: &str = "validation.jsonl";

/// The version of the names. It changes only if a name is removed or changes its meaning.
const FORMAT: u32 = 1;

/// The number, rounded to six decimals, so that files stay small.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests;
