//! The measured speed at which a server decodes one sample.

/// Weight of the earlier measurements at each new one.
const SPEED_MEMORY: f64 = 0.95;

/// Tokens and the time that they took, weighted towards recent answers.
#[derive(Debug, Default)]
pub(super) struct Speed {
    tokens: f64,
    sample_seconds: f64,
}

impl Speed {
    pub(super) fn record(&mut self, tokens: u64, sample_seconds: f64) {
        self.tokens = self.tokens * SPEED_MEMORY + tokens as f64;
        self.sample_seconds = self.sample_seconds * SPEED_MEMORY + sample_seconds;
    }

    /// Tokens a second of one sample; `None` before the first measurement.
    pub(super) fn get(&self) -> Option<f64> {
        (self.tokens > 0.0 && self.sample_seconds > 0.0).then(|| self.tokens / self.sample_seconds)
    }
}
