//! Reads the four long arrays of an answer in runs: the ids of the prompt and of the response, and the
//! log-probabilities in the forms of both dialects.
//!
//! # Invariants
//! - A run ends before the first value that fails a check or has an unusual form. The values and the errors
//!   are therefore the same as without runs.

use fearless_simd::{Level, Simd, dispatch};

use super::{AnswerNode, Choice, Columns, is_poisoned};
use crate::http::content;
use crate::http::decimals::{decimals, leading_f32};
use crate::http::number::{integers, leading_u32};

impl Columns {
    /// Reads elements of the array `place` from the beginning of `rest`. Returns the number of bytes that
    /// were read.
    pub(super) fn run_in(&mut self, place: Option<AnswerNode>, rest: &[u8]) -> usize {
        let level = Level::new();
        match place {
            Some(AnswerNode::PromptIds) => dispatch!(level, simd => self.run_of_prompt(simd, rest)),
            Some(AnswerNode::TokenIds) => dispatch!(level, simd => self.run_of_tokens(simd, rest)),
            Some(AnswerNode::TokenLogprobs) => dispatch!(level, simd => self.run_of_logprobs(simd, rest)),
            Some(AnswerNode::Content) => dispatch!(level, simd => self.run_of_content(simd, rest)),
            _ => 0,
        }
    }

    /// Compares ids of the echoed prompt up to the first id that differs. Returns the number of bytes that
    /// the equal ids take in `rest`.
    #[inline(always)]
    fn run_of_prompt<S: Simd>(&mut self, simd: S, rest: &[u8]) -> usize {
        let (prompt_ids, agreed) = (&self.expected.prompt_ids, &mut self.prompt_agreed);
        ids(simd, rest, |found| {
            let expected = prompt_ids.get(*agreed..).unwrap_or_default();
            let same = found.iter().zip(expected).take_while(|(id, expected)| id == expected).count();
            *agreed += same;
            same
        })
    }

    /// Appends token ids of the vocabulary, up to the requested number of tokens. Returns the number of bytes that they
    /// take in `rest`.
    #[inline(always)]
    fn run_of_tokens<S: Simd>(&mut self, simd: S, rest: &[u8]) -> usize {
        let Some(choice) = self.choices.last_mut() else { return 0 };
        let Some(token_ids) = &mut choice.token_ids else { return 0 };
        let (max_tokens, vocab_size) = (self.expected.max_tokens as usize, self.expected.vocab_size);
        ids(simd, rest, |found| {
            let room = max_tokens.saturating_sub(token_ids.len());
            let fitting = &found[..room.min(found.len())];
            let wanted = leading(fitting, |id| id < vocab_size);
            token_ids.extend_from_slice(wanted);
            wanted.len()
        })
    }

    /// Appends the log-probabilities of `token_logprobs`. Returns the number of bytes that they take in `rest`.
    #[inline(always)]
    fn run_of_logprobs<S: Simd>(&mut self, simd: S, rest: &[u8]) -> usize {
        let Some(mut column) = self.logprobs() else { return 0 };
        let taken = decimals(simd, rest, |logprobs| column.append_all(logprobs));
        elements(
            rest,
            taken,
            #[inline(always)]
            |bytes, at| {
                number(
                    bytes,
                    at,
                    #[inline(always)]
                    |bytes, at| leading_f32(simd, bytes, at),
                )
            },
            #[inline(always)]
            |logprob| column.append(logprob),
        )
    }

    /// Appends the log-probabilities of the tokens of `content`. Returns the number of bytes that the tokens take in
    /// `rest`.
    #[inline(always)]
    fn run_of_content<S: Simd>(&mut self, simd: S, rest: &[u8]) -> usize {
        let Some(mut column) = self.logprobs() else { return 0 };
        elements(
            rest,
            0,
            #[inline(always)]
            |bytes, at| content::token(simd, bytes, at),
            #[inline(always)]
            |(named, logprob)| column.append_named(named, logprob),
        )
    }

    fn logprobs(&mut self) -> Option<LogprobColumn<'_>> {
        let max_tokens = self.expected.max_tokens as usize;
        self.choices.last_mut().map(|choice| LogprobColumn { choice, max_tokens })
    }
}

/// The log-probabilities of a choice.
struct LogprobColumn<'a> {
    choice: &'a mut Choice,
    max_tokens: usize,
}

impl LogprobColumn<'_> {
    /// Appends a log-probability, unless it is poisoned or beyond the requested number of tokens. Returns whether it
    /// was appended.
    #[inline(always)]
    fn append(&mut self, logprob: f32) -> bool {
        let values = &mut self.choice.logprobs;
        let is_wanted = values.len() < self.max_tokens && !is_poisoned(logprob);
        if is_wanted {
            values.push(logprob);
        }
        is_wanted
    }

    /// Appends log-probabilities up to the first one that [`Self::append`] does not append. Returns how many.
    #[inline(always)]
    fn append_all(&mut self, logprobs: &[f32]) -> usize {
        let values = &mut self.choice.logprobs;
        let room = self.max_tokens.saturating_sub(values.len());
        let fitting = &logprobs[..room.min(logprobs.len())];
        let wanted = leading(fitting, |logprob| !is_poisoned(logprob));
        values.extend_from_slice(wanted);
        wanted.len()
    }

    /// Appends the log-probability of the token `named`, if this is the sample's token at its position.
    #[inline(always)]
    fn append_named(&mut self, named: u32, logprob: f32) -> bool {
        let token = self.choice.logprobs.len();
        self.choice.agrees(token, named) && self.append(logprob)
    }
}

/// The values before the first one that is not `wanted`.
#[inline(always)]
fn leading<T: Copy>(values: &[T], wanted: impl Fn(T) -> bool) -> &[T] {
    // Almost always all are wanted, and vector instructions find this out for several at a time.
    let all = values.iter().fold(true, |all, value| all & wanted(*value));
    let count = if all { values.len() } else { values.iter().take_while(|value| wanted(**value)).count() };
    values.get(..count).unwrap_or_default()
}

/// Reads ids. Gives several of them at a time to `take`, which returns how many it accepts. Returns the number of bytes
/// that the accepted ids take.
#[inline(always)]
fn ids<S: Simd>(simd: S, bytes: &[u8], mut take: impl FnMut(&[u32]) -> usize) -> usize {
    let taken = integers(simd, bytes, &mut take);
    // The other ids are near the end of the chunk.
    elements(
        bytes,
        taken,
        #[inline(always)]
        |bytes, at| number(bytes, at, leading_u32),
        #[inline(always)]
        |id| take(&[id]) == 1,
    )
}

/// Reads the elements from `taken` on by `read`, as far as `take` accepts them. Returns the end of the last one.
#[inline(always)]
fn elements<T>(
    bytes: &[u8],
    mut taken: usize,
    read: impl Fn(&[u8], usize) -> Option<(T, usize)>,
    mut take: impl FnMut(T) -> bool,
) -> usize {
    while let Some((value, end)) = read(bytes, taken)
        && take(value)
    {
        taken = end;
    }
    taken
}

/// Reads the number that begins at `at`, as an element of an array. Returns its value, and the end of the comma after
/// it.
#[inline(always)]
fn number<T>(
    bytes: &[u8],
    at: usize,
    read: impl Fn(&[u8], usize) -> Option<(T, usize)>,
) -> Option<(T, usize)> {
    let (value, end) = read(bytes, at)?;
    (bytes.get(end) == Some(&b',')).then_some((value, end + 1))
}
