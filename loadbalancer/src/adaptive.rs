//! How many samples a server should have at a time, found by trying: a little more as long as it copes, much less when
//! it does not (additive increase, multiplicative decrease, as in Chiu and Jain, 1989).
//!
//! A vLLM server copes while nothing waits for a place, its KV cache has room and it preempts nobody: a preempted
//! sequence is computed again from its prompt, so a server that is asked for too much does less.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::EngineLoad;

/// See the fields.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveConfig {
    /// Places that a server starts with.
    pub start: u32,
    /// It has never fewer.
    pub min: u32,
    /// It has never more.
    pub max: u32,
    /// Places added at a look at a server that copes and is nearly full.
    pub increase: u32,
    /// What is left of its places when it does not cope.
    pub decrease: f64,
    /// Share of the KV cache above which it does not cope.
    pub kv_usage_max: f64,
    /// Share of the KV cache above which it gets no more places.
    pub kv_usage_high: f64,
    /// After a decrease there is none for so many milliseconds: what runs has to end before it shows.
    pub settle_ms: u64,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self {
            start: 64,
            min: 16,
            max: 1024,
            increase: 8,
            decrease: 0.75,
            kv_usage_max: 0.95,
            kv_usage_high: 0.85,
            settle_ms: 5_000,
        }
    }
}

/// Share of its places that must be taken for it to get more: what nobody asks for is not known to work.
const NEARLY_FULL: f64 = 0.9;

/// What is remembered of one server.
#[derive(Debug, Default)]
pub(crate) struct Adaptive {
    preemptions: Option<u64>,
    settled_at: Option<Instant>,
}

impl Adaptive {
    /// The places that a server with `capacity` of them should have, after a look at it.
    pub(crate) fn next(
        &mut self,
        config: &AdaptiveConfig,
        capacity: u32,
        in_use: u32,
        load: &EngineLoad,
        now: Instant,
    ) -> u32 {
        let before = std::mem::replace(&mut self.preemptions, load.preemptions_total);
        let has_preempted = before.is_some_and(|before| load.preemptions_total > Some(before));
        let copes = load.waiting == 0 && !has_preempted && load.kv_cache_usage < config.kv_usage_max;
        if !copes {
            if self.settled_at.is_some_and(|settled| now < settled) {
                return capacity;
            }
            self.settled_at = Some(now + Duration::from_millis(config.settle_ms));
            // From what it had, not from what it might have had.
            let from = f64::from(capacity.min(in_use.max(config.min)));
            return ((from * config.decrease) as u32).clamp(config.min, config.max);
        }
        let is_nearly_full = f64::from(in_use) >= f64::from(capacity) * NEARLY_FULL;
        if is_nearly_full && load.kv_cache_usage < config.kv_usage_high {
            return capacity.saturating_add(config.increase).clamp(config.min, config.max);
        }
        capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(waiting: u64, kv_cache_usage: f64, preemptions: u64) -> EngineLoad {
        EngineLoad { waiting, kv_cache_usage, preemptions_total: Some(preemptions), ..EngineLoad::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn it_grows_while_the_server_copes_and_shrinks_once_when_it_does_not() {
        let config = AdaptiveConfig { min: 4, max: 100, increase: 10, ..AdaptiveConfig::default() };
        let mut adaptive = Adaptive::default();
        let now = Instant::now();
        let mut next = |capacity, in_use, load, seconds| {
            adaptive.next(&config, capacity, in_use, &load, now + Duration::from_secs(seconds))
        };
        assert_eq!(next(40, 20, load(0, 0.2, 0), 0), 40, "nobody asks for more");
        assert_eq!(next(40, 40, load(0, 0.2, 0), 1), 50);
        assert_eq!(next(50, 50, load(0, 0.9, 0), 2), 50, "the cache is nearly full");
        assert_eq!(next(50, 50, load(0, 0.9, 3), 3), 37, "it has preempted");
        assert_eq!(next(37, 37, load(5, 0.99, 9), 4), 37, "what was taken away has to show first");
        assert_eq!(next(37, 37, load(5, 0.99, 9), 9), 27);
        assert_eq!(next(5, 5, load(5, 0.99, 9), 20), 4, "never fewer");
        assert_eq!(next(95, 95, load(0, 0.1, 9), 30), 100, "never more");
    }
}
