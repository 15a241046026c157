//! Output for people: a live line while a step runs, and a table when it ends.

mod progress;
mod table;

pub use progress::{LogWriter, Progress};
pub use table::{step_table, validation_line};

/// Prints a text on standard output. A closed standard output is not an error.
pub fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
