//! Reads the bytes of an answer into flat columns, in one pass.
//!
//! [`AnswerReader`] is fed the body as it arrives. It keeps token ids, log-probabilities, version spans and
//! finish reasons. It skips the rest of the body, which is several times as long. It accepts the shapes of
//! both dialects, with members in any order. A name that occurs in both dialects has the same meaning in
//! both.
//!
//! # Invariants
//! - If [`AnswerReader::finish`] returns samples, their number is the requested one, and they are in order of
//!   their index. Each sample has one finite log-probability per token, which names no other token, and its
//!   spans cover its tokens or are absent. Any other answer is an [`AnswerError`] that names the failed check. The first error ends the
//!   reading, so a poisoned answer is not read to its end.
//! - No column has more values than the requested number of tokens, whatever the server sends.
//! - The partial samples of an answer that the engine ended early have also passed these checks. If a check
//!   fails, there are no partial samples.

use super::choice::{AnswerError, Choice, Content, Ending, Expected};
use super::columns::Columns;
use super::scan::Scanner;
use crate::{FinishReason, PartialOutput, SampleOutput};

/// A complete answer that passed its checks.
#[derive(Debug, PartialEq)]
pub(super) enum CheckedAnswer {
    /// The answer for [`Content::Tokens`].
    Samples(Vec<SampleOutput>),
    /// The answer for [`Content::Text`]: the text of each sample, and why it ended.
    Texts(Vec<(String, FinishReason)>),
    /// The engine ended at least one of the samples early.
    Aborted {
        /// The number of tokens over all samples.
        tokens: u64,
        /// The generated part of each sample; empty if a check failed.
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

/// Compares the choices with the request.
fn conclude(expected: &Expected, mut choices: Vec<Choice>) -> Result<CheckedAnswer, AnswerError> {
    let n = expected.n;
    let found = choices.len();
    // A plain server may omit the index. The order of arrival counts in this case.
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
