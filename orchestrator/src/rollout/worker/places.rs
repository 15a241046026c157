//! The places of a worker: they decide whether the worker may start another group (`rollout.fill`).
//!
//! Long samples keep a group running although most of its samples have ended. If a worker counted groups only, half of
//! its samples would be in flight on average. So a group gives back the place of each sample as soon as the sample has
//! ended. A further group starts when there are places for all of its samples, and when the fleet is not full. On full
//! servers it would only take places from the earlier groups, which a step in dispatch order needs first.
//!
//! # Invariants
//! - The samples in flight are the unfinished samples of the running groups: each [`Taken`] gives back exactly the places
//!   that it took, also if its group is dropped.
//! - A worker has at most `max_concurrent_prompts` x `samples_per_prompt` samples in flight, in at most
//!   [`GROUPS_MAX_FACTOR`] x `max_concurrent_prompts` groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::rollout::Fill;

/// The maximum number of running groups, as a multiple of `max_concurrent_prompts`, if samples are counted.
const GROUPS_MAX_FACTOR: usize = 2;

/// Whether a worker may start another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It may.
    Free,
    /// It has as many groups, or as many samples in flight, as the recipe allows.
    NoPlaces,
    /// It has places for a further group, and the fleet is full.
    FullFleet,
}

/// The number of workers that may start no group, by reason.
#[derive(Debug, Default)]
pub(crate) struct HeldWorkers {
    no_places: AtomicUsize,
    full_fleet: AtomicUsize,
}

impl HeldWorkers {
    /// The workers that have as many groups or samples as the recipe allows.
    pub(crate) fn by_places(&self) -> usize {
        self.no_places.load(Ordering::Relaxed)
    }

    /// The workers that start no further group because the fleet is full.
    pub(crate) fn by_fleet(&self) -> usize {
        self.full_fleet.load(Ordering::Relaxed)
    }

    fn of(&self, room: Room) -> Option<&AtomicUsize> {
        match room {
            Room::Free => None,
            Room::NoPlaces => Some(&self.no_places),
            Room::FullFleet => Some(&self.full_fleet),
        }
    }
}

/// One worker's part of the [`HeldWorkers`]. When it is dropped, the worker counts no longer.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    held: &'a HeldWorkers,
    room: Room,
}

impl<'a> Counted<'a> {
    pub(super) fn new(held: &'a HeldWorkers) -> Self {
        Self { held, room: Room::Free }
    }

    /// Notes the worker's room. Returns whether the worker may start another group.
    pub(super) fn note(&mut self, room: Room) -> bool {
        if room != self.room {
            if let Some(before) = self.held.of(std::mem::replace(&mut self.room, room)) {
                before.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(now) = self.held.of(room) {
                now.fetch_add(1, Ordering::Relaxed);
            }
        }
        room == Room::Free
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.note(Room::Free);
    }
}

/// The time after which a worker looks again whether the fleet is still full.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The places of one worker.
#[derive(Debug)]
pub(super) struct Places {
    fill: Fill,
    /// `max_concurrent_prompts`.
    groups: usize,
    samples_per_group: usize,
    in_flight: AtomicUsize,
    /// Whether the worker waits until the fleet is not full any more.
    awaits_fleet: AtomicBool,
    freed: Notify,
}

impl Places {
    pub(super) fn new(fill: Fill, groups: usize, samples_per_group: usize) -> Self {
        Self {
            fill,
            groups,
            samples_per_group,
            in_flight: AtomicUsize::new(0),
            awaits_fleet: AtomicBool::new(false),
            freed: Notify::new(),
        }
    }

    /// The room for another group beside `running` groups. `is_fleet_full` tells whether a further request would wait.
    pub(super) fn room(&self, running: usize, is_fleet_full: impl FnOnce() -> bool) -> Room {
        let is_further = running >= self.groups;
        let room = if is_further && !self.allows_further(running) {
            Room::NoPlaces
        } else if is_further && is_fleet_full() {
            Room::FullFleet
        } else {
            Room::Free
        };
        self.awaits_fleet.store(room == Room::FullFleet, Ordering::Release);
        room
    }

    /// Whether the worker may start a group beyond `max_concurrent_prompts`.
    fn allows_further(&self, running: usize) -> bool {
        self.fill == Fill::Samples
            && running < self.groups.saturating_mul(GROUPS_MAX_FACTOR)
            && self.fits(self.in_flight.load(Ordering::Acquire))
    }

    /// Whether all samples of a group fit beside `in_flight` samples.
    fn fits(&self, in_flight: usize) -> bool {
        let samples_max = self.groups.saturating_mul(self.samples_per_group);
        in_flight.saturating_add(self.samples_per_group) <= samples_max
    }

    /// Takes places for `samples` samples of a group.
    pub(super) fn take(self: &Arc<Self>, samples: usize) -> Taken {
        self.in_flight.fetch_add(samples, Ordering::AcqRel);
        Taken { places: Arc::clone(self), left: AtomicUsize::new(samples) }
    }

    /// Completes when another group may have room: when samples have ended, or while the worker waits for a full fleet, from
    /// time to time. Cancel-safe: if the call is dropped after samples have ended, the next call completes at once.
    pub(super) async fn may_have_room(&self) {
        if !self.awaits_fleet.load(Ordering::Acquire) {
            return self.freed.notified().await;
        }
        // A fleet gets room in many ways of which the worker is not told, as when a server joins.
        let _ = tokio::time::timeout(LOOK_AGAIN, self.freed.notified()).await;
    }

    fn give_back(&self, samples: usize) {
        let before = self.in_flight.fetch_sub(samples, Ordering::AcqRel);
        if self.fill == Fill::Groups || !self.fits(before.saturating_sub(samples)) {
            return;
        }
        let did_not_fit = !self.fits(before);
        // Each sample that ends may have been the last one for which others waited.
        if self.awaits_fleet.swap(false, Ordering::AcqRel) || did_not_fit {
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
