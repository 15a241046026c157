//! The measured speed at which a server decodes one sample. There are two measurements: [`Speed`] uses the
//! server's answers, and [`DecodeRate`] uses the server's own count of tokens.

use tokio::time::Instant;

use crate::EngineLoad;
use crate::snapshot::Pace;

/// Factor on the earlier measurements at each new measurement.
const SPEED_MEMORY: f64 = 0.95;

/// Factor on the earlier readings of a server's count at each new reading.
const COUNT_MEMORY: f64 = 0.8;

/// Time in which the weight of a reading in the fitted line ([`Decoding`]) falls to 1/e, in seconds. A cache
/// fills and empties once in a step of a rollout.
const LINE_MEMORY_S: f64 = 300.0;
/// The weight of the prior assumption that the use of the cache makes no difference. It is added to the
/// variance of the share in use.
const PRIOR_VARIANCE: f64 = 0.005;
/// The least variance of the share in use that shows a slope. Readings with less variance show only the noise
/// of the machine: a real server with a small model used 0.1 % of its cache.
const VARIANCE_MIN: f64 = 0.005;
/// The least time per token with an empty cache, relative to the mean time.
const EMPTY_MIN: f64 = 0.2;
/// Factor on the earlier deviations at each new reading.
const DEVIATION_MEMORY: f64 = 0.95;
/// The deviation that is assumed before the first reading.
const DEVIATION_ASSUMED: f64 = 0.5;
/// The largest deviation that counts, so that a server that stops does not look uncertain for long.
const DEVIATION_MAX: f64 = 1.0;

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
///
/// A server that is less full decodes faster. By how much is measured too ([`Decoding`]).
#[derive(Debug, Default)]
pub(super) struct DecodeRate {
    last: Option<(Instant, EngineLoad)>,
    readings: u64,
    tokens: f64,
    sample_seconds: f64,
    decoding: Decoding,
}

impl DecodeRate {
    /// Notes a reading of the server's load at `now`.
    pub(super) fn read(&mut self, load: &EngineLoad, now: Instant) {
        let Some(tokens) = load.generation_tokens_total else { return };
        self.readings += 1;
        let Some((at, before)) = self.last.replace((now, load.clone())) else { return };
        // A pause is not slowness.
        if before.paused == Some(true) || load.paused == Some(true) {
            return;
        }
        // A count that falls belongs to a new process. A server without samples shows no speed.
        let generated = before.generation_tokens_total.and_then(|before| tokens.checked_sub(before));
        let Some(generated) = generated.filter(|_| load.running > 0) else { return };
        let (generated, seconds) = (generated as f64, (now - at).as_secs_f64());
        self.tokens = self.tokens * COUNT_MEMORY + generated;
        self.sample_seconds = self.sample_seconds * COUNT_MEMORY + seconds * load.running as f64;
        // A server that begins samples also computes their prompts.
        if load.running <= before.running {
            let running = (before.running + load.running) as f64 / 2.0;
            let usage = (before.kv_cache_share() + load.kv_cache_share()) / 2.0;
            self.decoding.read(usage, generated, running * seconds, seconds);
        }
    }

    /// Tokens a second of one running sample; `None` before the first two readings of a busy server.
    pub(super) fn get(&self) -> Option<f64> {
        (self.sample_seconds > 0.0).then(|| self.tokens / self.sample_seconds)
    }

    /// The share of the cache in use at the last reading.
    pub(super) fn kv_cache_usage(&self) -> f64 {
        self.last.as_ref().map_or(0.0, |(_, load)| load.kv_cache_share())
    }

    /// The number of requests that waited on the engine at the last reading.
    pub(super) fn waiting(&self) -> u64 {
        self.last.as_ref().map_or(0, |(_, load)| load.waiting)
    }

    /// Number of readings.
    pub(super) fn readings(&self) -> u64 {
        self.readings
    }

    /// The pace of the server; `None` before it was seen to decode.
    pub(super) fn pace(&self) -> Option<Pace> {
        self.decoding.pace()
    }
}

/// The time per token of a sample while a server only decodes.
///
/// A decoding step reads the weights once and the caches of all samples, so its time is linear in the tokens
/// that the cache holds. The line is fitted by least squares over minutes. Its height follows the last
/// readings, because a server can get slow.
#[derive(Debug, Default)]
struct Decoding {
    /// Tokens, the seconds of their samples, and the sum over tokens of the share of the cache in use,
    /// weighted towards recent readings.
    tokens: f64,
    sample_seconds: f64,
    token_usage: f64,
    /// Sums over time of weights, shares, times per token, squared shares, and products of shares and times.
    weight: f64,
    usage: f64,
    time: f64,
    usage_squared: f64,
    product: f64,
    deviations: Deviations,
}

/// How far the readings were from the pace that was known before them.
#[derive(Debug)]
struct Deviations {
    weight: f64,
    squared: f64,
}

impl Default for Deviations {
    fn default() -> Self {
        Self { weight: 1.0, squared: DEVIATION_ASSUMED.powi(2) }
    }
}

impl Deviations {
    /// Notes the logarithm of a measured by an expected time.
    fn read(&mut self, deviation: f64) {
        let deviation = deviation.clamp(-DEVIATION_MAX, DEVIATION_MAX);
        self.weight = self.weight * DEVIATION_MEMORY + 1.0;
        self.squared = self.squared * DEVIATION_MEMORY + deviation * deviation;
    }

    fn root_mean_square(&self) -> f64 {
        (self.squared / self.weight).sqrt()
    }
}

impl Decoding {
    fn read(&mut self, usage: f64, generated: f64, sample_seconds: f64, elapsed: f64) {
        if let Some(expected) = self.pace().map(|pace| pace.at(usage)).filter(|_| sample_seconds > 0.0) {
            // Infinite if the server has generated nothing.
            self.deviations.read((sample_seconds / generated / expected).ln());
        }
        self.tokens = self.tokens * COUNT_MEMORY + generated;
        self.sample_seconds = self.sample_seconds * COUNT_MEMORY + sample_seconds;
        self.token_usage = self.token_usage * COUNT_MEMORY + generated * usage;
        if generated <= 0.0 {
            return;
        }
        let kept = (-elapsed / LINE_MEMORY_S).exp();
        let weight = elapsed.min(EngineLoad::COUNTS_S_MAX);
        let time = sample_seconds / generated;
        let add = |sum: &mut f64, value: f64| *sum = *sum * kept + weight * value;
        add(&mut self.weight, 1.0);
        add(&mut self.usage, usage);
        add(&mut self.time, time);
        add(&mut self.usage_squared, usage * usage);
        add(&mut self.product, usage * time);
    }

    fn pace(&self) -> Option<Pace> {
        if self.tokens <= 0.0 || self.sample_seconds <= 0.0 {
            return None;
        }
        let (seconds, usage) = (self.sample_seconds / self.tokens, self.token_usage / self.tokens);
        let growth = self.growth();
        let empty_s = seconds / (1.0 + growth * usage);
        let error = self.deviations.root_mean_square();
        Some(Pace { empty_s, full_s: empty_s * (1.0 + growth), error })
    }

    /// The time that a full cache adds to a token, divided by the time with an empty cache.
    fn growth(&self) -> f64 {
        if self.weight <= 0.0 {
            return 0.0;
        }
        let mean = |sum: f64| sum / self.weight;
        let (usage, time) = (mean(self.usage), mean(self.time));
        let variance = (mean(self.usage_squared) - usage * usage).max(0.0);
        if variance < VARIANCE_MIN {
            return 0.0;
        }
        let covariance = mean(self.product) - usage * time;
        let slope = (covariance / (variance + PRIOR_VARIANCE)).max(0.0);
        let empty = (time - slope * usage).max(time * EMPTY_MIN);
        if empty > 0.0 { slope / empty } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(running: u64, tokens: u64, kv_cache_usage: f64) -> EngineLoad {
        EngineLoad { running, generation_tokens_total: Some(tokens), kv_cache_usage, ..EngineLoad::default() }
    }

    /// A server of 10 samples that reads its weights in `empty_ms` per token, and a full cache in `cache_ms`.
    /// It is read once a second, with the shares of the cache that `usages` yields.
    fn read_at(empty_ms: f64, cache_ms: f64, usages: impl Iterator<Item = f64>) -> DecodeRate {
        let (mut rate, mut tokens, began) = (DecodeRate::default(), 0.0, Instant::now());
        let mut before = None;
        for (second, usage) in (0..).zip(usages) {
            let between = (before.replace(usage).unwrap_or(usage) + usage) / 2.0;
            tokens += 10.0 * 1e3 / (empty_ms + cache_ms * between);
            rate.read(&reading(10, tokens as u64, usage), began + Duration::from_secs(second));
        }
        rate
    }

    #[test]
    fn a_cache_that_empties_shows_the_time_with_an_empty_and_with_a_full_cache() {
        let falls = (0..60).map(|second| 0.9 - f64::from(second) * 0.01);
        let pace = read_at(6.0, 7.0, falls).pace().unwrap();
        assert!((pace.empty_s - 0.006).abs() < 0.0007, "{pace:?}");
        assert!((pace.full_s - 0.013).abs() < 0.001, "{pace:?}");
        assert!((pace.at(0.5) - 0.0095).abs() < 0.0005, "{pace:?}");
    }

    /// The error of the pace after a minute, if the times per token are `times` of the usual one in turn.
    fn error_after(times: [f64; 4]) -> f64 {
        let (mut rate, mut tokens, began) = (DecodeRate::default(), 0.0, Instant::now());
        for (second, slower) in (0..60).zip(times.iter().cycle()) {
            tokens += 1e4 / slower;
            rate.read(&reading(10, tokens as u64, 0.3), began + Duration::from_secs(second));
        }
        rate.pace().unwrap().error
    }

    #[test]
    fn a_pace_is_as_uncertain_as_its_readings() {
        let (steady, noisy) = (error_after([1.0; 4]), error_after([0.5, 1.0, 1.0, 2.0]));
        // What is left of the deviation that was assumed at the beginning.
        assert!(steady < 0.05, "{steady}");
        // The root mean square of the logarithms is 0.49, if the mean is the usual time.
        assert!((0.4..0.65).contains(&noisy), "{noisy}");
    }

    #[test]
    fn a_server_that_stops_is_slow_and_not_only_uncertain() {
        let mut rate = read_at(6.0, 7.0, std::iter::repeat_n(0.3, 60));
        let before = rate.pace().unwrap();
        let (at, load) = rate.last.clone().unwrap();
        for second in 1..=20 {
            rate.read(&load, at + Duration::from_secs(second));
        }
        let after = rate.pace().unwrap();
        assert!(after.at(0.3) > 20.0 * before.at(0.3), "{before:?} {after:?}");
        assert!(after.error <= DEVIATION_MAX && after.error > 0.5, "{after:?}");
    }

    #[test]
    fn a_cache_that_stays_as_full_as_it_is_shows_no_difference() {
        let pace = read_at(6.0, 7.0, std::iter::repeat_n(0.9, 60)).pace().unwrap();
        assert!((pace.full_s / pace.empty_s - 1.0).abs() < 1e-3, "{pace:?}");
        assert!((pace.at(0.2) - 0.0123).abs() < 0.0002, "{pace:?}");
    }

    #[test]
    fn a_cache_that_is_nearly_empty_shows_no_difference() {
        // The samples grow a little, and the server happens to get slower at the same time.
        let rises = (0..60).map(|second| 0.01 + f64::from(second) * 0.001);
        let pace = read_at(6.0, 60.0, rises).pace().unwrap();
        assert!((pace.full_s / pace.empty_s - 1.0).abs() < 1e-9, "{pace:?}");
    }

    #[test]
    fn a_server_that_gets_slower_is_slower_at_every_use_of_its_cache() {
        let falls = || (0..60).map(|second| 0.9 - f64::from(second) * 0.01);
        let mut rate = read_at(6.0, 7.0, falls());
        let before = rate.pace().unwrap();
        let (at, load) = rate.last.clone().unwrap();
        let mut tokens = load.generation_tokens_total.unwrap();
        for second in 1..=20 {
            // Less than a tenth of the speed.
            tokens += 10 * 10;
            rate.read(&reading(10, tokens, 0.3), at + Duration::from_secs(second));
        }
        let after = rate.pace().unwrap();
        assert!(after.at(0.3) > 6.0 * before.at(0.3), "{before:?} {after:?}");
        assert!(after.at(0.0) > 4.0 * before.at(0.0), "{before:?} {after:?}");
        assert!(after.full_s > 3.0 * before.full_s, "{before:?} {after:?}");
    }

    #[test]
    fn the_token_count_shows_the_speed_of_one_sample_but_not_across_processes() {
        let mut rate = DecodeRate::default();
        let began = Instant::now();
        let load = |running: u64, tokens: u64| reading(running, tokens, 0.0);
        let at = |second: u64| began + Duration::from_secs(second);
        rate.read(&load(4, 1_000), at(0));
        assert_eq!(rate.get(), None, "one reading is no speed");
        rate.read(&load(4, 1_080), at(1));
        assert_eq!(rate.get(), Some(20.0));
        rate.read(&load(0, 1_080), at(2));
        assert_eq!(rate.get(), Some(20.0), "an idle server is not slow");
        rate.read(&load(4, 10), at(3));
        assert_eq!(rate.get(), Some(20.0), "the count of another process");
        rate.read(&EngineLoad { paused: Some(true), ..load(4, 10) }, at(4));
        rate.read(&load(4, 10), at(60));
        assert_eq!(rate.get(), Some(20.0), "a paused server is not slow");
        for second in 61..100 {
            rate.read(&load(4, 10), at(second));
        }
        assert!(rate.get().is_some_and(|rate| rate < 0.1), "{rate:?}");
    }
}
