//! Finds a server's capacity by trying. The capacity rises by a few places as long as the server copes. When
//! the server does not cope, the capacity is multiplied by a factor below 1 (additive increase,
//! multiplicative decrease, as in Chiu and Jain, 1989).
//!
//! A vLLM server copes while no request waits to be scheduled, its KV cache has room and it preempts no
//! sequence. A preempted sequence is computed again from its prompt, so an overloaded server generates fewer
//! tokens.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::EngineLoad;

/// The bounds and steps of capacities that are found by trying.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveConfig {
    /// Capacity that a server starts with.
    pub start: u32,
    /// Smallest capacity.
    pub min: u32,
    /// Largest capacity.
    pub max: u32,
    /// Number of places that each look of the monitor adds to a server that copes and is nearly full.
    pub increase: u32,
    /// Factor on the capacity of a server that does not cope.
    pub decrease: f64,
    /// A server does not cope while at least this share of its KV cache is in use.
    pub kv_usage_max: f64,
    /// A server gets no more places while at least this share of its KV cache is in use.
    pub kv_usage_high: f64,
    /// Shortest time between two decreases, in milliseconds. A decrease takes effect only after running
    /// requests have ended.
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

/// Share of a server's places that must be taken before its capacity is raised. Only a server that is nearly
/// full shows whether it copes with its capacity.
const NEARLY_FULL: f64 = 0.9;

/// The state of one server between two looks.
#[derive(Debug, Default)]
pub(crate) struct Adaptive {
    preemptions: Option<u64>,
    settled_at: Option<Instant>,
}

impl Adaptive {
    /// The capacity that a server should have after a look, given its present `capacity`.
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
            // The decrease is computed from the places that are taken. Free places cause no load.
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
        assert_eq!(next(40, 20, load(0, 0.2, 0), 0), 40, "the server is not nearly full");
        assert_eq!(next(40, 40, load(0, 0.2, 0), 1), 50);
        assert_eq!(next(50, 50, load(0, 0.9, 0), 2), 50, "the cache is nearly full");
        assert_eq!(next(50, 50, load(0, 0.9, 3), 3), 37, "it has preempted");
        assert_eq!(next(37, 37, load(5, 0.99, 9), 4), 37, "the decrease has to take effect first");
        assert_eq!(next(37, 37, load(5, 0.99, 9), 9), 27);
        assert_eq!(next(5, 5, load(5, 0.99, 9), 20), 4, "the capacity is at least `min`");
        assert_eq!(next(95, 95, load(0, 0.1, 9), 30), 100, "the capacity is at most `max`");
    }
}
