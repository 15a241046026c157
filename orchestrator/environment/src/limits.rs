//! The limits of a trajectory, and how it ended.

use std::time::Duration;

/// The limits of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of turns.
    pub turns_max: u32,
    /// Maximum number of tokens that one turn samples.
    pub turn_tokens_max: u32,
    /// Maximum number of tokens that all turns sample together.
    pub sampled_tokens_max: u32,
    /// Maximum number of tokens of a prompt and its response.
    pub context_tokens_max: u32,
    /// Maximum time of each turn: the model's answer, including the wait for a permit, and the environment's
    /// step. The reset has the same limit.
    pub turn_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns_max: 8,
            turn_tokens_max: 1_024,
            sampled_tokens_max: 8_192,
            context_tokens_max: 32_768,
            turn_time_max: Duration::from_secs(600),
        }
    }
}

impl Limits {
    /// The number of tokens that a turn may sample after a prompt; `None` if it may not sample any.
    pub(crate) fn room(&self, prompt_tokens: usize, sampled_tokens: u32) -> Option<u32> {
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let context = self.context_tokens_max.saturating_sub(prompt_tokens);
        let sampled = self.sampled_tokens_max.saturating_sub(sampled_tokens);
        Some(self.turn_tokens_max.min(context).min(sampled)).filter(|room| *room > 0)
    }
}

/// Why a trajectory ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The environment ended the trajectory.
    Done,
    /// The trajectory had [`Limits::turns_max`] turns.
    Turns,
    /// The limits of tokens allowed no further token.
    Tokens,
    /// A turn took longer than [`Limits::turn_time_max`].
    Time,
}

impl End {
    /// The name for metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::Time => "time",
        }
    }
}
