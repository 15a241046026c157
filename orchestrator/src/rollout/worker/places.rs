//! The places of a worker: they decide whether the worker may start another group (`rollout.fill`).
//!
//! Long samples keep a group running although most of its samples have ended. If a worker counted groups only, half of
//! its samples would be in flight on average. So a group gives back the place of each sample as soon as the sample has
//! ended, and a new group starts when there are places for all of its samples.
//!
//! # Invariants
//! - The samples in flight are the unfinished samples of the running groups: each [`Taken`] gives back exactly the places
//!   that it took, also if its group is dropped.
//! - A worker has at most `max_concurrent_prompts` x `samples_per_prompt` samples in flight, in at most
//!   [`GROUPS_MAX_FACTOR`] x `max_concurrent_prompts` groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::rollout::Fill;

/// The maximum number of running groups, as a multiple of `max_concurrent_prompts`, if samples are counted.
const GROUPS_MAX_FACTOR: usize = 2;

/// The places of one worker.
#[derive(Debug)]
pub(super) struct Places {
    groups_max: usize,
    /// Maximum number of samples in flight.
    samples_max: usize,
    samples_per_group: usize,
    in_flight: AtomicUsize,
    freed: Notify,
}

impl Places {
    /// The places of a worker with `max_concurrent_prompts = groups`.
    pub(super) fn new(fill: Fill, groups: usize, samples_per_group: usize) -> Self {
        let (groups_max, samples_max) = match fill {
            Fill::Groups => (groups, usize::MAX),
            Fill::Samples => {
                (groups.saturating_mul(GROUPS_MAX_FACTOR), groups.saturating_mul(samples_per_group))
            }
        };
        let (in_flight, freed) = (AtomicUsize::new(0), Notify::new());
        Self { groups_max, samples_max, samples_per_group, in_flight, freed }
    }

    /// Whether another group may start beside `running` groups.
    pub(super) fn have_room(&self, running: usize) -> bool {
        running < self.groups_max && self.fits(self.in_flight.load(Ordering::Acquire))
    }

    /// Whether all samples of a group fit beside `in_flight` samples.
    fn fits(&self, in_flight: usize) -> bool {
        in_flight.saturating_add(self.samples_per_group) <= self.samples_max
    }

    /// Takes places for `samples` samples of a group.
    pub(super) fn take(self: &Arc<Self>, samples: usize) -> Taken {
        self.in_flight.fetch_add(samples, Ordering::AcqRel);
        Taken { places: Arc::clone(self), left: AtomicUsize::new(samples) }
    }

    /// Completes when samples have ended and a whole group fits again. Cancel-safe: the next call completes at once if
    /// this one is dropped.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn give_back(&self, samples: usize) {
        let before = self.in_flight.fetch_sub(samples, Ordering::AcqRel);
        if !self.fits(before) && self.fits(before.saturating_sub(samples)) {
            self.freed.notify_one();
        }
    }
}

/// The places of a running group.
#[derive(Debug)]
pub(super) struct Taken {
    places: Arc<Places>,
    left: AtomicUsize,
}

impl Taken {
    /// Gives back the places of samples that have ended, with whatever result.
    pub(super) fn ended(&self, samples: u32) {
        let samples = samples as usize;
        let taken =
            self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(samples));
        debug_assert!(taken.is_ok(), "more samples have ended than were taken");
        if taken.is_ok() {
            self.places.give_back(samples);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.give_back(*self.left.get_mut());
    }
}

#[cfg(test)]
mod tests;
