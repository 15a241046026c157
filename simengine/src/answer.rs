//! What the simulated model knows about a prompt: a right answer, a wrong one, and the prompt's difficulty.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of tokens that are hashed at a time.
const HASH_TOKENS: usize = 64;

/// The hash of the token ids of a prompt, which identifies the prompt. It is equal on every machine.
pub fn prompt_hash(prompt_ids: &[u32]) -> u64 {
    let mut bytes = [0_u8; HASH_TOKENS * 4];
    let mut hash = prompt_ids.len() as u64;
    for chunk in prompt_ids.chunks(HASH_TOKENS) {
        hash = hash_tokens(chunk, hash, &mut bytes);
    }
    hash
}

/// Hashes at most `buffer.len() / 4` tokens. `seed` is the hash of the tokens before them.
pub(crate) fn hash_tokens(tokens: &[u32], seed: u64, buffer: &mut [u8]) -> u64 {
    for (slot, token) in buffer.chunks_exact_mut(4).zip(tokens) {
        slot.copy_from_slice(&token.to_le_bytes());
    }
    let length = (tokens.len() * 4).min(buffer.len());
    xxh3_64_with_seed(&buffer[..length], seed)
}

/// The endings of responses to one prompt. Neither of them contains the end-of-sequence token.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The last tokens of a right response, usually those of `"\nAnswer: <truth>"`.
    pub right_ids: Arc<[u32]>,
    /// The last tokens of a wrong response, usually with another number.
    pub wrong_ids: Arc<[u32]>,
    /// The prompt's difficulty, from 0 (always solved) to 1 (never solved). If absent, it is drawn from the
    /// prompt's hash.
    pub difficulty: Option<f32>,
}

/// Finds the answer to a prompt by the hash of its token ids.
pub trait AnswerKey: Send + Sync + 'static {
    /// The endings of responses to the prompt. If `None`, responses end in filler and the end-of-sequence
    /// token.
    fn answer(&self, prompt_hash: u64) -> Option<Answer>;

    /// The whole response of the sample `seed` to a prompt, without the end-of-sequence token. `None`, the
    /// default, leaves the response to the workload.
    fn scripted(&self, _prompt_ids: &[u32], _seed: u64) -> Option<Arc<[u32]>> {
        None
    }

    /// The length in tokens and the correctness of a sample that was recorded, for the prompt's hash and the
    /// sample's seed. The recorded values replace the draw. `None` for all other samples.
    fn recorded(&self, _prompt_hash: u64, _seed: u64) -> Option<(u32, bool)> {
        None
    }
}

/// An answer key without answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAnswers;

impl AnswerKey for NoAnswers {
    fn answer(&self, _prompt_hash: u64) -> Option<Answer> {
        None
    }
}

/// An answer key in memory. The program that has the data set and the tokenizer fills this table, which has
/// one entry for each prompt.
#[derive(Debug, Clone, Default)]
pub struct AnswerTable {
    answers: HashMap<u64, Answer>,
}

impl AnswerTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the answer to a prompt, or replaces the answer that the prompt has.
    pub fn insert(&mut self, prompt_ids: &[u32], answer: Answer) {
        self.answers.insert(prompt_hash(prompt_ids), answer);
    }

    /// Number of prompts in the table.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

impl AnswerKey for AnswerTable {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        self.answers.get(&prompt_hash).cloned()
    }
}
