//! What a person sees: a live line while a step runs, a table when it ends.

mod progress;
mod table;

pub use progress::{LogWriter, Progress};
pub use table::{step_table, validation_line};
