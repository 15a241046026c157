//! The tokens that an engine drew, and the checks that they pass.

use rolldock_dispatch::VersionSpan;
use rolldock_loadbalancer::control::logprob_is_sound;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::CallError;

/// Why the engine stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn, or a stop token or a stop string ended it. The text is the stop string.
    Stop(Option<String>),
    /// The limit of tokens was reached.
    Length,
    /// The engine ended the request early.
    Abort,
}

/// Drawn tokens.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    pub(crate) ids: Vec<u32>,
    /// One for each token.
    pub(crate) logprobs: Vec<f32>,
    pub(crate) finish: Finish,
    /// The versions of the weights that drew the tokens; empty if the engine does not report versions.
    pub(crate) spans: Vec<VersionSpan>,
    /// The log-probabilities as the engine wrote them, with the alternatives of each token.
    pub(crate) content: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    /// The prompt, in an answer of a completion.
    #[serde(default)]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    pub(super) token_ids: Option<Vec<u32>>,
    #[serde(default)]
    pub(super) finish_reason: Option<String>,
    #[serde(default)]
    pub(super) stop_reason: Option<StopReason>,
    #[serde(default)]
    weight_versions: Option<Vec<Span>>,
    #[serde(default)]
    logprobs: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    Text(String),
    #[expect(dead_code, reason = "a stop token is among the tokens")]
    Token(i64),
}

#[derive(Debug, Deserialize)]
struct Span {
    version: String,
    start: u32,
    end: u32,
}

#[derive(Debug, Deserialize)]
struct Logprobs {
    /// In an answer to `generate` or to a chat.
    #[serde(default)]
    content: Option<Vec<OfToken>>,
    /// In an answer of a completion.
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f64>>>,
}

impl Logprobs {
    fn of_tokens(self) -> Vec<OfToken> {
        let plain = |logprob| OfToken { token_id: None, logprob };
        let listed = || self.token_logprobs.unwrap_or_default().into_iter().map(plain).collect();
        self.content.unwrap_or_else(listed)
    }
}

#[derive(Debug, Deserialize)]
struct OfToken {
    #[serde(default)]
    token_id: Option<u32>,
    #[serde(default)]
    logprob: Option<f64>,
}

impl Choice {
    pub(super) fn finish(&self, base: &str) -> Result<Finish, CallError> {
        match self.finish_reason.as_deref() {
            Some("stop" | "tool_calls" | "function_call") => Ok(Finish::Stop(match &self.stop_reason {
                Some(StopReason::Text(text)) => Some(text.clone()),
                _ => None,
            })),
            Some("length") => Ok(Finish::Length),
            Some("abort") => Ok(Finish::Abort),
            other => {
                let reason = format!("expected finish_reason stop, length or abort, found {other:?}");
                Err(CallError::bad(base, &reason))
            }
        }
    }

    /// The drawn tokens, if they pass all checks. `vocab_size` is the number of ids of the vocabulary, if it is known.
    pub(super) fn checked(self, base: &str, vocab_size: Option<u32>) -> Result<Drawn, CallError> {
        let finish = self.finish(base)?;
        let ids = self.token_ids.ok_or_else(|| CallError::bad(base, "the answer has no token_ids"))?;
        if let Some(size) = vocab_size
            && let Some(at) = ids.iter().position(|id| *id >= size)
        {
            let id = ids[at];
            let reason =
                format!("token id={id} at token={at} is not in the vocabulary, expected an id below {size}");
            return Err(CallError::bad(base, &reason));
        }
        let logprobs = match &self.logprobs {
            Some(raw) => {
                let read: Logprobs = super::read(base, raw.get().as_bytes())?;
                checked_logprobs(base, &ids, read.of_tokens())?
            }
            None if ids.is_empty() => Vec::new(),
            None => return Err(CallError::bad(base, "the answer has no log-probabilities")),
        };
        let spans = checked_spans(base, ids.len(), self.weight_versions.unwrap_or_default())?;
        Ok(Drawn { ids, logprobs, finish, spans, content: self.logprobs })
    }
}

fn checked_logprobs(base: &str, ids: &[u32], content: Vec<OfToken>) -> Result<Vec<f32>, CallError> {
    if content.len() != ids.len() {
        let reason = format!("tokens={} have log-probabilities={}", ids.len(), content.len());
        return Err(CallError::bad(base, &reason));
    }
    let mut logprobs = Vec::with_capacity(ids.len());
    for (at, (id, of_token)) in ids.iter().zip(content).enumerate() {
        if of_token.token_id.is_some_and(|named| named != *id) {
            let reason = format!("the log-probability at token={at} is that of another token");
            return Err(CallError::bad(base, &reason));
        }
        let Some(value) = of_token.logprob.filter(|value| logprob_is_sound(*value)) else {
            let reason = format!("poisoned: the log-probability at token={at} is {:?}", of_token.logprob);
            return Err(CallError::bad(base, &reason));
        };
        logprobs.push(value as f32);
    }
    Ok(logprobs)
}

fn checked_spans(base: &str, tokens: usize, spans: Vec<Span>) -> Result<Vec<VersionSpan>, CallError> {
    let mut end = 0;
    for span in &spans {
        if span.start != end || span.end < span.start {
            return Err(CallError::bad(base, "the spans of versions do not follow each other"));
        }
        end = span.end;
    }
    if !spans.is_empty() && end as usize != tokens {
        let reason = format!("the spans of versions end at token={end} of tokens={tokens}");
        return Err(CallError::bad(base, &reason));
    }
    let to_span = |span: Span| VersionSpan { version: span.version.into(), start: span.start, end: span.end };
    Ok(spans.into_iter().filter(|span| span.end > span.start).map(to_span).collect())
}
