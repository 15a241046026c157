//! The bounds that all threads of a proxy share.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Price of a replay. Every request earns a tenth of this price.
const REPLAY: u32 = 10;
const EARNED: u32 = 1;
/// Maximum number of replays that the budget can pay for. The budget begins full.
const BURST: u32 = 100;

/// The budget for replays (requests that are sent again). The budget allows replays for a tenth of all
/// requests, plus [`BURST`] replays. Without this limit, replays could triple the load of a fleet in trouble.
/// The budget is a token bucket, as in Google's SRE book, "Handling Overload".
#[derive(Debug)]
pub(super) struct ReplayBudget(AtomicU32);

impl Default for ReplayBudget {
    fn default() -> Self {
        Self(AtomicU32::new(BURST * REPLAY))
    }
}

impl ReplayBudget {
    /// Adds the share of a new request to the budget.
    pub(super) fn earn(&self) {
        // The budget is nearly always full. While it is full, no thread writes the cache line that all
        // threads read.
        if self.0.load(Ordering::Relaxed) < BURST * REPLAY {
            self.0.fetch_add(EARNED, Ordering::Relaxed);
        }
    }

    /// Takes the price of a replay from the budget. Returns false if the budget is too low.
    pub(super) fn spend(&self) -> bool {
        let spent =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(REPLAY));
        spent.is_ok()
    }
}

/// Counts the bytes of all requests that the proxy holds.
#[derive(Debug)]
pub(super) struct Buffered {
    bytes: AtomicUsize,
    bytes_max: usize,
}

/// The number of bytes held for one request. Dropping this value releases them.
#[derive(Debug)]
pub(super) struct Held<'a> {
    of: &'a Buffered,
    bytes: usize,
}

impl Buffered {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    pub(super) fn hold(&self) -> Held<'_> {
        Held { of: self, bytes: 0 }
    }
}

impl Held<'_> {
    /// Counts `bytes` more bytes. Returns whether the bound still holds.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let before = self.of.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        before.saturating_add(bytes) <= self.of.bytes_max
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_a_tenth_of_the_requests_after_the_first_few() {
        let budget = ReplayBudget::default();
        assert_eq!((0..1000).filter(|_| budget.spend()).count(), BURST as usize);
        (0..1000).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.spend()).count(), 100);
        (0..10_000).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.spend()).count(), BURST as usize, "no more are saved up");
    }

    #[test]
    fn buffered_bytes_are_counted_over_all_requests_and_released() {
        let buffered = Buffered::new(100);
        let mut first = buffered.hold();
        assert!(first.grow(60) && first.grow(40));
        let mut second = buffered.hold();
        assert!(!second.grow(1));
        drop((first, second));
        assert!(buffered.hold().grow(100));
    }
}
