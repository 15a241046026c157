//! Output for people: a live line while a step runs, a table when the step ends, an explanation of why a step
//! has not ended, the log of the run, and a page with plots of the run. Output for programs: the figures of
//! steps and validations.

pub mod figures;
mod line;
mod page;
mod progress;
mod run_log;
mod status;
mod table;
mod tensorboard;
mod why;

pub use page::{PageError, Point, Scatter, report_page, timeline_svg};
pub use progress::{LogWriter, Progress};
pub use run_log::{RUN_LOG_ONLY, RunLog};
pub use status::{QueueStatus, ServerStatus, Stage, Status, WaitLimits};
pub use table::{step_table, validation_line};
pub use tensorboard::EventFile;
pub use why::why;
