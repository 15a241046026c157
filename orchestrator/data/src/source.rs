//! Where the rollout gets its prompts from.

use rolldock_dispatch::Position;
use serde::Serialize;

use crate::{DataError, Prompt};

/// Where the rollout gets its prompts from.
///
/// Draws block (they read and tokenise), so call them off the I/O threads.
pub trait PromptSource: Send {
    /// The next prompt, or `None` when the data is used up; it stays `None` then.
    fn next(&mut self) -> Result<Option<Prompt>, DataError>;

    /// The prompt in a row as of a visit to it, wherever the draws are: for prompts that are issued again
    /// after a restart. `None` where the source cannot look one up, or leaves it out for its length.
    fn fetch(&mut self, _row: u64, _visit: u32) -> Result<Option<Prompt>, DataError> {
        Ok(None)
    }

    /// Where the next draw continues, for sources that can be resumed.
    fn position(&self) -> Option<Position> {
        None
    }

    /// How many rows were drawn and skipped so far, for sources that count.
    fn drawn(&self) -> Option<DrawCounts> {
        None
    }
}

/// What a source did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DrawCounts {
    /// Prompts handed out.
    pub prompts: u64,
    /// Rows left out because they are too long.
    pub overlong_dropped: u64,
    /// Prompts that lost their first tokens.
    pub overlong_truncated: u64,
}
