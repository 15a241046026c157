//! Output for people: lines, tables and numbers.

mod numbers;
mod tokens;

use std::io::Write;

use comfy_table::{ContentArrangement, Row, Table, presets};

pub use numbers::{grouped, share};
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

/// Prints a text on standard output. A closed standard output is not an error.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a text on standard error. A closed standard error, for example of a closed terminal, is not an
/// error.
pub fn say_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
