//! Soft overlong punishment (DAPO, Yu et al. 2025, section 3.4).
//!
//! A response that is cut off at the token limit scores like a wrong response, even if its text before the
//! limit was right. Such scores add noise to the reward. A penalty that grows over a buffer before the limit
//! teaches the model to stop earlier.

use crate::invariants;

/// A penalty that grows linearly over the last `buffer_length` tokens before the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlong {
    /// The token limit of a response.
    pub max_response_length: u32,
    /// The number of tokens before the limit over which the penalty grows; 0 means no penalty.
    pub buffer_length: u32,
    /// The amount by which the score is reduced at the limit; 0 or more.
    pub penalty_factor: f64,
}

impl Overlong {
    /// The penalty that is added to the score of a response of `response_length` tokens. It is 0 or negative,
    /// and below `-penalty_factor` only for responses beyond the limit.
    pub fn penalty(&self, response_length: u32) -> f64 {
        if self.buffer_length == 0 {
            return 0.0;
        }
        let free = i64::from(self.max_response_length) - i64::from(self.buffer_length);
        let exceeded = (i64::from(response_length) - free) as f64;
        let penalty = (-exceeded / f64::from(self.buffer_length) * self.penalty_factor).min(0.0);
        debug_assert_eq!(
            invariants::penalty_is_sound(penalty),
            Ok(()),
            "{self:?} for {response_length} tokens"
        );
        penalty
    }
}

#[cfg(test)]
mod tests;
