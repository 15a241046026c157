//! What a request that was cut off leaves behind.
//!
//! The caller hands in a [`Progress`] with a request, and reads it after the request has ended or its future
//! has been dropped. It holds only tokens that have passed the checks that a whole answer passes.
//!
//! # Invariants
//! - A request that ends well leaves nothing: its tokens are in its [`Generation`](super::Generation).
//! - Each part has one log-probability per token. Its spans cover its tokens, or there are none: then
//!   the engine has not said yet which version generated them.
//! - An answer that cannot be trusted leaves nothing, not even what came before the first sign of it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{PartialOutput, SampleOutput};

impl SampleOutput {
    /// Turns a part that has ended into a sample. Returns `None` for a part that has not ended or has no
    /// token.
    pub(super) fn finished(part: PartialOutput) -> Option<Self> {
        let PartialOutput { response_ids, logprobs, version_spans, finish_reason } = part;
        let finish_reason = finish_reason.filter(|_| !response_ids.is_empty())?;
        Some(Self { response_ids, logprobs, finish_reason, version_spans })
    }
}

/// Where a request leaves its tokens, one part per sample, in order of their index.
///
/// Clones share their content. A progress belongs to one request; if it is handed to a second one, it is
/// emptied.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    samples: Arc<Mutex<Vec<PartialOutput>>>,
}

impl Progress {
    /// A progress with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes out what is there: nothing, or one part per sample of the request.
    pub fn take(&self) -> Vec<PartialOutput> {
        std::mem::take(&mut self.samples.lock())
    }

    /// Number of tokens so far, over all samples.
    pub fn tokens(&self) -> u64 {
        self.samples.lock().iter().map(|sample| sample.response_ids.len() as u64).sum()
    }

    /// Puts `parts` in place of what is there.
    pub(super) fn leave(&self, parts: Vec<PartialOutput>) {
        *self.samples.lock() = parts;
    }

    /// Looks at or changes what is there.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Vec<PartialOutput>) -> T) -> T {
        change(&mut self.samples.lock())
    }
}
