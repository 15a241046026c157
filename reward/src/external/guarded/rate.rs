//! A token bucket on tokio's clock.
//!
//! The state of the bucket is the instant at which it will be full again (the generic cell rate algorithm of
//! ATM networks). Waiters form a fair queue, and only the first of them sleeps. A waiter that is cancelled
//! consumes no token.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

/// The time in seconds whose tokens the bucket can hold. The bucket holds at least one token. Timers have a
/// resolution of 1 ms, so high rates need a capacity of several tokens.
const BUCKET_S: f64 = 0.1;
/// The longest interval between tokens: one day.
const INTERVAL_S_MAX: f64 = 86_400.0;
/// The shortest interval between tokens: the resolution of the clock.
const INTERVAL_S_MIN: f64 = 1e-9;

pub(super) struct RateLimit {
    interval: Duration,
    /// The time in which the bucket fills, less the time for one token.
    tolerance: Duration,
    first: Semaphore,
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// The limit is at least one token a day: a lower rate, or one that is not positive, is raised to it.
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
        // The semaphore is never closed.
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
