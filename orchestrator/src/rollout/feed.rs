//! The source of the manager's prompts. Prompts are drawn away from the I/O threads.

use std::sync::Arc;

use parking_lot::Mutex;
use rolldock_dispatch::Position;

use crate::data::{DataError, DrawCounts, Prompt, PromptSource};
use crate::rollout::RolloutError;
use crate::scope::Scope;

/// A prompt that was drawn, and the position in the data after the prompt.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) prompt: Prompt,
    pub(crate) drawn_to: Option<Position>,
    /// The counts of the source when it returned the prompt.
    pub(crate) counts: Option<DrawCounts>,
}

/// A prompt source that all steps share. A draw reads and tokenises rows, so it runs on the blocking pool.
#[derive(Clone)]
pub struct PromptFeed {
    source: Arc<Mutex<Box<dyn PromptSource>>>,
    inline: bool,
}

impl PromptFeed {
    /// Wraps a source.
    pub fn new(source: Box<dyn PromptSource>) -> Self {
        Self { source: Arc::new(Mutex::new(source)), inline: false }
    }

    /// Wraps a source from which the caller's task draws directly. This is for virtual time, where the speed
    /// of another thread must have no effect.
    pub fn inline(source: Box<dyn PromptSource>) -> Self {
        Self { inline: true, ..Self::new(source) }
    }

    /// Draws up to `count` prompts. If it returns fewer prompts, the data has ended. Not cancel-safe: if the
    /// future is dropped, the drawn prompts are lost.
    pub(crate) async fn draw(&self, count: usize, scope: &Scope) -> Result<Vec<Drawn>, RolloutError> {
        if self.inline {
            return Ok(draw_from(&mut **self.source.lock(), count)?);
        }
        let source = Arc::clone(&self.source);
        let drawn = scope.spawn_blocking("prompt draw", move || draw_from(&mut **source.lock(), count)).await;
        match drawn {
            Ok(prompts) => Ok(prompts?),
            Err(error) => Err(RolloutError::WorkerDied { reason: error.to_string() }),
        }
    }

    /// The prompt of a row, independently of the draws. The call reads and tokenises the row, so it must not
    /// be made on an I/O thread.
    pub(crate) fn fetch(&self, row: u64, visit: u32) -> Result<Option<Prompt>, DataError> {
        self.source.lock().fetch(row, visit)
    }

    /// Gives access to the source between steps, to read its position and reports.
    pub fn with_source<T>(&self, read: impl FnOnce(&mut dyn PromptSource) -> T) -> T {
        read(&mut **self.source.lock())
    }
}

fn draw_from(source: &mut dyn PromptSource, count: usize) -> Result<Vec<Drawn>, DataError> {
    let mut prompts = Vec::with_capacity(count);
    while prompts.len() < count {
        let Some(prompt) = source.next()? else { break };
        prompts.push(Drawn { prompt, drawn_to: source.position(), counts: source.drawn() });
    }
    Ok(prompts)
}
