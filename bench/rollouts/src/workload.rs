//! Prompts and answers for measurements. They need no files.

use std::sync::Arc;

use rolldock::data::{DataError, DataFields, Prompt, PromptSource, PromptUid};
use rolldock::engine::{FinishReason, SampleOutput};
use rolldock::rollout::{Grade, Grader, Group};
use rolldock_simengine::{Answer, AnswerKey};

const RIGHT: u32 = 7;
const WRONG: u32 = 8;
/// The token that ends every response.
pub const EOS: u32 = 0;

/// An answer key with an answer for every prompt. The difficulties follow from the simulation's seed.
pub struct EveryPrompt;

impl AnswerKey for EveryPrompt {
    fn answer(&self, _prompt_hash: u64) -> Option<Answer> {
        Some(Answer { right_ids: [RIGHT].into(), wrong_ids: [WRONG].into(), difficulty: None })
    }
}

/// Scores a response by the token before its last token. The answers of [`EveryPrompt`] determine that token.
pub struct LastToken;

impl Grader for LastToken {
    fn grade(&self, _prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        let right = output.finish_reason == FinishReason::Stop
            && output.response_ids.iter().rev().nth(1) == Some(&RIGHT);
        let acc = f32::from(u8::from(right));
        Ok(Grade { score: acc, acc, overlong_penalty: 0.0, prediction: None, parts: Default::default() })
    }
}

/// An endless series of prompts. Each has `tokens` tokens (4 or more), which encode its number.
pub struct Numbered {
    next: u64,
    tokens: usize,
}

impl Numbered {
    /// Prompts from number 0 on, with this many tokens each.
    pub fn new(tokens: usize) -> Self {
        Self { next: 0, tokens }
    }

    /// The prompts from the index `row` on.
    pub fn starting_at(self, row: u64) -> Self {
        Self { next: row, ..self }
    }

    /// The prompt with the index `row` in the data.
    pub fn prompt(&self, row: u64) -> Prompt {
        let digits = (0..4).map(|place| 100 + (row >> (8 * place) & 0xff) as u32);
        Prompt {
            uid: PromptUid(row),
            row,
            visit: 0,
            ids: digits.chain((4..self.tokens).map(|_| 99)).collect(),
            text: "".into(),
            messages: [].into(),
            answer: "".into(),
            source: "".into(),
            difficulty: None,
            fields: DataFields::default(),
        }
    }
}

impl PromptSource for Numbered {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        self.next += 1;
        Ok(Some(self.prompt(self.next - 1)))
    }
}

/// The number of bytes of a group's own columns: token ids and log-probabilities.
pub fn column_bytes(group: &Group) -> usize {
    let prompt = size_of_val::<[u32]>(&group.prompt.ids);
    let of_sample = |sample: &rolldock::rollout::Sample| {
        size_of_val(sample.response_ids.as_slice()) + size_of_val(sample.logprobs.as_slice())
    };
    prompt + group.samples.iter().map(of_sample).sum::<usize>()
}

/// A shared answer key.
pub fn answers() -> Arc<dyn AnswerKey> {
    Arc::new(EveryPrompt)
}
