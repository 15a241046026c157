//! From the bytes of an answer to flat columns, in one pass.
//!
//! [`AnswerReader`] is fed the body as it arrives and keeps token ids, log-probabilities, version spans and
//! finish reasons; the rest of the body (several times as many bytes) is walked over. It knows both dialects'
//! shapes, which agree wherever they share a name, and takes members in any order.
//!
//! # Invariants
//! - What [`AnswerReader::finish`] returns has exactly the asked number of samples in order of index, each with
//!   one finite log-probability per token, and spans that cover its tokens or none at all. Everything else is an
//!   [`AnswerError`] that says which check failed; the first one ends the reading, so a poisoned answer is not
//!   read to its end.
//! - No column outgrows the number of tokens that were asked for, whatever the server sends.
//!
//! # Deliberately absent
//! Streaming answers: a sample is of no use before its end, and 80 bytes per token arrive either way.

use std::sync::Arc;

use super::number::{parse_f32, parse_u32};
use super::scan::{Container, Interest, ScanError, Scanner, Sink, Word, unescape};
use crate::engine::{FinishReason, SampleOutput, VersionSpan};

/// What the engine writes in place of minus infinity and of NaN; no sampled token has it.
const POISON_LOGPROB: f32 = -9999.0;

/// What was asked for, as far as the answer is checked against it.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    /// The prompt that was sent; an echo of another one is an error.
    pub(super) prompt_ids: Arc<[u32]>,
    /// Number of samples.
    pub(super) n: u32,
    /// Most tokens of a sample.
    pub(super) max_tokens: u32,
    /// What stands for a sample.
    pub(super) content: Content,
}

/// What stands for a sample in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Token ids with log-probabilities.
    Tokens,
    /// Text alone.
    Text,
}

/// A whole answer that passed its checks.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// [`Content::Tokens`].
    Samples(Vec<SampleOutput>),
    /// [`Content::Text`]: text and why it ended.
    Texts(Vec<(String, FinishReason)>),
    /// The engine ended at least one of the samples early; how many tokens there were.
    Aborted {
        /// Over all samples.
        tokens: u64,
    },
}

/// Which check an answer failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    /// Not JSON, or not to its end.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A member of another type or range than the protocol has.
    #[error("member={member} holds something else than {expected}")]
    Shape { member: &'static str, expected: &'static str },
    /// Wrong number of samples, or their indexes are not those from 0 on.
    #[error("expected choices={expected} with the indexes from 0 on, found={found}")]
    Choices { expected: u32, found: usize },
    /// The server does not return token ids.
    #[error("choice={index} has no token ids")]
    NoTokens { index: u32 },
    /// More than `max_tokens`.
    #[error("more values in member={member} than tokens asked for, max_tokens={max_tokens}")]
    TooMany { member: &'static str, max_tokens: u32 },
    /// A log-probability for each token, or the sample is useless.
    #[error("choice={index} has logprobs={logprobs} for tokens={tokens}")]
    Logprobs { index: u32, tokens: usize, logprobs: usize },
    /// NaN on the engine, in one of the forms it takes.
    #[error("poisoned logprob at token={token}: {form}")]
    Poisoned { token: usize, form: &'static str },
    /// The echo is not what was sent.
    #[error("the echoed prompt differs from the one sent at token={position}")]
    Prompt { position: usize },
    /// A finish reason nobody knows, or none.
    #[error("choice={index} ended with finish_reason={reason:?}")]
    Finish { index: u32, reason: String },
    /// Spans that overlap, leave gaps or end elsewhere than the tokens.
    #[error("choice={index} has weight versions that do not cover its tokens={tokens}")]
    Spans { index: u32, tokens: usize },
}

/// Where in the answer the scanner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Choices,
    Choice,
    TokenIds,
    PromptIds,
    Logprobs,
    TokenLogprobs,
    Content,
    ContentToken,
    Versions,
    Version,
}

/// The member whose value comes next, of those that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    /// The document itself, or an element of an array.
    Element,
    Choices,
    PromptTokenIds,
    Index,
    FinishReason,
    Text,
    TokenIds,
    Logprobs,
    WeightVersions,
    TokenLogprobs,
    Content,
    Logprob,
    Rank,
    Version,
    Start,
    End,
}

impl Member {
    fn name(self) -> &'static str {
        match self {
            Self::Element => "element",
            Self::Choices => "choices",
            Self::PromptTokenIds => "prompt_token_ids",
            Self::Index => "index",
            Self::FinishReason => "finish_reason",
            Self::Text => "text",
            Self::TokenIds => "token_ids",
            Self::Logprobs => "logprobs",
            Self::WeightVersions => "weight_versions",
            Self::TokenLogprobs => "token_logprobs",
            Self::Content => "content",
            Self::Logprob => "logprob",
            Self::Rank => "rank",
            Self::Version => "version",
            Self::Start => "start",
            Self::End => "end",
        }
    }
}

/// How the engine says a sample ended; `abort` never leaves this module as a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ending {
    Finished(FinishReason),
    Aborted,
    Unknown(String),
}

/// A choice as far as it has been read.
#[derive(Debug, Default)]
struct Choice {
    index: Option<u32>,
    token_ids: Option<Vec<u32>>,
    logprobs: Vec<f32>,
    text: Option<String>,
    ending: Option<Ending>,
    spans: Vec<VersionSpan>,
}

/// A member of `weight_versions` as far as it has been read.
#[derive(Debug, Default)]
struct PartialSpan {
    version: Option<Arc<str>>,
    start: Option<u32>,
    end: Option<u32>,
}

/// Reads one answer. See the module.
#[derive(Debug)]
pub(super) struct AnswerReader {
    scanner: Scanner,
    columns: Columns,
}

impl AnswerReader {
    /// For the answer to one request.
    pub(super) fn new(expected: Expected) -> Self {
        Self { scanner: Scanner::new(), columns: Columns::new(expected) }
    }

    /// Reads the next bytes of the body.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), AnswerError> {
        self.scanner.feed(chunk, &mut self.columns)
    }

    /// The answer, after all bytes have been fed.
    pub(super) fn finish(self) -> Result<Answer, AnswerError> {
        self.scanner.finish()?;
        self.columns.finish()
    }
}

/// The scanner's sink.
#[derive(Debug)]
struct Columns {
    expected: Expected,
    places: Vec<Place>,
    member: Member,
    choices: Vec<Choice>,
    span: PartialSpan,
    /// Number of echoed prompt tokens that agreed so far.
    prompt_agreed: usize,
}

impl Columns {
    fn new(expected: Expected) -> Self {
        Self {
            expected,
            places: Vec::with_capacity(8),
            member: Member::Element,
            choices: Vec::new(),
            span: PartialSpan::default(),
            prompt_agreed: 0,
        }
    }

    fn place(&self) -> Option<Place> {
        self.places.last().copied()
    }

    /// The choice that is being read. There is one wherever this is called: the places make it so.
    fn choice(&mut self) -> Result<&mut Choice, AnswerError> {
        self.choices.last_mut().ok_or(AnswerError::Shape { member: "choices", expected: "a list of objects" })
    }

    fn shape(&self, expected: &'static str) -> AnswerError {
        let member = match self.place() {
            Some(Place::TokenIds) => "token_ids",
            Some(Place::PromptIds) => "prompt_token_ids",
            Some(Place::TokenLogprobs) => "token_logprobs",
            _ => self.member.name(),
        };
        AnswerError::Shape { member, expected }
    }

    fn begin_choice(&mut self) -> Result<(), AnswerError> {
        if self.choices.len() >= self.expected.n as usize {
            return Err(AnswerError::Choices { expected: self.expected.n, found: self.choices.len() + 1 });
        }
        self.choices.push(Choice::default());
        Ok(())
    }

    fn push_token(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let max_tokens = self.expected.max_tokens;
        let Some(token) = parse_u32(raw) else { return Err(self.shape("a token id")) };
        let token_ids = self.choice()?.token_ids.get_or_insert_default();
        if token_ids.len() >= max_tokens as usize {
            return Err(AnswerError::TooMany { member: "token_ids", max_tokens });
        }
        token_ids.push(token);
        Ok(())
    }

    fn push_logprob(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let max_tokens = self.expected.max_tokens;
        let Some(logprob) = parse_f32(raw) else { return Err(self.shape("a number")) };
        let logprobs = &mut self.choice()?.logprobs;
        if logprobs.len() >= max_tokens as usize {
            return Err(AnswerError::TooMany { member: "logprobs", max_tokens });
        }
        if logprob == POISON_LOGPROB || !logprob.is_finite() {
            return Err(AnswerError::Poisoned {
                token: logprobs.len(),
                form: "not a finite number on the engine",
            });
        }
        logprobs.push(logprob);
        Ok(())
    }

    fn agree_prompt(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let Some(token) = parse_u32(raw) else { return Err(self.shape("a token id")) };
        let position = self.prompt_agreed;
        if self.expected.prompt_ids.get(position) != Some(&token) {
            return Err(AnswerError::Prompt { position });
        }
        self.prompt_agreed += 1;
        Ok(())
    }

    fn end_span(&mut self) -> Result<(), AnswerError> {
        let PartialSpan { version: Some(version), start: Some(start), end: Some(end) } =
            std::mem::take(&mut self.span)
        else {
            return Err(AnswerError::Shape { member: "weight_versions", expected: "version, start and end" });
        };
        let max_tokens = self.expected.max_tokens;
        let choice = self.choice()?;
        if choice.spans.len() >= max_tokens as usize {
            return Err(AnswerError::TooMany { member: "weight_versions", max_tokens });
        }
        choice.spans.push(VersionSpan { version, start, end });
        Ok(())
    }

    fn finish(mut self) -> Result<Answer, AnswerError> {
        let n = self.expected.n;
        let found = self.choices.len();
        // Without an index (a plain server may leave it out) the order of arrival counts.
        for (position, choice) in (0..).zip(&mut self.choices) {
            choice.index.get_or_insert(position);
        }
        self.choices.sort_by_key(|choice| choice.index);
        let in_order = (0..).zip(&self.choices).all(|(position, choice)| choice.index == Some(position));
        if found != n as usize || !in_order {
            return Err(AnswerError::Choices { expected: n, found });
        }
        if self.choices.iter().any(|choice| choice.ending == Some(Ending::Aborted)) {
            let tokens = self.choices.iter().filter_map(|choice| choice.token_ids.as_ref());
            return Ok(Answer::Aborted { tokens: tokens.map(|ids| ids.len() as u64).sum() });
        }
        let choices = (0..).zip(self.choices);
        match self.expected.content {
            Content::Tokens => choices
                .map(|(index, choice)| choice.into_sample(index))
                .collect::<Result<_, _>>()
                .map(Answer::Samples),
            Content::Text => choices
                .map(|(index, choice)| choice.into_text(index))
                .collect::<Result<_, _>>()
                .map(Answer::Texts),
        }
    }
}

impl Choice {
    fn finish_reason(&mut self, index: u32) -> Result<FinishReason, AnswerError> {
        match self.ending.take() {
            Some(Ending::Finished(reason)) => Ok(reason),
            Some(Ending::Aborted) => Err(AnswerError::Finish { index, reason: "abort".to_owned() }),
            Some(Ending::Unknown(reason)) => Err(AnswerError::Finish { index, reason }),
            None => Err(AnswerError::Finish { index, reason: String::new() }),
        }
    }

    fn into_sample(mut self, index: u32) -> Result<SampleOutput, AnswerError> {
        let finish_reason = self.finish_reason(index)?;
        let Some(mut response_ids) = self.token_ids.filter(|ids| !ids.is_empty()) else {
            return Err(AnswerError::NoTokens { index });
        };
        let tokens = response_ids.len();
        if self.logprobs.len() != tokens {
            return Err(AnswerError::Logprobs { index, tokens, logprobs: self.logprobs.len() });
        }
        if !covers(&self.spans, tokens) {
            return Err(AnswerError::Spans { index, tokens });
        }
        // A finished sample waits for its group: it holds its columns and no spare room.
        response_ids.shrink_to_fit();
        self.logprobs.shrink_to_fit();
        self.spans.shrink_to_fit();
        Ok(SampleOutput { response_ids, logprobs: self.logprobs, finish_reason, version_spans: self.spans })
    }

    fn into_text(mut self, index: u32) -> Result<(String, FinishReason), AnswerError> {
        let finish_reason = self.finish_reason(index)?;
        let text = self.text.ok_or(AnswerError::Shape { member: "text", expected: "a string" })?;
        Ok((text, finish_reason))
    }
}

/// Whether the spans cover `tokens` tokens without gap or overlap; no spans at all is fine too.
fn covers(spans: &[VersionSpan], tokens: usize) -> bool {
    let mut covered = 0;
    for span in spans {
        if span.start != covered || span.end <= span.start {
            return false;
        }
        covered = span.end;
    }
    spans.is_empty() || covered as usize == tokens
}

impl Sink for Columns {
    type Error = AnswerError;

    fn name(&mut self, raw: &[u8]) -> Result<Interest, AnswerError> {
        let decoded;
        let name = if raw.contains(&b'\\') {
            decoded = unescape(raw).unwrap_or_default();
            decoded.as_bytes()
        } else {
            raw
        };
        let Some(place) = self.place() else { return Ok(Interest::Skip) };
        let wants_text = self.expected.content == Content::Text;
        self.member = match (place, name) {
            (Place::Root, b"choices") => Member::Choices,
            (Place::Root | Place::Choice, b"prompt_token_ids") => Member::PromptTokenIds,
            (Place::Choice, b"index") => Member::Index,
            (Place::Choice, b"finish_reason") => Member::FinishReason,
            (Place::Choice, b"text") if wants_text => Member::Text,
            (Place::Choice, b"token_ids") => Member::TokenIds,
            (Place::Choice, b"logprobs") if !wants_text => Member::Logprobs,
            (Place::Choice, b"weight_versions") => Member::WeightVersions,
            (Place::Logprobs, b"token_logprobs") => Member::TokenLogprobs,
            (Place::Logprobs, b"content") => Member::Content,
            (Place::ContentToken, b"logprob") => Member::Logprob,
            (Place::ContentToken, b"rank") => Member::Rank,
            (Place::Version, b"version") => Member::Version,
            (Place::Version, b"start") => Member::Start,
            (Place::Version, b"end") => Member::End,
            _ => return Ok(Interest::Skip),
        };
        Ok(Interest::Read)
    }

    fn begin(&mut self, container: Container) -> Result<(), AnswerError> {
        let place = match (self.place(), self.member, container) {
            (None, _, Container::Object) => Place::Root,
            (Some(Place::Root), Member::Choices, Container::Array) => {
                // A name that comes twice: the last one counts, as everywhere in this reader.
                self.choices.clear();
                Place::Choices
            }
            (Some(Place::Root | Place::Choice), Member::PromptTokenIds, Container::Array) => {
                self.prompt_agreed = 0;
                Place::PromptIds
            }
            (Some(Place::Choices), _, Container::Object) => {
                self.begin_choice()?;
                Place::Choice
            }
            (Some(Place::Choice), Member::TokenIds, Container::Array) => {
                self.choice()?.token_ids = Some(Vec::new());
                Place::TokenIds
            }
            (Some(Place::Choice), Member::Logprobs, Container::Object) => Place::Logprobs,
            (Some(Place::Choice), Member::WeightVersions, Container::Array) => {
                self.choice()?.spans.clear();
                Place::Versions
            }
            (Some(Place::Logprobs), Member::TokenLogprobs, Container::Array) => {
                self.choice()?.logprobs.clear();
                Place::TokenLogprobs
            }
            (Some(Place::Logprobs), Member::Content, Container::Array) => {
                self.choice()?.logprobs.clear();
                Place::Content
            }
            (Some(Place::Content), _, Container::Object) => Place::ContentToken,
            (Some(Place::Versions), _, Container::Object) => Place::Version,
            (None, ..) => return Err(AnswerError::Shape { member: "answer", expected: "an object" }),
            (Some(_), _, Container::Object) => return Err(self.shape("what the protocol has, but an object")),
            (Some(_), _, Container::Array) => return Err(self.shape("what the protocol has, but a list")),
        };
        self.places.push(place);
        self.member = Member::Element;
        Ok(())
    }

    fn end(&mut self) -> Result<(), AnswerError> {
        match self.places.pop() {
            Some(Place::PromptIds) if self.prompt_agreed != self.expected.prompt_ids.len() => {
                Err(AnswerError::Prompt { position: self.prompt_agreed })
            }
            Some(Place::Version) => self.end_span(),
            _ => Ok(()),
        }
    }

    fn string(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let Some(text) = unescape(raw) else { return Err(self.shape("a string of valid unicode")) };
        match (self.place(), self.member) {
            (Some(Place::Choice), Member::FinishReason) => {
                self.choice()?.ending = Some(match text.as_str() {
                    "stop" => Ending::Finished(FinishReason::Stop),
                    "length" => Ending::Finished(FinishReason::Length),
                    "abort" => Ending::Aborted,
                    _ => Ending::Unknown(text),
                });
            }
            (Some(Place::Choice), Member::Text) => self.choice()?.text = Some(text),
            (Some(Place::Version), Member::Version) => self.span.version = Some(text.into()),
            _ => return Err(self.shape("what the protocol has, but a string")),
        }
        Ok(())
    }

    fn number(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        match (self.place(), self.member) {
            (Some(Place::TokenIds), _) => self.push_token(raw),
            (Some(Place::TokenLogprobs), _) | (Some(Place::ContentToken), Member::Logprob) => {
                self.push_logprob(raw)
            }
            (Some(Place::PromptIds), _) => self.agree_prompt(raw),
            (Some(Place::ContentToken), Member::Rank) => Ok(()),
            (Some(Place::Choice), Member::Index) => {
                let index = parse_u32(raw).ok_or_else(|| self.shape("an index"))?;
                self.choice()?.index = Some(index);
                Ok(())
            }
            (Some(Place::Version), Member::Start | Member::End) => {
                let position = parse_u32(raw).ok_or_else(|| self.shape("a position"))?;
                match self.member {
                    Member::Start => self.span.start = Some(position),
                    _ => self.span.end = Some(position),
                }
                Ok(())
            }
            _ => Err(self.shape("what the protocol has, but a number")),
        }
    }

    fn word(&mut self, word: Word) -> Result<(), AnswerError> {
        let place = self.place();
        if word != Word::Null {
            return Err(self.shape("what the protocol has, but a boolean"));
        }
        match (place, self.member) {
            (Some(Place::ContentToken), Member::Rank | Member::Logprob) => {
                let token = self.choice()?.logprobs.len();
                Err(AnswerError::Poisoned { token, form: "no rank, or no value" })
            }
            (Some(Place::TokenLogprobs), _) => {
                let token = self.choice()?.logprobs.len();
                Err(AnswerError::Poisoned { token, form: "no value" })
            }
            // Absent is said by null; whether it may be is judged at the end.
            (Some(Place::Root | Place::Choice | Place::Logprobs), member) if member != Member::Choices => {
                Ok(())
            }
            _ => Err(self.shape("what the protocol has, but null")),
        }
    }
}
