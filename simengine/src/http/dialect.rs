//! The trait of the three dialects (text completions, chat completions, token ids). A dialect writes the tokens of a
//! response as JSON.

use super::Face;
use super::json::put;
use super::params::Sampling;
use crate::request::{SimChoice, SimResponse};

/// Consecutive tokens of one choice.
pub(crate) struct Piece<'a> {
    /// The choice's index in the answer.
    pub(crate) index: u32,
    pub(crate) token_ids: &'a [u32],
    pub(crate) logprobs: &'a [f32],
    /// The choice, if these tokens are its last ones.
    pub(crate) finish: Option<&'a SimChoice>,
    pub(crate) stop: Option<&'a str>,
    /// Whether these tokens are the choice's first ones.
    pub(crate) is_first: bool,
    /// Number of code points of text before these tokens, as in vLLM.
    pub(crate) text_offset: usize,
    /// Number of the choice's tokens up to the end of this piece.
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

    /// Writes the value of `finish_reason`, then the key and the value of `stop_reason`.
    pub(crate) fn put_finish(&self, buffer: &mut Vec<u8>) {
        self.put_finish_as(buffer, None);
    }

    /// Like [`Piece::put_finish`], with another reason if one is given.
    pub(crate) fn put_finish_as(&self, buffer: &mut Vec<u8>, reason: Option<&str>) {
        match self.finish {
            None => put!(buffer, "null,\"stop_reason\":null"),
            Some(choice) => {
                let given = reason.unwrap_or(choice.finish_reason.as_str());
                put!(buffer, "\"{given}\",\"stop_reason\":");
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

    /// Whether a whole answer with NaN as a log-probability is refused, because vLLM's JSON encoder refuses NaN.
    fn refuses_nan(&self) -> bool;

    /// Writes the JSON of one event of a stream.
    fn put_piece(&self, buffer: &mut Vec<u8>, face: &Face, piece: &Piece<'_>);

    /// Writes the first event of a choice. Returns false if the dialect has no such event.
    fn put_opening(&self, _buffer: &mut Vec<u8>, _face: &Face, _index: u32) -> bool {
        false
    }

    /// Writes the JSON of the event with the usage. Returns false if the request did not ask for the usage.
    fn put_usage(&self, buffer: &mut Vec<u8>, face: &Face, usage: &str) -> bool;
}
