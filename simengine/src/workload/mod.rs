//! The simulated model: its samples are a pure function of their identity.
//!
//! A sample is identified by (simulation seed, prompt, sample seed). Its length, its correctness, its tokens
//! and its log-probabilities depend only on this identity and the prompt's answer. They do not depend on the
//! server, the time, the batch or the order of arrival. The effect of a scheduler on the data can therefore
//! be measured exactly.
//!
//! A response that is long enough begins with its identity. When such a response has been cut off, any server
//! that gets its beginning can recognise the sample and continue it.
//!
//! Lengths have a log-normal distribution. The median grows with the prompt's difficulty. For wrong responses
//! the median is multiplied by a factor. The chance that a response is right is `u^k / (u^k + (1 - u)^k)`,
//! where `1 - u` is the difficulty. Prompts without a difficulty of their own get one from a uniform
//! distribution. For such prompts, the distribution of the chance is uniform if k = 1. For a larger k it is
//! U-shaped: many prompts are solved nearly always or nearly never.
//!
//! # Deliberately absent
//! There is no text: a stream of hashes draws filler from a list of token ids, at about a nanosecond per
//! token. Sampling parameters do not change the tokens.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, AnswerKey, prompt_hash};
use crate::hash::{mix, unit};

mod plan;
mod signature;

use signature::Signatures;

pub(crate) use plan::{POISON_LOGPROB, Plan, PlanRequest};

/// The distribution of response lengths, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LengthConfig {
    /// Median length of a right response to the easiest prompt.
    pub median_easy: f64,
    /// Median length of a right response to the hardest prompt.
    pub median_hard: f64,
    /// Standard deviation of the logarithm of the length.
    pub sigma: f64,
    /// The median length of a wrong response is the median length of a right response times this factor.
    pub wrong_factor: f64,
    /// Length of the shortest response.
    pub min: u32,
    /// Length of the longest response.
    pub max: u32,
}

impl Default for LengthConfig {
    fn default() -> Self {
        Self { median_easy: 400.0, median_hard: 3_000.0, sigma: 0.6, wrong_factor: 1.25, min: 8, max: 65_536 }
    }
}

/// The configuration of the simulated model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadConfig {
    /// The simulation seed.
    pub seed: u64,
    /// The end-of-sequence token.
    pub eos_id: u32,
    /// Number of token ids in the vocabulary. A prompt with an id that is not below this number is refused.
    pub vocab_size: u32,
    /// The token ids of filler. A response consists of filler up to its answer.
    pub filler_ids: Vec<u32>,
    /// Response lengths.
    pub length: LengthConfig,
    /// The exponent k of the module's formula.
    pub pass_sharpness: f64,
}

impl Default for WorkloadConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            eos_id: 0,
            vocab_size: 1 << 18,
            filler_ids: (256..1280).collect(),
            length: LengthConfig::default(),
            pass_sharpness: 2.0,
        }
    }
}

/// The random draws for one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Length of the sample in tokens when no limit cuts it, including its answer and the end-of-sequence
    /// token.
    pub length: u32,
    /// Whether the sample ends in the right answer.
    pub correct: bool,
    pub(crate) identity: u64,
}

/// The simulated model, ready to draw from.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    config: WorkloadConfig,
    signatures: Option<Signatures>,
}

impl Workload {
    /// A model of this configuration. If the list of filler is empty, the end-of-sequence token is the
    /// filler.
    pub fn new(mut config: WorkloadConfig) -> Self {
        if config.filler_ids.is_empty() {
            config.filler_ids.push(config.eos_id);
        }
        let signatures = Signatures::new(config.seed, &config.filler_ids);
        Self { config, signatures }
    }

    /// The position at which the last response of this model begins in these tokens, and the identity of its
    /// sample. `None` if the tokens contain no response that is long enough to be recognised.
    pub(crate) fn recognise(&self, token_ids: &[u32]) -> Option<(usize, u64)> {
        self.signatures.as_ref()?.find(token_ids)
    }

    /// The model's configuration.
    pub fn config(&self) -> &WorkloadConfig {
        &self.config
    }

    /// Draws the sample of `seed`. The seed of choice `i` of a request is the request's seed plus `i`.
    ///
    /// The draw does not depend on a request's limits. With `max_tokens` the sample has
    /// `min(length, max_tokens)` tokens, and its answer is cut off if `length > max_tokens`.
    pub fn draw(&self, prompt_ids: &[u32], seed: u64, key: &dyn AnswerKey) -> Draw {
        let hash = prompt_hash(prompt_ids);
        self.draw_known(hash, seed, key.answer(hash).as_ref(), key)
    }

    /// Like [`Workload::draw`], for a caller that already has the prompt's hash and answer.
    pub(crate) fn draw_known(
        &self,
        prompt_hash: u64,
        seed: u64,
        answer: Option<&Answer>,
        key: &dyn AnswerKey,
    ) -> Draw {
        let drawn = self.draw_hashed(prompt_hash, seed, answer);
        let Some((length, correct)) = key.recorded(prompt_hash, seed) else { return drawn };
        let tail = answer.map_or(0, |known| known.ending(correct).len());
        let shortest = u32::try_from(tail + 1).unwrap_or(u32::MAX);
        Draw { length: length.max(shortest), correct, ..drawn }
    }

    /// Like [`Workload::draw`] without recorded samples, for a caller that has the prompt's hash and answer.
    pub fn draw_hashed(&self, prompt_hash: u64, seed: u64, answer: Option<&Answer>) -> Draw {
        let identity = mix(mix(self.config.seed ^ mix(prompt_hash)) ^ seed);
        self.draw_identified(identity, prompt_hash, answer)
    }

    /// The draw of the sample of this identity.
    pub(crate) fn draw_identified(&self, identity: u64, prompt_hash: u64, answer: Option<&Answer>) -> Draw {
        let difficulty = self.difficulty(prompt_hash, answer);
        let correct = unit(mix(identity ^ 0xC0)) < self.pass_chance(difficulty);
        let length = self.draw_length(identity, difficulty, correct);
        let tail = answer.map_or(0, |known| known.ending(correct).len());
        let shortest = u32::try_from(tail + 1).unwrap_or(u32::MAX);
        Draw { length: length.max(shortest), correct, identity }
    }

    /// The difficulty of a prompt, from 0 (always solved) to 1 (never solved).
    pub fn difficulty(&self, prompt_hash: u64, answer: Option<&Answer>) -> f64 {
        match answer.and_then(|known| known.difficulty) {
            Some(difficulty) if difficulty.is_finite() => f64::from(difficulty).clamp(0.0, 1.0),
            _ => unit(mix(self.config.seed ^ mix(prompt_hash ^ 0xD1F))),
        }
    }

    /// The chance that a response to a prompt of this difficulty is right, from 0 to 1.
    pub fn pass_chance(&self, difficulty: f64) -> f64 {
        let solved = (1.0 - difficulty).powf(self.config.pass_sharpness);
        let unsolved = difficulty.powf(self.config.pass_sharpness);
        solved / (solved + unsolved)
    }

    fn draw_length(&self, identity: u64, difficulty: f64, correct: bool) -> u32 {
        let config = &self.config.length;
        let right_median = config.median_easy * (config.median_hard / config.median_easy).powf(difficulty);
        let median = if correct { right_median } else { right_median * config.wrong_factor };
        // The Box-Muller transform. `1 - u` is never 0, which keeps the logarithm finite.
        let radius = (-2.0 * (1.0 - unit(mix(identity ^ 0xA1))).ln()).sqrt();
        let normal = radius * (TAU * unit(mix(identity ^ 0xA2))).cos();
        let length = (median * (config.sigma * normal).exp()).round();
        let longest = f64::from(config.max.max(config.min));
        // The clamped value is in the range of the cast.
        length.clamp(f64::from(config.min), longest) as u32
    }
}

impl Answer {
    pub(crate) fn ending(&self, correct: bool) -> &std::sync::Arc<[u32]> {
        if correct { &self.right_ids } else { &self.wrong_ids }
    }
}

#[cfg(test)]
mod tests;
