//! Reads the events of a streamed answer into columns. The columns are stored in a [`Progress`] while they
//! grow.
//!
//! Each event has new tokens of one or several samples, and events of different samples are interleaved. The
//! reader of whole answers first reads an event into separate columns. When the event is complete and has
//! passed its checks, its tokens are added to the progress. The tokens are therefore stored once, and a lost
//! connection leaves the tokens up to the last complete event.
//!
//! # Invariants
//! - [`StreamReader::finish`] returns what [`AnswerReader`](super::answer::AnswerReader) returns for the same
//!   answer in one piece.
//! - Besides the tokens, a stream takes memory only for the columns of one event and a few bytes of state.
//! - No sample has more than the requested number of tokens, and no sample continues after its end.
//! - The texts of a sample's events begin in the order of the events, if the server says where they begin.
//!
//! # Deliberately absent
//! A sample that has not ended has no versions, because engines report them only with its last tokens. Two events of
//! `/inference/v1/generate` that are swapped are noticed only if one of them is the last of its sample: the others have
//! nothing that tells their order.

use super::answer::CheckedAnswer;
use super::choice::{AnswerError, Choice, Ending, Expected};
use super::columns::Columns;
use super::events::{EventReader, EventSink};
use super::scan::Scanner;
use crate::soundness::spans_cover;
use crate::{PartialOutput, Progress, SampleOutput};

/// The data of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// Reads one streamed answer as its bytes arrive.
#[derive(Debug)]
pub(super) struct StreamReader {
    events: EventReader,
    samples: Samples,
}

impl StreamReader {
    /// A reader for the answer to one request. Tokens that have arrived are in `progress`.
    pub(super) fn new(expected: Expected, progress: Progress) -> Self {
        let n = expected.n as usize;
        progress.leave(vec![PartialOutput::default(); n]);
        let samples = Samples {
            n: expected.n,
            max_tokens: expected.max_tokens,
            event: Event::Empty,
            scanner: Scanner::new(),
            columns: Columns::of_events(expected),
            progress,
            heads: vec![Head::default(); n],
            done: false,
        };
        Self { events: EventReader::new(), samples }
    }

    /// Reads the next bytes of the body.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), AnswerError> {
        self.events.feed(chunk, &mut self.samples)
    }

    /// Returns the answer, after all bytes have been fed, and takes its tokens out of the progress. If the
    /// stream was cut short, the tokens stay in the progress.
    pub(super) fn finish(self) -> Result<CheckedAnswer, AnswerError> {
        self.samples.finish()
    }
}

/// The state of the current event.
#[derive(Debug, Clone, Copy)]
enum Event {
    Empty,
    Json,
    /// The given number of bytes of [`DONE`].
    Done(usize),
}

/// The data of a sample besides its tokens.
#[derive(Debug, Clone, Default)]
struct Head {
    /// Number of the sample's tokens in the progress.
    tokens: usize,
    /// Where the text of the last event began in the sample's text.
    text_offset: u32,
    ending: Option<Ending>,
}

impl Head {
    /// Checks that the text of an event does not begin before that of the sample's last event.
    fn check_order(&mut self, index: u32, text_offset: Option<u32>) -> Result<(), AnswerError> {
        let before = self.text_offset;
        self.text_offset = text_offset.unwrap_or(before);
        match self.text_offset {
            found if found < before => Err(AnswerError::Order { index, before, found }),
            _ => Ok(()),
        }
    }
}

/// The samples that have arrived so far, and their checks.
#[derive(Debug)]
struct Samples {
    n: u32,
    max_tokens: u32,
    event: Event,
    scanner: Scanner,
    columns: Columns,
    progress: Progress,
    heads: Vec<Head>,
    done: bool,
}

impl EventSink for Samples {
    type Error = AnswerError;

    fn data(&mut self, piece: &[u8]) -> Result<(), AnswerError> {
        if self.done {
            return Err(AnswerError::Shape { member: "stream", expected: "nothing after its end" });
        }
        let Some(first) = piece.first() else { return Ok(()) };
        if let Event::Empty = self.event {
            self.event = if *first == DONE[0] { Event::Done(0) } else { Event::Json };
            self.scanner = Scanner::new();
        }
        match &mut self.event {
            Event::Done(matched) => {
                let before = *matched;
                *matched += piece.len();
                if DONE.get(before..*matched) == Some(piece) { Ok(()) } else { Err(no_object()) }
            }
            Event::Json | Event::Empty => self.scanner.feed(piece, &mut self.columns),
        }
    }

    fn end_event(&mut self) -> Result<(), AnswerError> {
        match std::mem::replace(&mut self.event, Event::Empty) {
            // The lines of data were empty.
            Event::Empty => Ok(()),
            Event::Done(matched) if matched == DONE.len() => {
                self.done = true;
                Ok(())
            }
            Event::Done(_) => Err(no_object()),
            Event::Json => {
                self.scanner.finish()?;
                if let Some(words) = self.columns.take_failure() {
                    return Err(AnswerError::Engine { words });
                }
                self.columns.take_choices().into_iter().try_for_each(|choice| self.take(choice))
            }
        }
    }
}

fn no_object() -> AnswerError {
    AnswerError::Shape { member: "event", expected: "an object" }
}

impl Samples {
    /// Appends an event's part of a sample to the sample.
    fn take(&mut self, choice: Choice) -> Result<(), AnswerError> {
        let (n, max_tokens) = (self.n, self.max_tokens);
        // The index may be missing only if there is just one sample.
        let index = choice.index.or((n == 1).then_some(0)).unwrap_or(u32::MAX);
        let Some(head) = self.heads.get_mut(index as usize) else {
            return Err(AnswerError::Choices { expected: n, found: index as usize });
        };
        choice.check_named()?;
        head.check_order(index, choice.text_offset)?;
        let Choice { token_ids, logprobs, ending, spans, .. } = choice;
        let token_ids = token_ids.unwrap_or_default();
        let tokens = token_ids.len();
        if logprobs.len() != tokens {
            return Err(AnswerError::Logprobs { index, tokens, logprobs: logprobs.len() });
        }
        if head.ending.is_some() && (tokens > 0 || ending.is_some()) {
            return Err(AnswerError::Finish { index, reason: "more than one".to_owned() });
        }
        let finish_reason = match &ending {
            Some(Ending::Unknown(reason)) => {
                return Err(AnswerError::Finish { index, reason: reason.clone() });
            }
            Some(Ending::Finished(reason)) => Some(*reason),
            Some(Ending::Aborted) | None => None,
        };
        let tokens_before = head.tokens;
        head.tokens += tokens;
        let tokens_now = head.tokens;
        if tokens_now > max_tokens as usize {
            return Err(AnswerError::TooMany { member: "token_ids", max_tokens });
        }
        if finish_reason.is_some() && tokens_now == 0 {
            return Err(AnswerError::NoTokens { index });
        }
        let has_ended = ending.is_some();
        if has_ended {
            head.ending = ending;
            if !spans_cover(&spans, tokens_now) {
                return Err(AnswerError::Spans { index, tokens: tokens_now });
            }
        }
        self.progress.with(|parts| {
            // If a caller has taken tokens out of the progress, the answer can no longer become complete.
            let part = parts.get_mut(index as usize).filter(|part| part.response_ids.len() == tokens_before);
            let part = part.ok_or(AnswerError::Taken)?;
            part.response_ids.extend_from_slice(&token_ids);
            part.logprobs.extend_from_slice(&logprobs);
            if has_ended {
                part.version_spans = spans;
                part.finish_reason = finish_reason;
            }
            Ok(())
        })
    }

    fn finish(self) -> Result<CheckedAnswer, AnswerError> {
        let mut open = (0..).zip(&self.heads).filter(|(_, head)| head.ending.is_none());
        if let Some((index, _)) = open.next() {
            return Err(AnswerError::Cut { index });
        }
        let aborted = self.heads.iter().any(|head| head.ending == Some(Ending::Aborted));
        let parts = self.progress.take();
        let tokens = parts.iter().map(|part| part.response_ids.len());
        if !tokens.eq(self.heads.iter().map(|head| head.tokens)) {
            return Err(AnswerError::Taken);
        }
        if aborted {
            let tokens = self.heads.iter().map(|head| head.tokens as u64).sum();
            return Ok(CheckedAnswer::Aborted { tokens, parts });
        }
        let samples = (0..).zip(parts).map(|(index, mut part)| {
            // As in a whole answer, the columns keep no spare capacity.
            part.response_ids.shrink_to_fit();
            part.logprobs.shrink_to_fit();
            SampleOutput::finished(part).ok_or(AnswerError::NoTokens { index })
        });
        samples.collect::<Result<Vec<_>, _>>().map(CheckedAnswer::Samples)
    }
}

#[cfg(test)]
mod tests;
