//! A game in text: the model guesses a hidden number, and is told whether the number is higher or lower.
//!
//! The hidden number follows from the task's seed. A guess rules out a share of the numbers that are still
//! possible. The reward of the guess is this share, divided by the number of guesses that a binary search
//! needs. Each turn therefore has a reward of its own. The reward for finding the number is 1.

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::EnvironmentError;
use crate::environment::{Action, Begun, Environment, Observation, Step, Task};

/// The largest number by default.
const LARGEST: u32 = 100;
/// The largest bound that a row may ask for.
const LARGEST_MAX: u32 = 1_000_000;

/// The environment. A row's field `largest` sets the largest number; the default is 100.
#[derive(Debug, Clone, Default)]
pub struct NumberGame {
    /// `None` before the first reset and after the end.
    state: Option<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    hidden: u32,
    /// The numbers that are still possible, both bounds included.
    low: u32,
    high: u32,
    /// Number of guesses that a binary search needs.
    guesses: u32,
}

impl NumberGame {
    fn begin(&mut self, task: &Task) -> Result<Begun, EnvironmentError> {
        let largest = match task.fields.get("largest") {
            None => LARGEST,
            Some(value) => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                number.filter(|number| (2..=LARGEST_MAX).contains(number)).ok_or_else(|| {
                    EnvironmentError::Task {
                        reason: format!("expected a field largest of 2 to {LARGEST_MAX}, found {value}"),
                    }
                })?
            }
        };
        // The remainder is below `largest`, which fits into 32 bits.
        let hidden = (xxh3_64(&task.seed.to_le_bytes()) % u64::from(largest)) as u32 + 1;
        self.state = Some(State { hidden, low: 1, high: largest, guesses: largest.ilog2() + 1 });
        let rule = format!(
            "I think of a whole number from 1 to {largest}. Guess it. After each guess I say higher or lower."
        );
        let mut messages = task.messages.clone();
        messages.push(json!({ "role": "user", "content": rule }));
        Ok(Begun { messages, tools: None })
    }

    fn act(&mut self, action: Action<'_>) -> Result<Step, EnvironmentError> {
        let state = self.state.as_mut().ok_or_else(|| EnvironmentError::Failed {
            reason: "a step was asked for without a reset".to_owned(),
        })?;
        let Some(guess) = last_integer(action.text) else {
            return Ok(told("Please say a whole number.", 0.0));
        };
        if guess == u64::from(state.hidden) {
            self.state = None;
            return Ok(Step { is_done: true, ..told("Right.", 1.0) });
        }
        let possible = f64::from(state.high - state.low + 1);
        let answer = if guess < u64::from(state.hidden) {
            // The guess is below the hidden number, so `guess + 1` fits into 32 bits.
            state.low = state.low.max(guess as u32 + 1);
            "Higher."
        } else {
            state.high = state.high.min(u32::try_from(guess - 1).unwrap_or(u32::MAX));
            "Lower."
        };
        let left = f64::from(state.high - state.low + 1);
        let reward = (1.0 - left / possible) / f64::from(state.guesses);
        Ok(told(answer, reward as f32))
    }
}

impl Environment for NumberGame {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        future::ready(self.begin(task)).boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        future::ready(self.act(action)).boxed()
    }
}

fn told(answer: &str, reward: f32) -> Step {
    Step {
        observation: Observation::Messages(vec![json!({ "role": "user", "content": answer })]),
        reward: Some(reward),
        is_done: false,
        info: json!({ "answer": answer }),
    }
}

/// The last run of digits in a text. A number that does not fit into 64 bits counts as `u64::MAX`.
fn last_integer(text: &str) -> Option<u64> {
    let digits = text.rsplit(|letter: char| !letter.is_ascii_digit()).find(|word| !word.is_empty())?;
    Some(digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
