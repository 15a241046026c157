//! Reads the four long arrays of an answer in runs: the ids of the prompt and of the response, and the
//! log-probabilities in the forms of both dialects.
//!
//! # Invariants
//! - A run ends before the first value that fails a check or has an unusual form. The values and the errors
//!   are therefore the same as without runs.

use super::{AnswerNode, Columns, is_poisoned};
use crate::http::content;
use crate::http::number::{leading_f32, leading_u32};

impl Columns {
    /// Reads elements of the array `place` from the beginning of `rest`. Returns the number of bytes that
    /// were read.
    pub(super) fn run_in(&mut self, place: Option<AnswerNode>, rest: &[u8]) -> usize {
        match place {
            Some(AnswerNode::PromptIds) => self.run_of_prompt(rest),
            Some(AnswerNode::TokenIds) => self.run_of_tokens(rest),
            Some(AnswerNode::TokenLogprobs) => {
                self.run_of_logprobs(rest, |bytes, at| element(bytes, at, leading_f32))
            }
            Some(AnswerNode::Content) => self.run_of_logprobs(rest, content::token),
            _ => 0,
        }
    }

    /// Compares ids of the echoed prompt up to the first id that differs. Returns the number of bytes that
    /// the equal ids take in `rest`.
    fn run_of_prompt(&mut self, rest: &[u8]) -> usize {
        let mut taken = 0;
        while let Some((token, end)) = element(rest, taken, leading_u32)
            && self.expected.prompt_ids.get(self.prompt_agreed) == Some(&token)
        {
            self.prompt_agreed += 1;
            taken = end;
        }
        taken
    }

    /// Appends token ids, up to the requested number of tokens. Returns the number of bytes that they take in
    /// `rest`.
    fn run_of_tokens(&mut self, rest: &[u8]) -> usize {
        let Some(choice) = self.choices.last_mut() else { return 0 };
        let Some(token_ids) = &mut choice.token_ids else { return 0 };
        let mut taken = 0;
        while token_ids.len() < self.expected.max_tokens as usize
            && let Some((token, end)) = element(rest, taken, leading_u32)
        {
            token_ids.push(token);
            taken = end;
        }
        taken
    }

    /// Appends log-probabilities up to the first poisoned one, and up to the requested number of tokens.
    /// `read` reads an element with the comma that follows it. Returns the number of bytes that the elements
    /// take in `rest`.
    fn run_of_logprobs(&mut self, rest: &[u8], read: impl Fn(&[u8], usize) -> Option<(f32, usize)>) -> usize {
        let Some(choice) = self.choices.last_mut() else { return 0 };
        let mut taken = 0;
        while choice.logprobs.len() < self.expected.max_tokens as usize
            && let Some((logprob, end)) = read(rest, taken)
            && !is_poisoned(logprob)
        {
            choice.logprobs.push(logprob);
            taken = end;
        }
        taken
    }
}

/// Reads the element of an array that begins at `at`. Returns its value, and the end of the comma after it.
#[inline]
fn element<T>(
    bytes: &[u8],
    at: usize,
    read: impl Fn(&[u8], usize) -> Option<(T, usize)>,
) -> Option<(T, usize)> {
    let (value, end) = read(bytes, at)?;
    (bytes.get(end) == Some(&b',')).then_some((value, end + 1))
}
