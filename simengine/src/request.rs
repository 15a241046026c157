//! A request to a simulated server and its answer, in flat token buffers.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

/// Given all tokens of a response, the number of tokens to keep, or none for all.
type Scan = dyn Fn(&[u32]) -> Option<u32> + Send + Sync;

/// Finds where stop strings end a response. The engine knows no text, so that the caller brings it.
#[derive(Clone)]
pub struct StopScan(Arc<Scan>);

impl StopScan {
    /// Wraps a function from all tokens of a response to the number of tokens to keep, or none for all.
    pub fn new(scan: impl Fn(&[u32]) -> Option<u32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(scan))
    }

    pub(crate) fn keep(&self, token_ids: &[u32]) -> Option<u32> {
        (self.0)(token_ids)
    }
}

impl fmt::Debug for StopScan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("StopScan")
    }
}

/// One request for `n` samples of one prompt.
///
/// Choice `i` is the sample of `seed + i`, as vLLM derives the seeds of a request with `n > 1`: one request
/// of n and n requests of one give the same samples.
#[derive(Debug, Clone)]
pub struct SimRequest {
    /// What [`crate::SimServer::abort`] finds it by; duplicates are allowed, and aborted together.
    pub request_id: Arc<str>,
    /// The prompt.
    pub prompt_ids: Arc<[u32]>,
    /// Number of samples.
    pub n: u32,
    /// Most tokens of a sample; none is all the room the model has.
    pub max_tokens: Option<u32>,
    /// Fewest tokens of a sample.
    pub min_tokens: u32,
    /// Seed of choice 0; none draws one that depends on what the server has served before.
    pub seed: Option<u64>,
    /// Tokens that end a sample besides the end-of-sequence token.
    pub stop_token_ids: Vec<u32>,
    /// Stop strings, by their effect.
    pub stop_scan: Option<StopScan>,
    /// Whether samples go on to `max_tokens`; then they never reach an answer.
    pub ignore_eos: bool,
    /// Set where `prompt_ids` ends in what was said of the one sample asked for before it was cut off.
    pub resumed: Option<Resumed>,
    /// Whether that is to be found out from `prompt_ids` alone, as far as they show it: for the protocols that cannot
    /// say it. A prompt that shows nothing is a prompt.
    pub recognise_resumed: bool,
    /// Where tokens go as they are generated. A full channel delays chunks, never the engine; what was not
    /// sent is in the response all the same.
    pub stream: Option<mpsc::Sender<SimChunk>>,
}

impl SimRequest {
    /// A request for one sample with the defaults of every option.
    pub fn new(request_id: impl Into<Arc<str>>, prompt_ids: impl Into<Arc<[u32]>>, seed: u64) -> Self {
        Self {
            request_id: request_id.into(),
            prompt_ids: prompt_ids.into(),
            n: 1,
            max_tokens: None,
            min_tokens: 0,
            seed: Some(seed),
            stop_token_ids: Vec::new(),
            stop_scan: None,
            ignore_eos: false,
            resumed: None,
            recognise_resumed: false,
            stream: None,
        }
    }
}

/// What a sample that was cut off goes on from.
///
/// The answer is then exactly what was left to say: the sample is that of the prompt without its last `tokens`
/// tokens and of this seed, from position `tokens` on. So neither its length nor its correctness depends on how
/// often it was cut. Limits count the tokens of this request alone, and positions in the answer start at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// The last so many of `prompt_ids` are the sample's own.
    pub tokens: u32,
    /// Seed of the sample when it began.
    pub seed: u64,
}

/// Tokens of one choice that were generated since the last chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct SimChunk {
    /// Of which request.
    pub request_id: Arc<str>,
    /// Which choice.
    pub index: u32,
    /// Position of the first of these tokens in the choice.
    pub start: u32,
    /// At least one token.
    pub token_ids: Vec<u32>,
    /// One per token.
    pub logprobs: Vec<f32>,
}

/// Why a sample ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens`.
    Length,
    /// An abort by id or a pause; the tokens so far are there.
    Abort,
}

impl FinishReason {
    /// vLLM's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// A run of tokens that one weight version generated: `start..end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSpan {
    /// The version's label.
    pub version: Arc<str>,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

/// One finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SimChoice {
    /// Its place in the request; its seed is `seed + index`.
    pub index: u32,
    /// Token ids, with the token that stopped it.
    pub token_ids: Vec<u32>,
    /// One per token, natural logarithm. NaN or -9999.0 only by an injected fault.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop token of `stop_token_ids` that ended it.
    pub stop_token_id: Option<u32>,
    /// Cover all tokens in order; empty where there is none.
    pub version_spans: Vec<VersionSpan>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct SimResponse {
    /// One per sample, in order of their index.
    pub choices: Vec<SimChoice>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens of the first choice that were in the prefix cache.
    pub cached_tokens: u32,
    /// Simulated ns from submission to the first choice's first scheduling.
    pub queue_ns: u64,
    /// Simulated ns from submission to the first token of the first choice that had one.
    pub first_token_ns: u64,
    /// Simulated ns from submission to the end of the last choice.
    pub total_ns: u64,
}
