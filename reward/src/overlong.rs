//! Soft punishment of overlong answers (DAPO, Yu et al. 2025, section 3.4).
//!
//! A hard cut at the limit punishes a good answer that was a token too long as much as a wrong one, which is noise;
//! a penalty that grows over a buffer before the limit tells the model which way to go.

use crate::invariants;

/// The penalty grows linearly over the last `buffer_length` tokens before the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlong {
    /// Most tokens of a response.
    pub max_response_length: u32,
    /// Tokens before the limit in which the penalty grows; without any there is no penalty.
    pub buffer_length: u32,
    /// The penalty at the limit, 0 or more.
    pub penalty_factor: f64,
}

impl Overlong {
    /// Zero or negative, and below `-penalty_factor` only for responses beyond the limit; added to the score.
    /// `response_length` counts tokens.
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
