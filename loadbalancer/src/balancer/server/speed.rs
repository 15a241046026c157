//! The measured speed at which a server decodes one sample. There are two measurements: [`Speed`] uses the
//! server's answers, and [`DecodeRate`] uses the server's own count of tokens.

use tokio::time::Instant;

use crate::EngineLoad;

/// Factor on the earlier measurements at each new measurement.
const SPEED_MEMORY: f64 = 0.95;

/// Factor on the earlier readings of a server's count at each new reading.
const COUNT_MEMORY: f64 = 0.8;

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

/// The speed by the server's own count of generated tokens. This speed is known before the first answer. It
/// falls as soon as the server gets slow, whereas answers show this only when they arrive.
#[derive(Debug, Default)]
pub(super) struct DecodeRate {
    last: Option<(Instant, u64)>,
    tokens: f64,
    sample_seconds: f64,
}

impl DecodeRate {
    /// Notes a reading of the server's load at `now`.
    pub(super) fn read(&mut self, load: &EngineLoad, now: Instant) {
        let Some(tokens) = load.generation_tokens_total else { return };
        let Some((at, before)) = self.last.replace((now, tokens)) else { return };
        // A count that falls belongs to a new process. A server without samples shows no speed.
        let Some(generated) = tokens.checked_sub(before).filter(|_| load.running > 0) else { return };
        let sample_seconds = (now - at).as_secs_f64() * load.running as f64;
        self.tokens = self.tokens * COUNT_MEMORY + generated as f64;
        self.sample_seconds = self.sample_seconds * COUNT_MEMORY + sample_seconds;
    }

    /// Tokens a second of one running sample; `None` before the first two readings of a busy server.
    pub(super) fn get(&self) -> Option<f64> {
        (self.sample_seconds > 0.0).then(|| self.tokens / self.sample_seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_token_count_shows_the_speed_of_one_sample_but_not_across_processes() {
        let mut rate = DecodeRate::default();
        let began = Instant::now();
        let load = |running: u64, tokens: u64| EngineLoad {
            running,
            generation_tokens_total: Some(tokens),
            ..EngineLoad::default()
        };
        let at = |second: u64| began + Duration::from_secs(second);
        rate.read(&load(4, 1_000), at(0));
        assert_eq!(rate.get(), None, "one reading is no speed");
        rate.read(&load(4, 1_080), at(1));
        assert_eq!(rate.get(), Some(20.0));
        rate.read(&load(0, 1_080), at(2));
        assert_eq!(rate.get(), Some(20.0), "an idle server is not slow");
        rate.read(&load(4, 10), at(3));
        assert_eq!(rate.get(), Some(20.0), "the count of another process");
        for second in 4..40 {
            rate.read(&load(4, 10), at(second));
        }
        assert!(rate.get().is_some_and(|rate| rate < 0.1), "{rate:?}");
    }
}
