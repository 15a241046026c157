//! What a request that was cut off leaves behind.
//!
//! The caller hands in a [`Progress`] with a request, and reads it after the request has ended or its future
//! has been dropped. It holds only tokens that have passed the checks that a whole answer passes, and beside
//! them what is known of all tokens that the engine generated ([`Generated`]).
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

/// What is known of the tokens that an engine generated for a request, whether or not they arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generated {
    /// Number of tokens over all samples, if the engine says it. Simulated engines always say it; real ones
    /// do not say how far a request came whose connection was cut.
    pub tokens: Option<u64>,
    /// Number of tokens that arrived in sound pieces. The engine generated at least these.
    pub arrived: u64,
    /// Whether the engine had generated everything when the request ended.
    pub is_whole: bool,
}

/// Where a request leaves its tokens, one part per sample, in order of their index.
///
/// Clones share their content. A progress belongs to one request; if it is handed to a second one, it is
/// emptied.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    left: Arc<Mutex<Left>>,
}

#[derive(Debug, Default)]
struct Left {
    samples: Vec<PartialOutput>,
    generated: Generated,
}

impl Left {
    fn note_arrived(&mut self) {
        let tokens = self.samples.iter().map(|sample| sample.response_ids.len() as u64).sum();
        self.generated.arrived = self.generated.arrived.max(tokens);
    }
}

impl Progress {
    /// A progress with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes out what is there: nothing, or one part per sample of the request.
    pub fn take(&self) -> Vec<PartialOutput> {
        let mut left = self.left.lock();
        left.note_arrived();
        std::mem::take(&mut left.samples)
    }

    /// Number of tokens so far, over all samples.
    pub fn tokens(&self) -> u64 {
        self.left.lock().samples.iter().map(|sample| sample.response_ids.len() as u64).sum()
    }

    /// What is known of all tokens that the engine generated. It is complete when the request has ended or
    /// its future has been dropped.
    pub fn generated(&self) -> Generated {
        let mut left = self.left.lock();
        left.note_arrived();
        left.generated
    }

    /// Empties the progress for a request that begins.
    pub(super) fn begin(&self) {
        *self.left.lock() = Left::default();
    }

    /// Puts `parts` in place of what is there.
    pub(super) fn leave(&self, parts: Vec<PartialOutput>) {
        let mut left = self.left.lock();
        left.note_arrived();
        left.samples = parts;
    }

    /// Notes the number of tokens that the engine says it generated.
    pub(super) fn engine_says(&self, tokens: u64) {
        self.left.lock().generated.tokens = Some(tokens);
    }

    /// Notes that the engine has generated everything, and that its answer is on its way.
    pub(super) fn note_whole(&self) {
        self.left.lock().generated.is_whole = true;
    }

    /// Looks at or changes what is there.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Vec<PartialOutput>) -> T) -> T {
        change(&mut self.left.lock().samples)
    }
}
