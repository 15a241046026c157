//! The trait of the three dialects: how the tokens of a response are written as JSON.

use super::Face;
use super::json::put;
use super::params::Sampling;
use crate::request::{SimChoice, SimResponse};

/// A run of tokens of one choice.
pub(crate) struct Piece<'a> {
    /// The choice's index in the answer.
    pub(crate) index: u32,
    pub(crate) token_ids: &'a [u32],
    pub(crate) logprobs: &'a [f32],
    /// The choice, if these are its last tokens.
    pub(crate) finish: Option<&'a SimChoice>,
    pub(crate) stop: Option<&'a str>,
    /// Whether these are its first tokens.
    pub(crate) is_first: bool,
    /// Bytes of text before these tokens.
    pub(crate) text_offset: usize,
    /// Tokens up to the end of these.
    pub(crate) tokens_so_far: usize,
}

impl<'a> Piece<'a> {
    /// All tokens of a choice.
    pub(crate) fn whole(choice: &'a SimChoice) -> Self {
        Self {
            index: choice.index,
            token_ids: &choice.token_ids,
            logprobs: &choice.logprobs,
            finish: Some(choice),
            stop: None,
            is_first: true,
            text_offset: 0,
            tokens_so_far: choice.token_ids.len(),
        }
    }

    /// Writes the values of `finish_reason` and `stop_reason`, with the latter's key between them.
    pub(crate) fn put_finish(&self, buffer: &mut Vec<u8>) {
        match self.finish {
            None => put!(buffer, "null,\"stop_reason\":null"),
            Some(choice) => {
                put!(buffer, "\"{}\",\"stop_reason\":", choice.finish_reason.as_str());
                match (choice.stop_token_id, self.stop) {
                    (Some(token), _) => put!(buffer, "{token}"),
                    (None, Some(stop)) => super::json::put_string(buffer, stop),
                    (None, None) => put!(buffer, "null"),
                }
            }
        }
    }
}

/// Writes the answer to one request.
pub(crate) trait Dialect: Send {
    /// Returns the JSON of an answer in one piece.
    fn whole(&self, face: &Face, sampling: &Sampling, responses: &[SimResponse]) -> Vec<u8>;

    /// Whether a NaN among the log-probabilities makes an answer an error, as in vLLM's JSON encoder.
    fn refuses_nan(&self) -> bool;

    /// Writes the JSON of one event of a stream.
    fn put_piece(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>);

    /// Writes the first event of a choice, if the dialect has one; says whether it has.
    fn put_opening(&self, _buffer: &mut Vec<u8>, _face: &Face, _index: u32) -> bool {
        false
    }

    /// Writes the JSON of the closing usage event; false if the request did not ask for it.
    fn put_usage(&self, buffer: &mut Vec<u8>, face: &Face, usage: &str) -> bool;
}
