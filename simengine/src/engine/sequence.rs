//! Requests and their samples while they are on the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::SimError;
use crate::fault::Spoil;
use crate::request::{FinishReason, SimChunk, VersionSpan};
use crate::workload::Plan;

/// A request to admit. It contains everything that can be computed outside the engine's lock.
pub(crate) struct Admission {
    pub(crate) request_id: Arc<str>,
    pub(crate) prompt_tokens: u32,
    pub(crate) chain: Arc<[u64]>,
    /// One plan per choice.
    pub(crate) plans: Vec<Plan>,
    pub(crate) stream: Option<mpsc::Sender<SimChunk>>,
    pub(crate) generated: Option<Arc<AtomicU64>>,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// The result of a request.
pub(crate) type Outcome = Result<Completion, SimError>;

/// A request that has ended by itself or by an abort. The task that waits for the request generates its
/// tokens.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) endings: Vec<Ending>,
    pub(crate) cached_tokens: u32,
    pub(crate) queue_ns: u64,
    pub(crate) first_token_ns: u64,
    pub(crate) total_ns: u64,
    pub(crate) spoil: Option<Spoil>,
}

/// How a sample ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) index: u32,
    pub(crate) plan: Plan,
    pub(crate) tokens: u32,
    pub(crate) finish_reason: FinishReason,
    pub(crate) version_spans: Vec<VersionSpan>,
}

/// The stage of a sequence on the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Held back by a pause.
    Held,
    /// In the queue.
    Waiting,
    /// The sequence's prompt is computed in the present step.
    Prefilling,
    /// In the batch.
    Running,
}

/// One sample on the engine.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The request's number, which is the number of its first sequence.
    pub(crate) request: u64,
    pub(crate) index: u32,
    pub(crate) plan: Plan,
    pub(crate) prompt_tokens: u32,
    pub(crate) chain: Arc<[u64]>,
    pub(crate) status: Status,
    /// Number of tokens generated before the sequence last joined the batch.
    pub(crate) tokens_joined: u32,
    /// Number of tokens sent to the stream.
    pub(crate) streamed: u32,
    pub(crate) versions: Versions,
    pub(crate) was_scheduled: bool,
}

/// The weight versions of a sample's tokens.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    spans: Vec<VersionSpan>,
}

impl Versions {
    /// Notes that `version` generated the tokens up to `end` that have no version yet.
    pub(crate) fn mark(&mut self, version: &Arc<str>, end: u32) {
        let start = self.spans.last().map_or(0, |span| span.end);
        if end <= start {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if last.version == *version => last.end = end,
            _ => self.spans.push(VersionSpan { version: Arc::clone(version), start, end }),
        }
    }

    pub(crate) fn into_spans(self) -> Vec<VersionSpan> {
        self.spans
    }
}

/// A request on the engine.
pub(crate) struct Request {
    pub(crate) request_id: Arc<str>,
    pub(crate) submitted_ns: u64,
    pub(crate) live: u32,
    pub(crate) endings: Vec<Ending>,
    pub(crate) samples: u32,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) queue_ns: Option<u64>,
    pub(crate) first_token_ns: Option<u64>,
    pub(crate) stream: Option<mpsc::Sender<SimChunk>>,
    /// The counter through which the caller learns how many tokens were generated for the request.
    pub(crate) generated: Option<Arc<AtomicU64>>,
    pub(crate) reply: oneshot::Sender<Outcome>,
    pub(crate) loses_answer: bool,
    pub(crate) spoil: Option<Spoil>,
}

impl Request {
    /// Reports to the caller how many tokens were generated: the tokens of the samples that have ended, plus
    /// `live_tokens` of the other samples.
    pub(crate) fn report_generated(&self, live_tokens: u64) {
        if let Some(generated) = &self.generated {
            let ended: u64 = self.endings.iter().map(|ending| u64::from(ending.tokens)).sum();
            generated.store(ended + live_tokens, Ordering::Release);
        }
    }
}
