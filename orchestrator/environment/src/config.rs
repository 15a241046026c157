//! `[environment]` of a recipe: the environment of a run's trajectories, and their limits.

use std::time::Duration;

use rolldock_reward::external::short_or_table;
use rolldock_trajectory::HistoryPolicy;
use serde::{Deserialize, Serialize};

use crate::error::SECONDS_MAX;
use crate::http::HttpConfig;
use crate::python::PythonConfig;
use crate::{Calculator, Environment, EnvironmentError, Limits, NumberGame};

/// Largest number of turns.
const TURNS_MAX: u32 = 4_096;
/// Largest number of tokens of a turn or a context.
const TOKENS_MAX: u32 = 1 << 24;

/// An environment that is part of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuiltIn {
    /// [`Calculator`].
    Calculator,
    /// [`NumberGame`].
    NumberGame,
}

impl BuiltIn {
    /// The name in recipes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Calculator => "calculator",
            Self::NumberGame => "number_game",
        }
    }

    /// A new environment.
    pub fn make(self) -> Box<dyn Environment> {
        match self {
            Self::Calculator => Box::<Calculator>::default(),
            Self::NumberGame => Box::<NumberGame>::default(),
        }
    }
}

/// What scores a trajectory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoredBy {
    /// The sum of the rewards that the environment gave to turns. A trajectory without such rewards is scored
    /// by the recipe's reward.
    #[default]
    Environment,
    /// The recipe's reward, which reads the last answer.
    Reward,
}

/// `[environment]`: what answers the model between its turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentConfig {
    /// An environment of Rolldock: `calculator` or `number_game`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<BuiltIn>,
    /// An environment in Python: `module:Class`, or a table.
    #[serde(default, deserialize_with = "short_or_table", skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonConfig>,
    /// An environment behind HTTP: its base URL, or a table.
    #[serde(default, deserialize_with = "short_or_table", skip_serializing_if = "Option::is_none")]
    pub url: Option<HttpConfig>,
    /// Maximum number of turns.
    #[serde(default = "turns")]
    pub turns: u32,
    /// Maximum number of sampled tokens of a turn. If absent, a turn is limited only by
    /// `rollout.max_response_length`, the limit of all turns together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_tokens: Option<u32>,
    /// Maximum number of tokens of a prompt and its answer.
    #[serde(default = "context_tokens")]
    pub context_tokens: u32,
    /// Maximum seconds of a turn: the wait for a permit, the answer, and the environment's step.
    #[serde(default = "turn_time")]
    pub turn_time: f64,
    /// What becomes of sampled text that the chat template drops from later prompts.
    #[serde(default)]
    pub history: HistoryPolicy,
    /// What scores a trajectory.
    #[serde(default)]
    pub scored_by: ScoredBy,
}

fn turns() -> u32 {
    8
}

fn context_tokens() -> u32 {
    32_768
}

fn turn_time() -> f64 {
    600.0
}

impl EnvironmentConfig {
    /// Checks the values, and that exactly one environment is named.
    ///
    /// # Errors
    /// [`EnvironmentError::Misconfigured`] for the first value that is wrong.
    pub fn check(&self) -> Result<(), EnvironmentError> {
        let named = [self.name.is_some(), self.python.is_some(), self.url.is_some()];
        let count = named.iter().filter(|is_named| **is_named).count();
        if count != 1 {
            return Err(EnvironmentError::wrong(
                "name",
                "exactly one of name, python and url",
                format!("{count} of them"),
            ));
        }
        let counted = [
            ("turns", Some(self.turns), TURNS_MAX),
            ("turn_tokens", self.turn_tokens, TOKENS_MAX),
            ("context_tokens", Some(self.context_tokens), TOKENS_MAX),
        ];
        for (key, value, most) in counted {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(EnvironmentError::wrong(key, format!("1 to {most}"), value));
            }
        }
        if !(self.turn_time > 0.0 && self.turn_time <= SECONDS_MAX) {
            let expected = format!("seconds, above 0 and at most {SECONDS_MAX}");
            return Err(EnvironmentError::wrong("turn_time", expected, self.turn_time));
        }
        if let Some(python) = &self.python {
            python.check()?;
        }
        self.url.as_ref().map_or(Ok(()), HttpConfig::check)
    }

    /// The limits of a trajectory whose turns sample at most `sampled_tokens_max` tokens together.
    pub fn limits(&self, sampled_tokens_max: u32) -> Limits {
        Limits {
            turns_max: self.turns,
            turn_tokens_max: self.turn_tokens.unwrap_or(sampled_tokens_max),
            sampled_tokens_max,
            context_tokens_max: self.context_tokens,
            turn_time_max: Duration::from_secs_f64(self.turn_time),
        }
    }
}

#[cfg(test)]
mod tests;
