//! The log of a run: a file in the run's directory with all logs since the start of the process.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// The target of events that only the log of a run gets, because the terminal shows them in another form.
pub const RUN_LOG_ONLY: &str = "rolldock::run_log";

/// The maximum number of bytes that are buffered before the run has a directory. A process that logs more
/// than that so early is probably in a loop, so further logs are dropped.
const HELD_BYTES_MAX: usize = 1 << 20;

/// A writer for the log of a run. Clones write to the same file.
#[derive(Clone, Debug)]
pub struct RunLog(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// The logs from before the run had a directory.
    Held(Vec<u8>),
    File(File),
}

impl RunLog {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State::Held(Vec::new()))))
    }

    /// Appends the buffered logs and all later logs to `file`. Blocks.
    pub(super) fn keep(&self, file: &Path) -> io::Result<()> {
        let mut opened = OpenOptions::new().create(true).append(true).open(file)?;
        let mut state = self.0.lock();
        if let State::Held(held) = &*state {
            opened.write_all(held)?;
        }
        *state = State::File(opened);
        Ok(())
    }
}

impl Write for RunLog {
    /// Never fails, because an error of the file, such as a full disk, must not suppress logs on the
    /// terminal.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let plain = plain(text);
        match &mut *self.0.lock() {
            State::Held(held) if held.len() + plain.len() <= HELD_BYTES_MAX => held.extend_from_slice(&plain),
            State::Held(_) => {}
            State::File(file) => drop(file.write_all(&plain)),
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text without control characters, for example without escape codes in a server's messages.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    let is_foreign = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    let words = String::from_utf8_lossy(text);
    if !words.contains(is_foreign) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(words.replace(is_foreign, "\u{fffd}").into_bytes())
}
