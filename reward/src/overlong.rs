//! Soft punishment of overlong answers (DAPO, Yu et al. 2025, section 3.4).

/// The penalty grows linearly over the last `buffer_length` tokens before the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlong {
    /// Most tokens of a response.
    pub max_response_length: u32,
    /// Tokens before the limit in which the penalty grows.
    pub buffer_length: u32,
    /// The penalty at the limit.
    pub penalty_factor: f64,
}

impl Overlong {
    /// Zero or negative; added to the score.
    pub fn penalty(&self, response_length: u32) -> f64 {
        let free = i64::from(self.max_response_length) - i64::from(self.buffer_length);
        let exceeded = (i64::from(response_length) - free) as f64;
        (-exceeded / f64::from(self.buffer_length) * self.penalty_factor).min(0.0)
    }
}
