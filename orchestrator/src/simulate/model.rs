//! The simulated model and its grader.
//!
//! The simulated model draws whether a sample is right, and records the result in a token at the end of the
//! sample. The grader reads that token, so no text is generated.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use rolldock_reward::Overlong;
use rolldock_simengine::{Answer, AnswerKey, AnswerTable, Workload, WorkloadConfig, prompt_hash};

use crate::data::{DataError, Position, Prompt, PromptSource};
use crate::engine::{FinishReason, SampleOutput};
use crate::recipe::Simulated;
use crate::report::figures::GroupRow;
use crate::rollout::{Grade, Grader, sample_seed};
use crate::run::length_config;

/// The last token of every response.
const EOS: u32 = 0;
/// A number above the number of samples that a recipe's group can have. The seeds of a prompt's samples are
/// consecutive.
const SAMPLES_MAX: u64 = 1 << 13;
/// The second-to-last token of right and of wrong responses.
const RIGHT: u32 = 7;
const WRONG: u32 = 8;

/// The simulated model of a fleet.
pub(super) fn workload(simulated: &Simulated) -> Workload {
    Workload::new(WorkloadConfig {
        seed: simulated.seed,
        eos_id: EOS,
        // Prompts keep the ids of the recipe's tokenizer, and no tokenizer has more ids.
        vocab_size: u32::MAX,
        length: length_config(simulated.mean_response_length),
        ..WorkloadConfig::default()
    })
}

/// Finds the recorded group of a prompt.
pub(super) type FindRecord = dyn Fn(&Prompt) -> Arc<GroupRow> + Send + Sync;

/// The recorded groups of prompts by the hash of the prompt, with the seed of the first sample.
type Records = HashMap<u64, (u64, Arc<GroupRow>)>;

/// The answers to the prompts that were drawn so far, and their recorded samples.
#[derive(Clone, Default)]
pub(super) struct Key {
    table: Arc<RwLock<AnswerTable>>,
    /// The recorded samples of each prompt by its hash, with the seed of the first sample.
    records: Arc<RwLock<Records>>,
    /// Finds the record of a prompt; `None` without a recorded run.
    record_of: Option<Arc<FindRecord>>,
    /// The seed of the run.
    seed: u64,
    /// The token limit of a response.
    longest: u32,
}

/// A sample at its first attempt, as the token limit leaves it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limited {
    /// Its length in tokens.
    pub(super) tokens: u32,
    /// Whether it is right.
    pub(super) is_right: bool,
    /// Whether the token limit ended it.
    pub(super) is_truncated: bool,
}

impl Key {
    /// A key for a run with this seed and token limit, whose samples are recorded if `record_of` is given.
    pub(super) fn new(seed: u64, longest: u32, record_of: Option<Arc<FindRecord>>) -> Self {
        Self { seed, longest, record_of, ..Self::default() }
    }

    /// The sample of a draw with this length and correctness, with the correctness that a [`TokenGrader`] finds.
    pub(super) fn limited(&self, length: u32, is_right: bool) -> Limited {
        let beyond = length.saturating_sub(self.longest);
        let shows_result = beyond == 0 || beyond == 1 && self.record_of.is_some();
        Limited {
            tokens: length.min(self.longest),
            is_right: is_right && shows_result,
            is_truncated: beyond > 0,
        }
    }

    /// Adds the answer to a prompt.
    pub(super) fn learn(&self, prompt: &Prompt) {
        if let Some(record_of) = &self.record_of {
            let first_seed = sample_seed(self.seed, prompt.uid.0, prompt.visit, 0);
            self.records.write().insert(prompt_hash(&prompt.ids), (first_seed, record_of(prompt)));
        }
        let answer =
            Answer { right_ids: [RIGHT].into(), wrong_ids: [WRONG].into(), difficulty: prompt.difficulty };
        self.table.write().insert(&prompt.ids, answer);
    }

    /// Wraps a source, so that the model learns the answers to the prompts that are drawn.
    pub(super) fn watch(&self, source: Box<dyn PromptSource>) -> Box<dyn PromptSource> {
        Box::new(Watched { source, key: self.clone() })
    }
}

impl AnswerKey for Key {
    fn answer(&self, prompt_hash: u64) -> Option<Answer> {
        self.table.read().answer(prompt_hash)
    }

    /// If a group has more samples than its record, the recorded samples are repeated. Later attempts of a
    /// sample are not recorded, so they are drawn.
    ///
    /// The engine truncates a sample that is longer than the token limit. A recorded sample that was truncated at
    /// this limit therefore gets one token more. Its last token before the limit is then the token with its result,
    /// so a replay keeps the result. A longer sample gets one token more too, so that this token is always cut off.
    fn recorded(&self, prompt_hash: u64, seed: u64) -> Option<(u32, bool)> {
        let records = self.records.read();
        let (first_seed, group) = records.get(&prompt_hash)?;
        let index = seed.checked_sub(*first_seed).filter(|index| *index < SAMPLES_MAX)?;
        let place = index as usize % group.tokens.len().max(1);
        let (tokens, right) = (*group.tokens.get(place)?, *group.right.get(place)?);
        let was_truncated = group.truncated.get(place).is_some_and(|truncated| *truncated);
        let is_cut = tokens > self.longest || tokens == self.longest && was_truncated;
        Some((tokens.saturating_add(u32::from(is_cut)), right))
    }
}

/// A source of prompts whose answers the simulated model learns.
struct Watched {
    source: Box<dyn PromptSource>,
    key: Key,
}

impl PromptSource for Watched {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.next()?;
        prompt.iter().for_each(|prompt| self.key.learn(prompt));
        Ok(prompt)
    }

    fn fetch(&mut self, row: u64, visit: u32) -> Result<Option<Prompt>, DataError> {
        let prompt = self.source.fetch(row, visit)?;
        prompt.iter().for_each(|prompt| self.key.learn(prompt));
        Ok(prompt)
    }

    fn position(&self) -> Option<Position> {
        self.source.position()
    }
}

/// Grades a response by its second-to-last token. A response that was cut off at the token limit is wrong, except in a
/// replay: there, its last token may have the recorded result (see [`Key`]).
pub(super) struct TokenGrader {
    pub(super) overlong: Option<Overlong>,
    pub(super) is_replay: bool,
}

impl Grader for TokenGrader {
    fn grade(&self, _prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        let result = match output.finish_reason {
            FinishReason::Stop => output.response_ids.iter().rev().nth(1),
            FinishReason::Length => output.response_ids.last().filter(|_| self.is_replay),
        };
        let is_right = result == Some(&RIGHT);
        Ok(self.of(output.response_ids.len() as u32, is_right))
    }
}

impl TokenGrader {
    /// The grade of a response of `tokens` tokens.
    pub(super) fn of(&self, tokens: u32, is_right: bool) -> Grade {
        let acc = f32::from(u8::from(is_right));
        let overlong_penalty = self.overlong.map_or(0.0, |overlong| overlong.penalty(tokens) as f32);
        Grade { score: acc, acc, overlong_penalty, prediction: None, parts: Default::default() }
    }
}
