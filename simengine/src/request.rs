//! Requests to a simulated server and its responses, in flat token buffers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::mpsc;

/// Takes all tokens of a response and returns the number of tokens to keep, or `None` for all.
type Scan = dyn Fn(&[u32]) -> Option<u32> + Send + Sync;

/// Finds where stop strings end a response. The engine works with token ids only, so the caller provides this
/// function.
#[derive(Clone)]
pub struct StopScan(Arc<Scan>);

impl StopScan {
    /// Wraps a function that takes all tokens of a response and returns the number of tokens to keep, or
    /// `None` for all.
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
/// Choice `i` is the sample of the seed `seed + i`, as in vLLM. One request for n samples therefore gives the
/// same samples as n requests with these seeds.
#[derive(Debug, Clone)]
pub struct SimRequest {
    /// The id for [`SimServer::abort`](crate::SimServer::abort). Requests that share an id are aborted
    /// together.
    pub request_id: Arc<str>,
    /// The prompt.
    pub prompt_ids: Arc<[u32]>,
    /// Number of samples.
    pub n: u32,
    /// Maximum number of tokens of a sample; bounded only by the model's length if absent.
    pub max_tokens: Option<u32>,
    /// Minimum number of tokens of a sample.
    pub min_tokens: u32,
    /// Seed of choice 0; derived from the request's id if absent.
    pub seed: Option<u64>,
    /// Tokens that end a sample besides the end-of-sequence token.
    pub stop_token_ids: Vec<u32>,
    /// Finds where the request's stop strings end a sample.
    pub stop_scan: Option<StopScan>,
    /// Whether samples ignore the end-of-sequence token and continue to `max_tokens`.
    pub ignore_eos: bool,
    /// Set if the request continues a sample that was cut off. `prompt_ids` then ends in the tokens of the
    /// sample so far, and `n` is 1.
    pub resumed: Option<Resumed>,
    /// Whether the server searches the end of `prompt_ids` for earlier tokens of a sample, for protocols that
    /// cannot mark such tokens. A prompt without them is an ordinary prompt.
    pub recognise_resumed: bool,
    /// Receives the tokens as they are generated. A full channel delays chunks but never the engine. The
    /// response always has all tokens.
    pub stream: Option<mpsc::Sender<SimChunk>>,
    /// Receives the number of tokens that the engine generated for the request, over all samples, when the
    /// request leaves the engine. A request leaves when it is answered, when it fails, or when its caller
    /// stops waiting.
    pub generated: Option<Arc<AtomicU64>>,
}

impl SimRequest {
    /// A request for one sample, with the default of every option.
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
            generated: None,
        }
    }
}

/// The point from which a sample that was cut off continues.
///
/// The response is exactly the rest of the sample. The sample belongs to this seed and to the prompt without
/// its last `tokens` tokens. The rest begins at position `tokens`. The sample's length and correctness do not
/// depend on how often it was cut off. Limits count only the tokens of this request, and positions in the
/// response start at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Number of tokens at the end of `prompt_ids` that belong to the sample.
    pub tokens: u32,
    /// The sample's seed.
    pub seed: u64,
}

/// Tokens of one choice that were generated since the last chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct SimChunk {
    /// The request's id.
    pub request_id: Arc<str>,
    /// The choice's index.
    pub index: u32,
    /// Position of the first of these tokens in the choice.
    pub start: u32,
    /// At least one token.
    pub token_ids: Vec<u32>,
    /// One log-probability per token.
    pub logprobs: Vec<f32>,
}

/// Why a sample ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens`.
    Length,
    /// An abort by id or a pause. The choice has the tokens generated so far.
    Abort,
}

impl FinishReason {
    /// vLLM's name of the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// The consecutive tokens `start..end` of a sample, which one weight version generated.
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
    /// The choice's index in the request; its seed is `seed + index`.
    pub index: u32,
    /// Token ids, including the token that stopped the sample.
    pub token_ids: Vec<u32>,
    /// One log-probability (natural logarithm) per token. Only injected faults cause NaN and -9999.0.
    pub logprobs: Vec<f32>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// The token of `stop_token_ids` that ended the sample.
    pub stop_token_id: Option<u32>,
    /// The spans of weight versions, in order. Together they cover all tokens.
    pub version_spans: Vec<VersionSpan>,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct SimResponse {
    /// One choice per sample, in order of their indices.
    pub choices: Vec<SimChoice>,
    /// Length of the prompt, in tokens.
    pub prompt_tokens: u32,
    /// Number of prompt tokens that were in the prefix cache when the request's first sample was scheduled.
    pub cached_tokens: u32,
    /// Simulated ns from submission to the first scheduling of a sample.
    pub queue_ns: u64,
    /// Simulated ns from submission to the first token of any sample.
    pub first_token_ns: u64,
    /// Simulated ns from submission to the end of the last choice.
    pub total_ns: u64,
}
