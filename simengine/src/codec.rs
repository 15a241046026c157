//! Translates between text and token ids. The engine works with token ids; the HTTP server, scripts and
//! [`GuessingKey`] need text.

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::SimError;
use crate::answer::{Answer, AnswerKey, prompt_hash};

/// The project's own tokenizer. `<|endoftext|>` has id 0 and ends a sequence.
const BUILTIN: &[u8] = include_bytes!("../../data/tokenizer/tokenizer.json");

/// Shortest filler word.
const FILLER_LETTERS_MIN: usize = 2;
/// Maximum number of filler ids.
const FILLER_IDS_MAX: usize = 4_096;

/// Turns text into token ids and back.
pub trait Codec: Send + Sync + 'static {
    /// The ids of a text. Special tokens in the text are recognised; none are added.
    ///
    /// # Errors
    /// [`SimError::Tokenizer`] with the library's message.
    fn encode(&self, text: &str) -> Result<Vec<u32>, SimError>;

    /// The text of ids, without special tokens. Unknown ids are skipped.
    fn decode(&self, ids: &[u32]) -> String;

    /// The text of ids, with special tokens. Unknown ids are skipped.
    fn decode_all(&self, ids: &[u32]) -> String;

    /// The text of one id. It is empty for an unknown id. If the bytes of an id are only a part of a
    /// character, the text has U+FFFD in their place.
    fn piece(&self, id: u32) -> &str;
}

/// A Hugging Face tokenizer with a table of the text of every id.
#[derive(Debug)]
pub struct TextCodec {
    tokenizer: Tokenizer,
    pieces: HashMap<u32, Box<str>>,
}

impl TextCodec {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`SimError::Tokenizer`] with the library's message.
    pub fn from_json(bytes: &[u8]) -> Result<Self, SimError> {
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(tokenizer_error)?;
        let pieces = tokenizer
            .get_vocab(true)
            .into_values()
            .map(|id| (id, tokenizer.decode(&[id], false).unwrap_or_default().into_boxed_str()))
            .collect();
        Ok(Self { tokenizer, pieces })
    }

    /// The built-in tokenizer.
    ///
    /// # Errors
    /// [`SimError::Tokenizer`] if the embedded file is not a tokenizer.
    pub fn builtin() -> Result<Self, SimError> {
        Self::from_json(BUILTIN)
    }

    /// Ids that can serve as filler, in ascending order, at most `FILLER_IDS_MAX`. They are lower-case words
    /// with a space before them, so filler contains no digit, special token or "Answer:". If the vocabulary
    /// has no such word, the filler ids are the smallest ids except for 0.
    pub fn filler_ids(&self) -> Vec<u32> {
        let is_word = |piece: &str| {
            piece.strip_prefix(' ').is_some_and(|word| {
                word.len() >= FILLER_LETTERS_MIN && word.bytes().all(|byte| byte.is_ascii_lowercase())
            })
        };
        let words = self.pieces.iter().filter(|(_, piece)| is_word(piece)).map(|(id, _)| *id);
        let mut ids: Vec<u32> = words.collect();
        if ids.is_empty() {
            ids = self.pieces.keys().copied().filter(|id| *id != 0).collect();
        }
        ids.sort_unstable();
        ids.truncate(FILLER_IDS_MAX);
        ids
    }

    /// The id of a special token or a vocabulary entry.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The largest id plus 1, special tokens included.
    pub fn vocab_size(&self) -> u32 {
        self.pieces.keys().max().map_or(0, |largest| largest + 1)
    }
}

impl Codec for TextCodec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, SimError> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(tokenizer_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, true).unwrap_or_default()
    }

    fn decode_all(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    fn piece(&self, id: u32) -> &str {
        self.pieces.get(&id).map_or("", |piece| piece)
    }
}

/// An answer key that makes every response end in an answer. If `inner` has no answer to a prompt, responses
/// end in a number that is drawn from the prompt's hash. This number is nearly always wrong.
pub struct GuessingKey {
    inner: Arc<dyn AnswerKey>,
    codec: Arc<dyn Codec>,
}

impl GuessingKey {
    /// A key that guesses answers that `inner` does not have. `codec` turns a guess into tokens.
    pub fn new(inner: Arc<dyn AnswerKey>, codec: Arc<dyn Codec>) -> Self {
        Self { inner, codec }
    }
}

impl AnswerKey for GuessingKey {
    fn scripted(&self, prompt_ids: &[u32], seed: u64) -> Option<Arc<[u32]>> {
        self.inner.scripted(prompt_ids, seed)
    }

    fn answer(&self, hash: u64) -> Option<Answer> {
        if let Some(known) = self.inner.answer(hash) {
            return Some(known);
        }
        let guess = prompt_hash(&[hash as u32, (hash >> 32) as u32]) % 1_000_000;
        let ending: Arc<[u32]> = self.codec.encode(&format!("\nAnswer: {guess}")).ok()?.into();
        Some(Answer { right_ids: Arc::clone(&ending), wrong_ids: ending, difficulty: None })
    }
}

// The error is passed by value because `map_err` passes it by value.
#[allow(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
fn tokenizer_error(error: tokenizers::Error) -> SimError {
    SimError::Tokenizer { reason: error.to_string() }
}
