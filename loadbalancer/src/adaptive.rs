//! Measures how many samples the KV cache of a server can hold.
//!
//! A vLLM server takes samples as long as a block of its cache is free. As the samples grow, the blocks run
//! out. The server then preempts the latest samples, and computes their tokens again later. With more samples
//! than the cache holds, a server therefore does some work several times. With fewer samples, the server
//! generates fewer tokens for each time that it reads its weights.
//!
//! # The capacity
//! At every look of the monitor, a server reports the number of its running samples and the share of the
//! cache that these samples use. Both numbers are summed over time. The summed shares, divided by the summed
//! numbers of samples, are the mean share that a sample uses from its beginning to its end.
//!
//! The inverse of this mean share is the number of samples that fill the cache if they are of every age. All
//! samples of a step begin together, however: the young ones use little of the cache, and later only long
//! samples are left. Therefore a sample counts with a fifth of the mean share ([`EXPECTED`]), and with four
//! fifths of what it uses now. A server gets samples as long as the sum over its samples is below
//! [`AdaptiveConfig::kv_usage_max`].
//!
//! The capacity rises towards this limit by a few places per look, as long as the server is nearly full. It
//! falls to the limit at once.
//!
//! A server may also run fewer samples than its cache can hold (`max_num_seqs`). In that case, requests wait
//! although the cache is not full, and the number of running samples does not rise. Then the capacity is
//! multiplied by a factor below 1 (additive increase, multiplicative decrease, as in Chiu and Jain, 1989).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::EngineLoad;

/// The bounds and steps of capacities that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveConfig {
    /// Capacity that a server starts with.
    pub start: u32,
    /// Capacity of a server that reports no load.
    pub unreported: u32,
    /// Smallest capacity.
    pub min: u32,
    /// Largest capacity.
    pub max: u32,
    /// Maximum number of places that each look of the monitor adds to a server that is nearly full.
    pub increase: u32,
    /// Factor on the capacity of a server that lacks places.
    pub decrease: f64,
    /// Share of the KV cache, in use or expected to be used, at which a server gets no further samples.
    pub kv_usage_max: f64,
    /// If requests wait on a server whose cache is used less than this, the server lacks places.
    pub kv_usage_high: f64,
    /// Shortest time between two decreases, in milliseconds. A decrease takes effect only after running
    /// requests have ended.
    pub settle_ms: u64,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self {
            start: 64,
            unreported: 256,
            min: 16,
            max: 1024,
            increase: 16,
            decrease: 0.75,
            kv_usage_max: 0.92,
            kv_usage_high: 0.85,
            settle_ms: 5_000,
        }
    }
}

/// Weight of a sample's expected use of the cache, as opposed to its present use. With a greater weight, a part
/// of the cache stays empty. With a smaller one, the cache overflows while samples of equal age grow.
const EXPECTED: f64 = 0.2;
/// Share of a server's places that must be taken before its capacity is raised. Only a server that is nearly
/// full shows whether it copes with its capacity.
const NEARLY_FULL: f64 = 0.9;
/// Time in which the weight of a measurement falls to 1/e. It is a few times as long as a sample runs, so
/// that samples of every age count. It is short compared with the time in which training changes the length
/// of the answers.
const MEMORY_S: f64 = 300.0;

/// The measurements of one server.
#[derive(Debug, Default)]
pub(crate) struct Adaptive {
    /// The share of the cache in use and the number of running samples, each summed over time.
    used: f64,
    running: f64,
    /// The number of running samples at the last look.
    ran: u64,
    looked_at: Option<Instant>,
    settled_at: Option<Instant>,
}

impl Adaptive {
    /// The capacity that a server should have after a look, given its present `capacity`. `in_use` is the
    /// number of our samples on it. The other samples on the server belong to other clients, and also use its
    /// cache.
    pub(crate) fn next(
        &mut self,
        config: &AdaptiveConfig,
        capacity: u32,
        in_use: u32,
        load: &EngineLoad,
        now: Instant,
    ) -> u32 {
        self.measure(load, now);
        let limit = self.limit(config, in_use, load);
        // While new requests wait for their prefill, the number of running samples rises.
        let is_rising = load.running > std::mem::replace(&mut self.ran, load.running);
        if load.waiting > 0 && !is_rising && load.kv_cache_usage < config.kv_usage_high {
            if self.settled_at.is_some_and(|settled| now < settled) {
                return capacity.min(limit);
            }
            self.settled_at = Some(now + Duration::from_millis(config.settle_ms));
            // The decrease is computed from the places that are taken. Free places cause no load.
            let from = f64::from(capacity.min(in_use.max(config.min)));
            return ((from * config.decrease) as u32).max(config.min).min(limit);
        }
        let is_nearly_full = f64::from(in_use) >= f64::from(capacity) * NEARLY_FULL;
        let most = if is_nearly_full { capacity.saturating_add(config.increase) } else { capacity };
        most.min(limit)
    }

    /// The number of our samples with which the present and expected use of the cache reach the bound.
    fn limit(&self, config: &AdaptiveConfig, in_use: u32, load: &EngineLoad) -> u32 {
        if self.used <= 0.0 || self.running <= 0.0 {
            return config.max;
        }
        let expected = EXPECTED * self.used / self.running;
        let samples = load.running.saturating_add(load.waiting).max(u64::from(in_use));
        let counted = (1.0 - EXPECTED) * load.kv_cache_usage + samples as f64 * expected;
        let further = ((config.kv_usage_max - counted) / expected).round();
        // The conversion saturates.
        ((f64::from(in_use) + further) as u32).clamp(config.min, config.max)
    }

    fn measure(&mut self, load: &EngineLoad, now: Instant) {
        let before = self.looked_at.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(before).as_secs_f64();
        let kept = (-elapsed / MEMORY_S).exp();
        let usage = load.kv_cache_share();
        self.used = self.used * kept + usage * elapsed.min(EngineLoad::COUNTS_S_MAX);
        self.running = self.running * kept + load.running as f64 * elapsed.min(EngineLoad::COUNTS_S_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with a cache of 1,000 tokens, whose samples grow by one token a second.
    struct Server {
        places: u64,
        begun: u64,
        /// The present and the final number of tokens of each sample.
        samples: Vec<(u64, u64)>,
        waiting: u64,
    }

    impl Server {
        const CACHE: u64 = 1_000;

        fn used(&self) -> u64 {
            self.samples.iter().map(|(tokens, _)| tokens).sum()
        }

        fn load(&self) -> EngineLoad {
            EngineLoad {
                running: self.samples.len() as u64,
                waiting: self.waiting,
                kv_cache_usage: self.used() as f64 / Self::CACHE as f64,
                ..EngineLoad::default()
            }
        }

        /// Simulates one second in which the client has as many samples on the server as `capacity` allows.
        /// Their lengths are 1 to 79 tokens. Returns the number of the samples.
        fn second(&mut self, capacity: u32) -> u32 {
            self.samples.iter_mut().for_each(|(tokens, _)| *tokens += 1);
            self.samples.retain(|(tokens, length)| tokens < length);
            while self.used() > Self::CACHE {
                self.samples.pop();
            }
            let in_use = u64::from(capacity).max(self.samples.len() as u64);
            while (self.samples.len() as u64) < in_use.min(self.places)
                && self.used() + (self.samples.len() as u64) < Self::CACHE
            {
                self.begun += 1;
                self.samples.push((1, 1 + self.begun * 37 % 79));
            }
            self.waiting = in_use - self.samples.len() as u64;
            in_use as u32
        }
    }

    /// Simulates a server with this number of places. Returns, for each second of the last minutes, its
    /// capacity, the share of its cache in use, and the share of its samples that wait.
    fn late(places: u64) -> Vec<(u32, f64, f64)> {
        let config = AdaptiveConfig { start: 4, min: 2, max: 500, increase: 2, ..AdaptiveConfig::default() };
        let (mut adaptive, mut capacity) = (Adaptive::default(), config.start);
        let mut server = Server { places, begun: 0, samples: Vec::new(), waiting: 0 };
        let now = Instant::now();
        let mut next = |second| {
            let in_use = server.second(capacity);
            let load = server.load();
            capacity = adaptive.next(&config, capacity, in_use, &load, now + Duration::from_secs(second));
            (capacity, load.kv_cache_usage, load.waiting as f64 / f64::from(in_use))
        };
        (0..900).map(&mut next).skip(600).collect()
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        values.sum::<f64>() / count
    }

    #[tokio::test(start_paused = true)]
    async fn the_cache_is_kept_nearly_full_and_samples_hardly_wait() {
        let seen = late(400);
        let used = mean(seen.iter().map(|(_, used, _)| *used));
        let waits = mean(seen.iter().map(|(_, _, waits)| *waits));
        assert!(used > 0.85 && waits < 0.02, "{used} of the cache is used, {waits} of the samples wait");
        // A sample holds 26.7 tokens on average while it runs, so 37 samples fill the cache.
        assert!(seen.iter().all(|(capacity, ..)| (15..=60).contains(capacity)), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_lacks_places_gets_about_as_many_samples_as_it_runs() {
        let seen = late(12);
        assert!(seen.iter().all(|(capacity, ..)| (9..=16).contains(capacity)), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn other_clients_and_the_bounds_take_their_part() {
        let config = AdaptiveConfig {
            start: 8,
            min: 4,
            max: 100,
            increase: 10,
            kv_usage_max: 0.9,
            ..AdaptiveConfig::default()
        };
        let mut adaptive = Adaptive::default();
        let now = Instant::now();
        let mut next = |capacity, in_use, running, kv_cache_usage, seconds| {
            let load = EngineLoad { running, kv_cache_usage, ..EngineLoad::default() };
            adaptive.next(&config, capacity, in_use, &load, now + Duration::from_secs(seconds))
        };
        assert_eq!(next(40, 20, 20, 0.2, 0), 40, "the server is not nearly full");
        assert_eq!(next(40, 40, 40, 0.4, 1), 50);
        assert_eq!(next(50, 50, 50, 0.5, 2), 60);
        assert_eq!(next(90, 90, 90, 0.9, 3), 90, "the cache is full");
        assert_eq!(next(95, 10, 90, 0.85, 4), 32, "22 fit, beside 80 of other clients");
        assert_eq!(next(95, 0, 200, 1.0, 5), 4, "the capacity is at least `min`");
        assert_eq!(next(100, 100, 100, 0.0, 9), 100, "the capacity is at most `max`");
    }
}
