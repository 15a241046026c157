//! The last line of the terminal, which is redrawn in place.
//!
//! The line fills less than one row, and the cursor rests on its first column. When a window shrinks, some
//! terminals wrap the line into several rows and others cut it off; in both the cursor stays at its start. So
//! to erase everything from the cursor to the end of the screen leaves nothing behind.
//!
//! # Deliberately absent
//! The library that is usual for this. It counts the rows to erase by the width at the time of drawing, which
//! leaves rows behind in a window that has shrunk, and it panics when the terminal is gone.

use std::io::{self, Write};

use parking_lot::Mutex;

use crate::process::WIDTH;

/// Erases from the start of the cursor's row to the end of the screen.
const ERASE: &str = "\r\x1b[J";

/// Where the line is drawn.
pub(super) trait Terminal: Send {
    /// Its width at present; columns.
    fn width(&self) -> usize;
    /// Writes a text. A terminal that is gone is no error.
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

/// A line that stays below everything else that is printed.
pub(super) struct LiveLine(Mutex<State>);

struct State {
    /// `None` if nothing is drawn.
    terminal: Option<Box<dyn Terminal>>,
    /// What is shown; empty between two steps.
    text: String,
}

impl LiveLine {
    /// A line on `terminal`, or one that is never drawn.
    pub(super) fn new(terminal: Option<Box<dyn Terminal>>) -> Self {
        Self(Mutex::new(State { terminal, text: String::new() }))
    }

    /// Whether there is a terminal on which it is drawn.
    pub(super) fn is_drawn(&self) -> bool {
        self.0.lock().terminal.is_some()
    }

    /// Shows a text in place of the one before. `text` gets the number of columns that it may fill.
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

    /// Calls `print`, which prints whole lines, with the line out of the way.
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
