//! One choice of an answer: the expected values, the values that were read, and the checks.
//!
//! A reader of whole answers fills one [`Choice`] for each sample. A reader of streams fills one for each
//! sample of an event. The readers check the values against the request ([`Expected`]). The conversion of a
//! choice to a sample checks that its tokens, log-probabilities and spans agree. An [`AnswerError`] names the
//! failed check.

use std::sync::Arc;

use super::scan::ScanError;
use crate::soundness::spans_cover;
use crate::{FinishReason, GenerateRequest, PartialOutput, SampleOutput, VersionSpan};

/// The least length of the part of an id that tells runs apart. A shorter part may occur in any id.
const RUN_CHARS_MIN: usize = 8;

/// The size of an unknown vocabulary. No vocabulary is that large, so a known size is never above it.
pub(super) const VOCAB_SIZE_UNKNOWN: u32 = u32::MAX;

/// The parts of a request that its answer is checked against.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    /// The id that was sent. An answer to another request of the run is an error.
    pub(super) request_id: Arc<str>,
    /// The prompt that was sent. An echo of another prompt is an error.
    pub(super) prompt_ids: Arc<[u32]>,
    /// Number of samples.
    pub(super) n: u32,
    /// Maximum number of tokens of a sample.
    pub(super) max_tokens: u32,
    /// Number of ids of the vocabulary. All ids of a sample have to be below it.
    pub(super) vocab_size: u32,
    /// The form of a sample in the answer.
    pub(super) content: Content,
}

impl Expected {
    /// The expectations for a server that returns tokens. If `vocab_size` is `None`, it is unknown.
    pub(super) fn tokens_of(request: &GenerateRequest, vocab_size: Option<u32>) -> Self {
        Self {
            request_id: Arc::clone(&request.request_id),
            prompt_ids: Arc::clone(&request.prompt_ids),
            n: request.n,
            max_tokens: request.max_tokens,
            vocab_size: vocab_size.unwrap_or(VOCAB_SIZE_UNKNOWN),
            content: Content::Tokens,
        }
    }
}

/// Whether an answer with the id `found` belongs to another request than `sent` of the same run. Requests of a run have
/// the same first part, up to a hyphen. vLLM adds words before the id, and an engine that chooses ids itself does not
/// choose that part.
pub(super) fn is_of_another_request(found: &str, sent: &str) -> bool {
    let run = sent.split('-').next().unwrap_or_default();
    let is_ours = found.match_indices(sent).any(|(at, _)| {
        let after = found[at + sent.len()..].chars().next();
        !after.is_some_and(char::is_alphanumeric)
    });
    run.len() >= RUN_CHARS_MIN && found.contains(run) && !is_ours
}

/// The form of a sample in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Token ids with log-probabilities.
    Tokens,
    /// Text alone.
    Text,
}

/// The check that an answer failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    /// The answer is not JSON, or ends within the document.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A member does not have the type or the range that the protocol demands.
    #[error("member={member}: expected {expected}")]
    Shape { member: &'static str, expected: &'static str },
    /// The number of samples is wrong, or their indexes do not count from 0.
    #[error("expected choices={expected} with the indexes from 0 on, found choices or index={found}")]
    Choices { expected: u32, found: usize },
    /// The server does not return token ids.
    #[error("choice={index} has no token ids")]
    NoTokens { index: u32 },
    /// A sample has more values than `max_tokens`.
    #[error("more values in member={member} than tokens asked for, max_tokens={max_tokens}")]
    TooMany { member: &'static str, max_tokens: u32 },
    /// A token id is not in the vocabulary, so the bytes or the engine are broken.
    #[error("token id={id} at token={token} is not in the vocabulary, expected an id below {vocab_size}")]
    Vocabulary { token: usize, id: u32, vocab_size: u32 },
    /// A sample does not have one log-probability for each token.
    #[error("choice={index} has logprobs={logprobs} for tokens={tokens}")]
    Logprobs { index: u32, tokens: usize, logprobs: usize },
    /// A log-probability names another token than the sample has at its position.
    #[error("the logprob at token={token} is that of id={named}, expected id={id} as in token_ids")]
    OtherToken { token: usize, id: u32, named: u32 },
    /// The engine computed NaN. It has several notations for NaN.
    #[error("poisoned logprob at token={token}: {form}")]
    Poisoned { token: usize, form: &'static str },
    /// The answer has the id of another request.
    #[error("the answer is that to another request, id={found:?}")]
    Request { found: String },
    /// The echoed prompt is not the one that was sent.
    #[error("the echoed prompt differs at token={position} from the prompt that was sent")]
    Prompt { position: usize },
    /// A sample has no finish reason, an unknown finish reason or several finish reasons, or the engine
    /// aborted the sample.
    #[error("choice={index} ended with finish_reason={reason:?}")]
    Finish { index: u32, reason: String },
    /// The engine reports its own failure in the answer.
    #[error("the engine failed: {words}")]
    Engine { words: String },
    /// The stream ended before the end of its samples.
    #[error("the stream ended before choice={index} did")]
    Cut { index: u32 },
    /// The text of an event begins before the text of an earlier event, so events were swapped.
    #[error(
        "choice={index} has text_offset={found} in an event after text_offset={before}: the order is wrong"
    )]
    Order { index: u32, before: u32, found: u32 },
    /// The progress of a request was emptied while the request was still running.
    #[error("the tokens of the request were taken before it had ended")]
    Taken,
    /// The spans of weight versions overlap, leave gaps, or do not end at the last token.
    #[error("choice={index} has weight versions that do not cover its tokens={tokens}")]
    Spans { index: u32, tokens: usize },
}

/// How a sample ended, as the engine reports it. An aborted choice never becomes a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Finished(FinishReason),
    Aborted,
    Unknown(String),
}

/// The values of a choice that have been read so far.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) index: Option<u32>,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) logprobs: Vec<f32>,
    /// The ids that the log-probabilities name, if they came before the token ids. vLLM sends them after these.
    named_ids: Vec<Option<u32>>,
    /// Where the text of the first token begins in the sample's text. It is read only in streams.
    pub(super) text_offset: Option<u32>,
    pub(super) text: Option<String>,
    pub(super) ending: Option<Ending>,
    pub(super) spans: Vec<VersionSpan>,
}

impl Choice {
    /// Begins a column of log-probabilities. If the token ids came first, their number is the capacity of the
    /// column.
    pub(super) fn begin_logprobs(&mut self) {
        self.logprobs.clear();
        self.named_ids.clear();
        self.logprobs.reserve(self.token_ids.as_ref().map_or(0, Vec::len));
    }

    /// Notes that the log-probability at `token` names the id `named`. Returns whether the sample has this id there, as
    /// far as its ids have been read.
    #[inline(always)]
    pub(super) fn agrees(&mut self, token: usize, named: u32) -> bool {
        match &self.token_ids {
            Some(ids) => ids.get(token).is_none_or(|id| *id == named),
            None => {
                self.named_ids.resize(token, None);
                self.named_ids.push(Some(named));
                true
            }
        }
    }

    /// The error for a log-probability that names another id than the sample has.
    pub(super) fn other_token(&self, token: usize, named: u32) -> AnswerError {
        let id = self.token_ids.as_ref().and_then(|ids| ids.get(token)).copied().unwrap_or_default();
        AnswerError::OtherToken { token, id, named }
    }

    /// Compares the ids of log-probabilities that came before the token ids.
    pub(super) fn check_named(&self) -> Result<(), AnswerError> {
        let ids = self.token_ids.iter().flatten();
        for (token, (named, id)) in self.named_ids.iter().zip(ids).enumerate() {
            if let Some(named) = named.filter(|named| named != id) {
                return Err(self.other_token(token, named));
            }
        }
        Ok(())
    }

    /// Why the sample ended; `None` if the engine aborted it.
    fn finish_reason(&mut self, index: u32) -> Result<Option<FinishReason>, AnswerError> {
        match self.ending.take() {
            Some(Ending::Finished(reason)) => Ok(Some(reason)),
            Some(Ending::Aborted) => Ok(None),
            Some(Ending::Unknown(reason)) => Err(AnswerError::Finish { index, reason }),
            None => Err(AnswerError::Finish { index, reason: String::new() }),
        }
    }

    pub(super) fn into_part(mut self, index: u32) -> Result<PartialOutput, AnswerError> {
        self.check_named()?;
        let finish_reason = self.finish_reason(index)?;
        // An aborted sample may have no tokens. A sample that ended by itself has at least one token.
        let has_tokens = |ids: &Vec<u32>| finish_reason.is_none() || !ids.is_empty();
        let Some(mut response_ids) = self.token_ids.filter(has_tokens) else {
            return Err(AnswerError::NoTokens { index });
        };
        let tokens = response_ids.len();
        if self.logprobs.len() != tokens {
            return Err(AnswerError::Logprobs { index, tokens, logprobs: self.logprobs.len() });
        }
        if !spans_cover(&self.spans, tokens) {
            return Err(AnswerError::Spans { index, tokens });
        }
        // A finished sample is kept until its group ends, so its columns keep no spare capacity.
        response_ids.shrink_to_fit();
        self.logprobs.shrink_to_fit();
        self.spans.shrink_to_fit();
        Ok(PartialOutput { response_ids, logprobs: self.logprobs, version_spans: self.spans, finish_reason })
    }

    pub(super) fn into_sample(self, index: u32) -> Result<SampleOutput, AnswerError> {
        SampleOutput::finished(self.into_part(index)?).ok_or_else(|| aborted(index))
    }

    pub(super) fn into_text(mut self, index: u32) -> Result<(String, FinishReason), AnswerError> {
        let finish_reason = self.finish_reason(index)?.ok_or_else(|| aborted(index))?;
        let text = self.text.ok_or(AnswerError::Shape { member: "text", expected: "a string" })?;
        Ok((text, finish_reason))
    }
}

/// The error for an unexpected aborted choice. Callers handle expected aborts before they convert a choice.
fn aborted(index: u32) -> AnswerError {
    AnswerError::Finish { index, reason: "abort".to_owned() }
}
