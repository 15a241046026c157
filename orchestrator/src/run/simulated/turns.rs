//! Generates what the simulated model says in the turns of a trajectory. The model calls the calculator and
//! then repeats the result, or it plays the number game.
//!
//! A turn is a pure function of its prompt and its seed, like all answers of the simulation. The model reads
//! the conversation in the form of Qwen's chat templates (ChatML). It cannot read other templates. If a
//! conversation has another template, the model answers with filler.

use std::sync::Arc;

use rolldock_environment::BuiltIn;
use rolldock_simengine::{Answer, AnswerKey, Workload};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{GrowingKey, Known, question_hash};
use crate::data::TextCodec;

const OF_USER: &str = "<|im_start|>user\n";
const OF_ASSISTANT: &str = "<|im_start|>assistant\n";
const END: &str = "<|im_end|>";
const RESULT: &str = "<tool_response>\n";
const RESULT_END: &str = "\n</tool_response>";
/// The largest number of the game, unless a row sets another number.
const LARGEST: u32 = 100;

/// An answer key that knows the environment.
pub(in crate::run) struct TurnKey {
    key: GrowingKey,
    environment: Option<BuiltIn>,
    codec: Arc<TextCodec>,
    workload: Workload,
    filler: Vec<u32>,
    /// Mean number of filler tokens before the text of a turn.
    filler_mean: f64,
}

impl TurnKey {
    /// A key for this environment. `None` is an environment that the model does not know. In such an
    /// environment the model answers immediately.
    pub(in crate::run) fn new(
        key: &GrowingKey,
        environment: Option<BuiltIn>,
        codec: &Arc<TextCodec>,
        workload: Workload,
        filler: Vec<u32>,
        mean_response_length: f64,
    ) -> Self {
        let codec = Arc::clone(codec);
        // A trajectory has two turns or more.
        let filler_mean = mean_response_length / 2.0;
        Self { key: key.clone(), environment, codec, workload, filler, filler_mean }
    }

    /// The text of the model's turn that follows a conversation.
    fn said(&self, conversation: &str, seed: u64) -> Option<String> {
        let question = conversation.split(OF_USER).nth(1)?.split(END).next()?;
        let known = self.key.questions.read().get(&question_hash(question)).cloned()?;
        match self.environment {
            Some(BuiltIn::NumberGame) => Some(guess(conversation, seed)),
            Some(BuiltIn::Calculator) => Some(match result_in(conversation) {
                Some(result) => self.key.answer_line(result),
                None => call(&self.value(question, &known, seed), seed),
            }),
            None => Some(self.key.answer_line(&self.value(question, &known, seed))),
        }
    }

    /// The number that the model answers. Whether it is right depends on the seed and on the difficulty of
    /// the question.
    fn value(&self, question: &str, known: &Known, seed: u64) -> String {
        let difficulty = known.difficulty.map_or_else(|| share(question_hash(question), 1), f64::from);
        match share(seed, question_hash(question)) < self.workload.pass_chance(difficulty) {
            true => known.answer.to_string(),
            false => format!("{}7", known.answer),
        }
    }

    fn with_filler(&self, text: &str, seed: u64) -> Option<Arc<[u32]>> {
        let count = (self.filler_mean * (0.5 + share(seed, 2))) as usize;
        let place = |number: usize| (share(seed, 3 + number as u64) * self.filler.len() as f64) as usize;
        let filler = (0..count).filter_map(|number| self.filler.get(place(number)).copied());
        Some(filler.chain(self.codec.encode(text).ok()?).collect())
    }
}

impl AnswerKey for TurnKey {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        self.key.answer(prompt_hash)
    }

    fn scripted(&self, prompt_ids: &[u32], seed: u64) -> Option<Arc<[u32]>> {
        let said = self.said(&self.codec.decode_with_specials(prompt_ids), seed)?;
        self.with_filler(&said, seed)
    }
}

/// A pseudo-random number in [0, 1).
fn share(seed: u64, of: u64) -> f64 {
    (xxh3_64_with_seed(&seed.to_le_bytes(), of) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The last result of a tool.
fn result_in(conversation: &str) -> Option<&str> {
    let (_, last) = conversation.rsplit_once(RESULT)?;
    Some(last.split(RESULT_END).next()?.trim())
}

/// A call of the calculator whose result is `value`.
fn call(value: &str, seed: u64) -> String {
    let part = (share(seed, 4) * 100.0) as i128;
    let expression = match value.parse::<i128>() {
        Ok(number) => format!("{} + {part}", number - part),
        Err(_) => value.to_owned(),
    };
    let arguments = serde_json::json!({ "expression": expression });
    format!("<tool_call>\n{{\"name\": \"calculator\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// A guess within the bounds that follow from the answers of the game.
fn guess(conversation: &str, seed: u64) -> String {
    let (mut low, mut high) = (1, LARGEST);
    for turn in conversation.split(OF_ASSISTANT).skip(1) {
        let (said, answer) = turn.split_once(END).unwrap_or((turn, ""));
        let Some(number) = last_number(said) else { continue };
        if answer.contains("Higher.") {
            low = low.max(number.saturating_add(1));
        } else if answer.contains("Lower.") {
            high = high.min(number.saturating_sub(1));
        }
    }
    let numbers = f64::from(high.saturating_sub(low) + 1);
    format!("\nMy guess is {}", low + (share(seed, 5) * numbers) as u32)
}

fn last_number(text: &str) -> Option<u32> {
    let words = text.rsplit(|letter: char| !letter.is_ascii_digit());
    words.filter(|word| !word.is_empty()).find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests;
