//! From the bytes of an answer to flat columns, in one pass.
//!
//! [`AnswerReader`] is fed the body as it arrives. It keeps token ids, log-probabilities, version spans and
//! finish reasons, and skips the rest of the body, which has several times as many bytes. It knows the shapes
//! of both dialects, which agree wherever they share a name, and takes members in any order.
//!
//! # Invariants
//! - An answer that [`AnswerReader::finish`] returns as samples has exactly as many as were asked for, in
//!   order of their index. Each has one finite log-probability per token, and spans that cover its tokens or
//!   none at all. Any other answer is an [`AnswerError`] that says which check failed. The first error ends
//!   the reading, so a poisoned answer is not read to its end.
//! - No column outgrows the number of tokens that were asked for, whatever the server sends.
//! - The parts of an answer that the engine ended early have passed these checks too, or there are no parts.

use super::choice::{AnswerError, Choice, Content, Ending, Expected};
use super::columns::Columns;
use super::scan::Scanner;
use crate::{FinishReason, PartialOutput, SampleOutput};

/// A whole answer that passed its checks.
#[derive(Debug, PartialEq)]
pub(super) enum CheckedAnswer {
    /// The answer for [`Content::Tokens`].
    Samples(Vec<SampleOutput>),
    /// The answer for [`Content::Text`]: each text, and why it ended.
    Texts(Vec<(String, FinishReason)>),
    /// The engine ended at least one of the samples early.
    Aborted {
        /// The number of tokens over all samples.
        tokens: u64,
        /// The part of each sample that was generated; empty if a check failed.
        parts: Vec<PartialOutput>,
    },
}

/// Reads the answer to one request as its bytes arrive.
#[derive(Debug)]
pub(super) struct AnswerReader {
    scanner: Scanner,
    columns: Columns,
}

impl AnswerReader {
    /// A reader for the answer to one request.
    pub(super) fn new(expected: Expected) -> Self {
        Self { scanner: Scanner::new(), columns: Columns::new(expected) }
    }

    /// Reads the next bytes of the body.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), AnswerError> {
        self.scanner.feed(chunk, &mut self.columns)
    }

    /// The answer, after all bytes have been fed.
    pub(super) fn finish(self) -> Result<CheckedAnswer, AnswerError> {
        self.scanner.finish()?;
        let (expected, choices, failure) = self.columns.into_parts();
        if let Some(words) = failure {
            return Err(AnswerError::Engine { words });
        }
        conclude(&expected, choices)
    }
}

/// Checks what was read against what was asked for.
fn conclude(expected: &Expected, mut choices: Vec<Choice>) -> Result<CheckedAnswer, AnswerError> {
    let n = expected.n;
    let found = choices.len();
    // A plain server may leave out the index; then the order of arrival counts.
    for (position, choice) in (0..).zip(&mut choices) {
        choice.index.get_or_insert(position);
    }
    choices.sort_by_key(|choice| choice.index);
    let in_order = (0..).zip(&choices).all(|(position, choice)| choice.index == Some(position));
    if found != n as usize || !in_order {
        return Err(AnswerError::Choices { expected: n, found });
    }
    if choices.iter().any(|choice| choice.ending == Some(Ending::Aborted)) {
        let tokens = choices.iter().filter_map(|choice| choice.token_ids.as_ref());
        let tokens = tokens.map(|ids| ids.len() as u64).sum();
        let parts = (0..).zip(choices).map(|(index, choice)| choice.into_part(index));
        return Ok(CheckedAnswer::Aborted {
            tokens,
            parts: parts.collect::<Result<_, _>>().unwrap_or_default(),
        });
    }
    let in_turn = (0..).zip(choices);
    match expected.content {
        Content::Tokens => in_turn
            .map(|(index, choice)| choice.into_sample(index))
            .collect::<Result<_, _>>()
            .map(CheckedAnswer::Samples),
        Content::Text => in_turn
            .map(|(index, choice)| choice.into_text(index))
            .collect::<Result<_, _>>()
            .map(CheckedAnswer::Texts),
    }
}

#[cfg(test)]
mod tests;
