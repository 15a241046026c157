//! Output for people: a live line while a step runs, a table when the step ends, an explanation why a step
//! has not ended, the log of the run, and a page with plots of the run. Output for programs: the figures of
//! steps and validations.

pub mod figures;
mod line;
mod numbers;
mod page;
mod progress;
mod run_log;
mod status;
mod table;
mod tensorboard;
mod tokens;
mod why;

use comfy_table::{ContentArrangement, Row, Table, presets};

pub use page::{PageError, report_page};
pub use progress::{LogWriter, Progress};
pub use run_log::{RUN_LOG_ONLY, RunLog};
pub use status::{QueueStatus, ServerStatus, Stage, Status, WaitLimits};
pub use table::{step_table, validation_line};
pub use tensorboard::EventFile;
pub use tokens::token_words;
pub use why::why;

/// An empty table that wraps its cells to fit 80 columns, both in a terminal and in a file. Columns are
/// separated by one space.
pub fn new_table(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(line::WIDTH).set_header(header);
    let last = table.column_count().saturating_sub(1);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(number == 0), u16::from(number == last)));
    }
    table
}

/// Prints a text on standard output. A closed standard output is not an error.
pub fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a text on standard error. A closed standard error, for example of a closed terminal, is not an
/// error.
pub fn say_error(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}
