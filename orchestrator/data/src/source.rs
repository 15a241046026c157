//! The source of the rollout's prompts.

use rolldock_dispatch::Position;
use serde::Serialize;

use crate::{DataError, Prompt};

/// The source of the rollout's prompts.
///
/// The methods block, because they read and tokenise. Do not call them on I/O threads.
pub trait PromptSource: Send {
    /// The next prompt, or `None` when the data is used up. All later calls return `None` too.
    fn next(&mut self) -> Result<Option<Prompt>, DataError>;

    /// The prompt of a row in the given visit, independent of the position of the draws. A restart calls
    /// this method for prompts that are sent out again. `None` if the source cannot look up rows. A prompt that
    /// would be dropped because of its length is [`DataError::Overlong`].
    fn fetch(&mut self, _row: u64, _visit: u32) -> Result<Option<Prompt>, DataError> {
        Ok(None)
    }

    /// The position of the next draw; `None` if the source cannot be resumed.
    fn position(&self) -> Option<Position> {
        None
    }

    /// The numbers of rows that were drawn and skipped so far; `None` if the source does not count them.
    fn drawn(&self) -> Option<DrawCounts> {
        None
    }
}

/// Counts of a source so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DrawCounts {
    /// Prompts that were returned.
    pub prompts: u64,
    /// Rows that were dropped because they are too long.
    pub overlong_dropped: u64,
    /// Prompts that were cut to the maximum length.
    pub overlong_truncated: u64,
}
