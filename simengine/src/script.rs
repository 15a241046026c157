//! A script for the simulated model: the responses of a conversation, turn by turn, with given tokens.
//!
//! A script tests clients that must keep the tokens of a response. Its texts are in pieces that are encoded
//! one by one, so a response can have a word or a tag in tokens that the tokenizer would never choose for
//! the whole text. A client that encodes the text again gets other tokens.
//!
//! Each turn of the assistant begins with a fixed text, the marker. The number of markers in a prompt, less
//! one, is the number of the turn that the prompt asks for. A response therefore depends only on the prompt
//! and the seed, as all responses of the simulation do: it is the same after a restart, on another server,
//! and in each branch of a conversation. After the last turn of the script, the model repeats the last turn.
//!
//! # Deliberately absent
//! The text of earlier turns has no effect on a response. A request with `ignore_eos` gets filler.

use std::sync::Arc;

use serde::Deserialize;

use crate::SimError;
use crate::answer::{Answer, AnswerKey};
use crate::codec::{Codec, TextCodec};
use crate::hash::mix;

/// Maximum number of turns, and of variants of a turn.
const TURNS_MAX: usize = 4_096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    /// The text that begins a turn of the assistant.
    #[serde(default = "default_marker")]
    marker: String,
    /// The token that ends a response; the tokenizer's end-of-sequence token if absent.
    #[serde(default)]
    end: Option<String>,
    turns: Vec<TurnFile>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TurnFile {
    Pieces(PiecesFile),
    Ids(IdsFile),
    Variants(VariantsFile),
}

/// Texts that are encoded one by one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PiecesFile {
    pieces: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdsFile {
    ids: Vec<u32>,
}

/// Alternative responses. The sample's seed chooses one, unless the prompt already has the beginning of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantsFile {
    variants: Vec<TurnFile>,
}

fn default_marker() -> String {
    "<|im_start|>assistant".to_owned()
}

/// The responses of the simulated model: an [`AnswerKey`] that scripts the response to every prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    marker: Vec<u32>,
    /// Number of tokens between the marker and a response: the line break of the generation prompt.
    gap: usize,
    end_id: Option<u32>,
    /// The variants of each turn. There is at least one turn, and each turn has at least one variant.
    turns: Vec<Vec<Arc<[u32]>>>,
}

impl Script {
    /// Reads a script in JSON: `{"turns": [{"pieces": ["He", "llo"]}, {"ids": [5, 6]}]}`. A turn can also be
    /// `{"variants": [...]}`, a list of turns. Optional keys are `marker` and `end`.
    ///
    /// # Errors
    /// [`SimError::Config`] with the key `script` if the JSON is not a valid script, or if an id or the end is
    /// not in the vocabulary; [`SimError::Tokenizer`] if a text cannot be encoded.
    pub fn from_json(json: &[u8], codec: &TextCodec) -> Result<Self, SimError> {
        let file: ScriptFile =
            serde_json::from_slice(json).map_err(|error| script_error(error.to_string()))?;
        if file.turns.is_empty() || file.turns.len() > TURNS_MAX {
            return Err(script_error(format!(
                "turns must have 1 to {TURNS_MAX} entries, got {}",
                file.turns.len()
            )));
        }
        let end_id = match &file.end {
            None => None,
            Some(end) => Some(codec.token_id(end).ok_or_else(|| {
                script_error(format!("end must be a token of the vocabulary, got {end:?}"))
            })?),
        };
        let marker = codec.encode(&file.marker)?;
        if marker.is_empty() {
            return Err(script_error("marker must not be empty".to_owned()));
        }
        let turns = file.turns.iter().enumerate().map(|(place, turn)| variants_of(place, turn, codec));
        let opened = codec.encode(&format!("{}\n", file.marker))?;
        let gap = opened.len().saturating_sub(marker.len());
        Ok(Self { marker, gap, end_id, turns: turns.collect::<Result<_, _>>()? })
    }

    /// The token that ends the responses, if the script names one. It must be the end-of-sequence token of
    /// the [`Workload`](crate::Workload).
    pub fn end_id(&self) -> Option<u32> {
        self.end_id
    }

    /// The number of the turn that a prompt asks for, from 0, and the tokens of this turn that the prompt
    /// already contains.
    fn turn_of<'a>(&self, prompt_ids: &'a [u32]) -> (usize, &'a [u32]) {
        let windows = prompt_ids.windows(self.marker.len()).enumerate();
        let begun: Vec<usize> =
            windows.filter(|(_, window)| *window == self.marker).map(|(place, _)| place).collect();
        let Some(last) = begun.last() else { return (0, &[]) };
        let said = prompt_ids.get(last + self.marker.len() + self.gap..).unwrap_or_default();
        ((begun.len() - 1).min(self.turns.len() - 1), said)
    }
}

impl AnswerKey for Script {
    fn answer(&self, _prompt_hash: u64) -> Option<Answer> {
        None
    }

    fn scripted(&self, prompt_ids: &[u32], seed: u64) -> Option<Arc<[u32]>> {
        let (turn, said) = self.turn_of(prompt_ids);
        let variants = &self.turns[turn];
        if !said.is_empty()
            && let Some(rest) = variants.iter().find_map(|variant| variant.strip_prefix(said))
        {
            return Some(rest.into());
        }
        // The remainder is smaller than the number of variants.
        let chosen = (mix(seed) % variants.len() as u64) as usize;
        variants.get(chosen).cloned()
    }
}

fn variants_of(place: usize, turn: &TurnFile, codec: &TextCodec) -> Result<Vec<Arc<[u32]>>, SimError> {
    match turn {
        TurnFile::Variants(several) => {
            if several.variants.is_empty() || several.variants.len() > TURNS_MAX {
                let count = several.variants.len();
                return Err(script_error(format!(
                    "turn {place} must have 1 to {TURNS_MAX} variants, got {count}"
                )));
            }
            let lists = several.variants.iter().map(|variant| variants_of(place, variant, codec));
            Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
        }
        TurnFile::Ids(given) => {
            let largest = given.ids.iter().max().copied().unwrap_or(0);
            if largest >= codec.vocab_size() {
                return Err(script_error(format!(
                    "turn {place} must have ids below {}, the size of the vocabulary, got {largest}",
                    codec.vocab_size()
                )));
            }
            Ok(vec![given.ids.as_slice().into()])
        }
        TurnFile::Pieces(given) => {
            let encoded = given.pieces.iter().map(|piece| codec.encode(piece));
            Ok(vec![encoded.collect::<Result<Vec<_>, _>>()?.concat().into()])
        }
    }
}

fn script_error(reason: String) -> SimError {
    SimError::Config { key: "script", reason }
}

#[cfg(test)]
mod tests;
