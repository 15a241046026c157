//! The last line of the terminal, which is redrawn in place.
//!
//! The line fills less than one row, and the cursor stays at its first column. When a window shrinks, some
//! terminals wrap the line into several rows, and others cut it off. In both cases the cursor stays at the
//! start of the line. So the line is removed completely by erasing from the cursor to the end of the screen.
//!
//! # Deliberately absent
//! The usual library for progress lines is not used. It computes the number of rows to erase from the width
//! at the time of drawing, so it leaves rows behind in a window that has shrunk. It also panics when the
//! terminal was closed.

use std::io::{self, Write};

use parking_lot::Mutex;

/// The width of tables, and of a terminal that does not report its width, in columns.
use crate::process::WIDTH;

/// Erases from the start of the cursor's row to the end of the screen.
const ERASE: &str = "\r\x1b[J";

/// The terminal on which the line is drawn.
pub(super) trait Terminal: Send {
    /// The present width, in columns.
    fn width(&self) -> usize;
    /// Writes a text. A closed terminal is not an error.
    fn write(&mut self, text: &str);
}

/// Standard error.
pub(super) struct Stderr;

impl Terminal for Stderr {
    fn width(&self) -> usize {
        let size = rustix::termios::tcgetwinsize(io::stderr());
        let columns = size.map_or(0, |size| size.ws_col);
        usize::from(if columns == 0 { WIDTH } else { columns })
    }

    fn write(&mut self, text: &str) {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// A line that stays below all other output.
pub(super) struct LiveLine(Mutex<State>);

struct State {
    /// The terminal; `None` if the line is never drawn.
    terminal: Option<Box<dyn Terminal>>,
    /// The text of the line; empty between two steps.
    text: String,
}

impl LiveLine {
    /// A line on `terminal`. Without a terminal it is never drawn.
    pub(super) fn new(terminal: Option<Box<dyn Terminal>>) -> Self {
        Self(Mutex::new(State { terminal, text: String::new() }))
    }

    /// Whether the line has a terminal on which it is drawn.
    pub(super) fn is_drawn(&self) -> bool {
        self.0.lock().terminal.is_some()
    }

    /// Replaces the text of the line. `text` is called with the number of columns that the line may fill.
    pub(super) fn show(&self, text: impl FnOnce(usize) -> String) {
        let mut state = self.0.lock();
        let Some(terminal) = &state.terminal else { return };
        state.text = text(room(terminal.as_ref()));
        state.draw();
    }

    /// Removes the line.
    pub(super) fn clear(&self) {
        let mut state = self.0.lock();
        state.erase();
        state.text.clear();
    }

    /// Removes the line, calls `print`, which prints complete lines, and draws the line again.
    pub(super) fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        let mut state = self.0.lock();
        state.erase();
        let printed = print();
        state.draw();
        printed
    }
}

/// The columns that a line may fill. A character in the last column would wrap the line in some terminals.
fn room(terminal: &dyn Terminal) -> usize {
    terminal.width().saturating_sub(1)
}

impl State {
    fn erase(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|_| !self.text.is_empty()) {
            terminal.write(ERASE);
        }
    }

    fn draw(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|_| !self.text.is_empty()) {
            let shown: String = self.text.chars().take(room(terminal.as_ref())).collect();
            terminal.write(&format!("{ERASE}{shown}\r"));
        }
    }
}

#[cfg(test)]
mod tests;
