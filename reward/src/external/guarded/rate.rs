//! A token bucket on tokio's clock.
//!
//! The bucket is one number, the instant at which it will be full again (the "generic cell rate algorithm" of
//! ATM networks). Waiters stand in a fair queue and only the first of them sleeps, so that one that gives up takes
//! no token with it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

/// The bucket holds this many seconds' worth of tokens, and one at least: timers have a grain of 1 ms, and without
/// a bucket a high rate could not be kept.
const BUCKET_S: f64 = 0.1;
/// Slower than one in a day is as good as never.
const INTERVAL_S_MAX: f64 = 86_400.0;
/// Faster than the clock can tell is as good as no limit.
const INTERVAL_S_MIN: f64 = 1e-9;

pub(super) struct RateLimit {
    interval: Duration,
    /// How long the bucket takes to fill, less one token.
    tolerance: Duration,
    first: Semaphore,
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// `per_second` is positive; where it is not, the limit is the slowest there is.
    pub(super) fn new(per_second: f64) -> Self {
        let interval_s = match per_second > 0.0 {
            true => per_second.recip().clamp(INTERVAL_S_MIN, INTERVAL_S_MAX),
            false => INTERVAL_S_MAX,
        };
        let tokens = (BUCKET_S / interval_s).floor().max(1.0);
        Self {
            interval: Duration::from_secs_f64(interval_s),
            tolerance: Duration::from_secs_f64(interval_s * (tokens - 1.0)),
            first: Semaphore::new(1),
            full_at: Mutex::new(None),
        }
    }

    /// Waits for a token and takes it. Cancel-safe: a token is taken only when the wait ends.
    pub(super) async fn turn(&self) {
        // The semaphore is never closed; if it were, nobody would be left to be slowed down.
        let Ok(_turn) = self.first.acquire().await else { return };
        while let Err(free_at) = self.try_take() {
            sleep_until(free_at).await;
        }
    }

    fn try_take(&self) -> Result<(), Instant> {
        let now = Instant::now();
        let mut stored = self.full_at.lock();
        let full_at = stored.map_or(now, |instant| instant.max(now));
        if full_at > now + self.tolerance {
            return Err(full_at - self.tolerance);
        }
        *stored = Some(full_at + self.interval);
        Ok(())
    }
}
