//! The tokens that a request leaves when it is cut off.
//!
//! The caller passes a [`Progress`] with a request, and reads it after the request has ended or its future
//! was dropped. A progress has only tokens that have passed the same checks as a whole answer. It also has
//! counts of all tokens that the engine generated ([`Generated`]).
//!
//! # Invariants
//! - A request that succeeds leaves no tokens here: they are in its [`Generation`](super::Generation).
//! - Each part has one log-probability per token. Its spans cover its tokens, or are absent because the
//!   engine has not reported the versions yet.
//! - An answer that cannot be trusted leaves no tokens, not even the tokens before the first failed check.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

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

/// Counts of the tokens that an engine generated for a request, including tokens that did not arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generated {
    /// Number of tokens over all samples, if the engine reports it. Simulated engines always report it. Real
    /// engines do not report it for a request whose connection was cut.
    pub tokens: Option<u64>,
    /// Number of tokens that arrived and passed the checks. The engine generated at least this many.
    pub arrived: u64,
    /// When the last of these tokens arrived, if they arrive while the engine generates.
    pub arrived_at: Option<Instant>,
    /// Whether the engine had generated everything when the request ended.
    pub is_whole: bool,
}

/// The place where a request leaves its tokens: one part per sample, in order of their index.
///
/// Clones share their content. A progress belongs to one request. If it is passed to a second request, it is
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
    /// An empty progress.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes out all parts. There is one part per sample of the request, or none.
    pub fn take(&self) -> Vec<PartialOutput> {
        let mut left = self.left.lock();
        left.note_arrived();
        std::mem::take(&mut left.samples)
    }

    /// Number of tokens so far, over all samples.
    pub fn tokens(&self) -> u64 {
        self.left.lock().samples.iter().map(|sample| sample.response_ids.len() as u64).sum()
    }

    /// The counts of the tokens that the engine generated. They are final when the request has ended or its
    /// future was dropped.
    pub fn generated(&self) -> Generated {
        let mut left = self.left.lock();
        left.note_arrived();
        left.generated
    }

    /// Empties the progress for a request that begins.
    pub(super) fn begin(&self) {
        *self.left.lock() = Left::default();
    }

    /// Replaces the present parts by `parts`.
    pub(super) fn leave(&self, parts: Vec<PartialOutput>) {
        let mut left = self.left.lock();
        left.note_arrived();
        left.samples = parts;
    }

    /// Notes the number of generated tokens that the engine reports.
    pub(super) fn engine_says(&self, tokens: u64) {
        self.left.lock().generated.tokens = Some(tokens);
    }

    /// Notes that the engine has generated all tokens, and that its answer is arriving.
    pub(super) fn note_whole(&self) {
        self.left.lock().generated.is_whole = true;
    }

    /// Adds tokens that have just arrived to the present parts.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Vec<PartialOutput>) -> T) -> T {
        let mut left = self.left.lock();
        left.generated.arrived_at = Some(Instant::now());
        change(&mut left.samples)
    }
}
