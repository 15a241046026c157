//! Simulated time, as a multiple of `tokio`'s time.

use std::time::Duration;

use tokio::time::Instant;

const PARTS: u128 = 1_000_000;

/// Counts the simulated nanoseconds since the clock's start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimClock {
    origin: Instant,
    /// Real time per simulated time, in millionths. As an integer it makes conversions exact.
    scale_parts: u128,
}

impl SimClock {
    /// Starts a clock. The configuration's check guarantees that `time_scale` is at least a millionth.
    pub(crate) fn start(time_scale: f64) -> Self {
        Self { origin: Instant::now(), scale_parts: ((time_scale * PARTS as f64).round() as u128).max(1) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        let real_ns = self.origin.elapsed().as_nanos();
        u64::try_from(real_ns * PARTS / self.scale_parts).unwrap_or(u64::MAX)
    }

    /// The first instant at which [`SimClock::now_ns`] has reached `sim_ns`.
    pub(crate) fn instant_of(&self, sim_ns: u64) -> Instant {
        let real_ns = (u128::from(sim_ns) * self.scale_parts).div_ceil(PARTS);
        // The limit is a century. A later instant may not be representable.
        let longest_ns = 3_155_760_000_000_000_000_u128;
        let wait_ns = u64::try_from(real_ns.min(longest_ns)).unwrap_or(u64::MAX);
        self.origin + Duration::from_nanos(wait_ns)
    }
}
