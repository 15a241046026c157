//! Stores each value of an answer in its column.
//!
//! `Columns` is the [`Sink`] of the answer's scanner. It accepts the shapes of both dialects, and follows the
//! scanner through them with a stack of [`AnswerNode`]s. It puts each value into the columns of the
//! [`Choice`] that contains it. The values of unknown names are skipped. If a name occurs twice, its last
//! value counts.

use std::sync::Arc;

use super::choice::{AnswerError, Choice, Content, Ending, Expected, is_of_another_request};
use super::number::{parse_f32, parse_u32};
use super::scan::{Container, Interest, Sink, Word};
use super::text::unescape;
use super::transport::REASON_CHARS_MAX;
use crate::soundness::is_poisoned;
use crate::{FinishReason, VersionSpan};

mod runs;

/// The object or array of the answer in which the scanner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerNode {
    Root,
    Choices,
    Choice,
    TokenIds,
    PromptIds,
    Logprobs,
    TextOffsets,
    TokenLogprobs,
    Content,
    ContentToken,
    Versions,
    Version,
    Failure,
}

/// What the next value of the answer is: a member of an object, or an element. Members with other names are
/// skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    /// The document itself, or an element of an array.
    Element,
    RequestId,
    Choices,
    PromptTokenIds,
    Index,
    FinishReason,
    Text,
    TokenIds,
    Logprobs,
    WeightVersions,
    TextOffset,
    TokenLogprobs,
    Content,
    TokenId,
    Logprob,
    Rank,
    Version,
    Start,
    End,
    Error,
    Message,
}

impl Member {
    fn name(self) -> &'static str {
        match self {
            Self::Element => "element",
            Self::RequestId => "request_id",
            Self::Choices => "choices",
            Self::PromptTokenIds => "prompt_token_ids",
            Self::Index => "index",
            Self::FinishReason => "finish_reason",
            Self::Text => "text",
            Self::TokenIds => "token_ids",
            Self::Logprobs => "logprobs",
            Self::WeightVersions => "weight_versions",
            Self::TextOffset => "text_offset",
            Self::TokenLogprobs => "token_logprobs",
            Self::Content => "content",
            Self::TokenId => "token_id",
            Self::Logprob => "logprob",
            Self::Rank => "rank",
            Self::Version => "version",
            Self::Start => "start",
            Self::End => "end",
            Self::Error => "error",
            Self::Message => "message",
        }
    }
}

/// The fields of the current element of `weight_versions` that have been read so far.
#[derive(Debug, Default)]
struct PartialSpan {
    version: Option<Arc<str>>,
    start: Option<u32>,
    end: Option<u32>,
}

/// The scanner's sink.
#[derive(Debug)]
pub(super) struct Columns {
    expected: Expected,
    /// Whether the columns are those of one event.
    of_event: bool,
    places: Vec<AnswerNode>,
    member: Member,
    choices: Vec<Choice>,
    span: PartialSpan,
    /// The position of the token whose element of `content` is read.
    content_token: usize,
    /// Number of echoed prompt tokens that have matched so far.
    prompt_agreed: usize,
    /// The engine's error message, if it sent a message instead of an answer.
    failure: Option<String>,
}

impl Columns {
    pub(super) fn new(expected: Expected) -> Self {
        Self {
            expected,
            of_event: false,
            places: Vec::with_capacity(8),
            member: Member::Element,
            choices: Vec::new(),
            span: PartialSpan::default(),
            content_token: 0,
            prompt_agreed: 0,
            failure: None,
        }
    }

    /// Columns for the events of a stream.
    pub(super) fn of_events(expected: Expected) -> Self {
        Self { of_event: true, ..Self::new(expected) }
    }

    /// The expectations, the choices in order of arrival, and the engine's error message if it failed.
    pub(super) fn into_parts(self) -> (Expected, Vec<Choice>, Option<String>) {
        (self.expected, self.choices, self.failure)
    }

    /// Takes out the choices of an event, so that the columns are ready for the next event.
    pub(super) fn take_choices(&mut self) -> Vec<Choice> {
        std::mem::take(&mut self.choices)
    }

    /// The engine's error message, if it failed.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn place(&self) -> Option<AnswerNode> {
        self.places.last().copied()
    }

    /// The choice that is being read. The stack of nodes ensures that it exists at every call.
    fn choice(&mut self) -> Result<&mut Choice, AnswerError> {
        self.choices.last_mut().ok_or(AnswerError::Shape { member: "choices", expected: "a list of objects" })
    }

    fn shape(&self, expected: &'static str) -> AnswerError {
        let member = match self.place() {
            // An element is named by its list. The last member was in another object.
            Some(AnswerNode::TokenIds) => "token_ids",
            Some(AnswerNode::PromptIds) => "prompt_token_ids",
            Some(AnswerNode::TextOffsets) => "text_offset",
            Some(AnswerNode::TokenLogprobs) => "token_logprobs",
            Some(AnswerNode::Choices) => "choices",
            Some(AnswerNode::Content) => "content",
            Some(AnswerNode::Versions) => "weight_versions",
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
        let Expected { max_tokens, vocab_size, .. } = self.expected;
        let Some(id) = parse_u32(raw) else { return Err(self.shape("a token id")) };
        let token_ids = self.choice()?.token_ids.get_or_insert_default();
        if token_ids.len() >= max_tokens as usize {
            return Err(AnswerError::TooMany { member: "token_ids", max_tokens });
        }
        if id >= vocab_size {
            return Err(AnswerError::Vocabulary { token: token_ids.len(), id, vocab_size });
        }
        token_ids.push(id);
        Ok(())
    }

    fn push_logprob(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let max_tokens = self.expected.max_tokens;
        let Some(logprob) = parse_f32(raw) else { return Err(self.shape("a number")) };
        let logprobs = &mut self.choice()?.logprobs;
        if logprobs.len() >= max_tokens as usize {
            return Err(AnswerError::TooMany { member: "logprobs", max_tokens });
        }
        if is_poisoned(logprob) {
            return Err(AnswerError::Poisoned {
                token: logprobs.len(),
                form: "not a finite number on the engine",
            });
        }
        logprobs.push(logprob);
        Ok(())
    }

    fn agree_token(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let Some(named) = parse_u32(raw) else { return Err(self.shape("a token id")) };
        let token = self.content_token;
        let choice = self.choice()?;
        if choice.agrees(token, named) { Ok(()) } else { Err(choice.other_token(token, named)) }
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
}

impl Sink for Columns {
    type Error = AnswerError;

    fn run(&mut self, rest: &[u8]) -> usize {
        self.run_in(self.place(), rest)
    }

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
            (AnswerNode::Root, b"request_id" | b"id") => Member::RequestId,
            (AnswerNode::Root, b"choices") => Member::Choices,
            (AnswerNode::Root, b"error") => Member::Error,
            (AnswerNode::Failure, b"message") => Member::Message,
            (AnswerNode::Root | AnswerNode::Choice, b"prompt_token_ids") => Member::PromptTokenIds,
            (AnswerNode::Choice, b"index") => Member::Index,
            (AnswerNode::Choice, b"finish_reason") => Member::FinishReason,
            (AnswerNode::Choice, b"text") if wants_text => Member::Text,
            (AnswerNode::Choice, b"token_ids") => Member::TokenIds,
            (AnswerNode::Choice, b"logprobs") if !wants_text => Member::Logprobs,
            (AnswerNode::Choice, b"weight_versions") => Member::WeightVersions,
            (AnswerNode::Logprobs, b"text_offset") if self.of_event => Member::TextOffset,
            (AnswerNode::Logprobs, b"token_logprobs") => Member::TokenLogprobs,
            (AnswerNode::Logprobs, b"content") => Member::Content,
            (AnswerNode::ContentToken, b"token_id") => Member::TokenId,
            (AnswerNode::ContentToken, b"logprob") => Member::Logprob,
            (AnswerNode::ContentToken, b"rank") => Member::Rank,
            (AnswerNode::Version, b"version") => Member::Version,
            (AnswerNode::Version, b"start") => Member::Start,
            (AnswerNode::Version, b"end") => Member::End,
            _ => return Ok(Interest::Skip),
        };
        Ok(Interest::Read)
    }

    fn begin(&mut self, container: Container) -> Result<(), AnswerError> {
        let place = match (self.place(), self.member, container) {
            (None, _, Container::Object) => AnswerNode::Root,
            (Some(AnswerNode::Root), Member::Choices, Container::Array) => {
                // If the name occurs twice, its last value counts, as everywhere in this reader.
                self.choices.clear();
                AnswerNode::Choices
            }
            (Some(AnswerNode::Root | AnswerNode::Choice), Member::PromptTokenIds, Container::Array) => {
                self.prompt_agreed = 0;
                AnswerNode::PromptIds
            }
            (Some(AnswerNode::Choices), _, Container::Object) => {
                self.begin_choice()?;
                AnswerNode::Choice
            }
            (Some(AnswerNode::Choice), Member::TokenIds, Container::Array) => {
                let choice = self.choice()?;
                // If the log-probabilities came first, the ids need the same capacity.
                choice.token_ids = Some(Vec::with_capacity(choice.logprobs.len()));
                AnswerNode::TokenIds
            }
            (Some(AnswerNode::Choice), Member::Logprobs, Container::Object) => AnswerNode::Logprobs,
            (Some(AnswerNode::Choice), Member::WeightVersions, Container::Array) => {
                self.choice()?.spans.clear();
                AnswerNode::Versions
            }
            (Some(AnswerNode::Logprobs), Member::TextOffset, Container::Array) => AnswerNode::TextOffsets,
            (Some(AnswerNode::Logprobs), Member::TokenLogprobs, Container::Array) => {
                self.choice()?.begin_logprobs();
                AnswerNode::TokenLogprobs
            }
            (Some(AnswerNode::Logprobs), Member::Content, Container::Array) => {
                self.choice()?.begin_logprobs();
                AnswerNode::Content
            }
            (Some(AnswerNode::Root), Member::Error, Container::Object) => {
                self.failure = Some("no error message".to_owned());
                AnswerNode::Failure
            }
            (Some(AnswerNode::Content), _, Container::Object) => {
                self.content_token = self.choice()?.logprobs.len();
                AnswerNode::ContentToken
            }
            (Some(AnswerNode::Versions), _, Container::Object) => AnswerNode::Version,
            (None, ..) => return Err(AnswerError::Shape { member: "answer", expected: "an object" }),
            (Some(_), _, Container::Object) => return Err(self.shape("another type, found an object")),
            (Some(_), _, Container::Array) => return Err(self.shape("another type, found a list")),
        };
        self.places.push(place);
        self.member = Member::Element;
        Ok(())
    }

    fn end(&mut self) -> Result<(), AnswerError> {
        match self.places.pop() {
            Some(AnswerNode::PromptIds) if self.prompt_agreed != self.expected.prompt_ids.len() => {
                Err(AnswerError::Prompt { position: self.prompt_agreed })
            }
            Some(AnswerNode::Version) => self.end_span(),
            _ => Ok(()),
        }
    }

    fn string(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        let Some(text) = unescape(raw) else { return Err(self.shape("a string of valid unicode")) };
        match (self.place(), self.member) {
            (Some(AnswerNode::Choice), Member::FinishReason) => {
                self.choice()?.ending = Some(match text.as_str() {
                    "stop" => Ending::Finished(FinishReason::Stop),
                    "length" => Ending::Finished(FinishReason::Length),
                    "abort" => Ending::Aborted,
                    _ => Ending::Unknown(text),
                });
            }
            (Some(AnswerNode::Root), Member::RequestId) => {
                if is_of_another_request(&text, &self.expected.request_id) {
                    let found = text.chars().take(REASON_CHARS_MAX).collect();
                    return Err(AnswerError::Request { found });
                }
            }
            (Some(AnswerNode::Choice), Member::Text) => self.choice()?.text = Some(text),
            (Some(AnswerNode::Version), Member::Version) => self.span.version = Some(text.into()),
            (Some(AnswerNode::Root), Member::Error) | (Some(AnswerNode::Failure), Member::Message) => {
                self.failure = Some(text.chars().take(REASON_CHARS_MAX).collect());
            }
            _ => return Err(self.shape("another type, found a string")),
        }
        Ok(())
    }

    fn number(&mut self, raw: &[u8]) -> Result<(), AnswerError> {
        match (self.place(), self.member) {
            (Some(AnswerNode::TokenIds), _) => self.push_token(raw),
            (Some(AnswerNode::TokenLogprobs), _) | (Some(AnswerNode::ContentToken), Member::Logprob) => {
                self.push_logprob(raw)
            }
            (Some(AnswerNode::PromptIds), _) => self.agree_prompt(raw),
            (Some(AnswerNode::TextOffsets), _) => {
                let choice = self.choice()?;
                // A server that does not know the offsets may send negative numbers.
                choice.text_offset = choice.text_offset.or_else(|| parse_u32(raw));
                Ok(())
            }
            (Some(AnswerNode::ContentToken), Member::TokenId) => self.agree_token(raw),
            // An id that is a number is one that the engine chose.
            (Some(AnswerNode::ContentToken), Member::Rank) | (Some(AnswerNode::Root), Member::RequestId) => {
                Ok(())
            }
            (Some(AnswerNode::Choice), Member::Index) => {
                let index = parse_u32(raw).ok_or_else(|| self.shape("an index"))?;
                self.choice()?.index = Some(index);
                Ok(())
            }
            (Some(AnswerNode::Version), Member::Start | Member::End) => {
                let position = parse_u32(raw).ok_or_else(|| self.shape("a position"))?;
                match self.member {
                    Member::Start => self.span.start = Some(position),
                    _ => self.span.end = Some(position),
                }
                Ok(())
            }
            _ => Err(self.shape("another type, found a number")),
        }
    }

    fn word(&mut self, word: Word) -> Result<(), AnswerError> {
        let place = self.place();
        if word != Word::Null {
            return Err(self.shape("another type, found a boolean"));
        }
        match (place, self.member) {
            (Some(AnswerNode::ContentToken), Member::Rank | Member::Logprob) => {
                let token = self.choice()?.logprobs.len();
                Err(AnswerError::Poisoned { token, form: "no rank, or no value" })
            }
            (Some(AnswerNode::TokenLogprobs), _) => {
                let token = self.choice()?.logprobs.len();
                Err(AnswerError::Poisoned { token, form: "no value" })
            }
            (Some(AnswerNode::ContentToken), Member::TokenId) | (Some(AnswerNode::TextOffsets), _) => Ok(()),
            // A null means that the value is absent. The checks at the end decide whether it may be absent.
            (
                Some(AnswerNode::Root | AnswerNode::Choice | AnswerNode::Logprobs | AnswerNode::Failure),
                member,
            ) if member != Member::Choices => Ok(()),
            _ => Err(self.shape("another type, found null")),
        }
    }
}
