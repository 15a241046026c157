//! Output for people: lines, tables and numbers.

mod numbers;
mod tokens;

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use comfy_table::{ContentArrangement, Row, Table, presets};

pub use numbers::{grouped, plural, share};
pub use tokens::token_words;

/// The width of tables, and of a terminal that does not report its width, in columns.
pub const WIDTH: u16 = 80;

/// An empty table that wraps its cells to fit 80 columns, both in a terminal and in a file. Columns are
/// separated by one space.
pub fn new_table(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH).set_header(header);
    let last = table.column_count().saturating_sub(1);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(number == 0), u16::from(number == last)));
    }
    table
}

/// Whether a text could not be printed.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Prints a text on standard output, and returns whether this succeeded. If the reader has closed the pipe, as `head`
/// does, nothing else happens. Any other failure is printed on standard error, and [`is_incomplete`] returns true from
/// then on.
pub fn said(text: &str) -> bool {
    let Err(error) = writeln!(std::io::stdout(), "{text}") else { return true };
    if error.kind() != ErrorKind::BrokenPipe {
        IS_INCOMPLETE.store(true, Ordering::Relaxed);
        say_error(&format!("cannot write to standard output: {error}"));
    }
    false
}

/// Prints a text like [`said`], for output that nothing depends on.
pub fn say(text: &str) {
    said(text);
}

/// Whether a text is missing on standard output, for example because the disk is full.
pub fn is_incomplete() -> bool {
    IS_INCOMPLETE.load(Ordering::Relaxed)
}

/// Prints a text on standard error. Failures are ignored, because there is no other place to report them.
pub fn say_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
