//! What a person sees: a live line while a step runs, a table when it ends.

mod progress;
mod table;

pub use progress::{LogWriter, Progress};
pub use table::{step_table, validation_line};

/// Prints a text for people on standard output. A closed standard output is no reason to fail.
pub fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
