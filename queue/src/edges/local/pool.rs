//! The server's regions: lent, in use, idle, or freed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arrow_buffer::Buffer;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::mapped::{self, Mapping};

/// The minimum size of a region, in bytes.
const REGION_BYTES_MIN: usize = 1 << 20;

/// The numbers and sizes of a server's regions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Regions that contain a chunk or that a client uses.
    pub in_use: usize,
    /// The bytes of the regions in use.
    pub in_use_bytes: usize,
    /// Regions that are kept to be used again.
    pub idle: usize,
    /// The bytes of the idle regions.
    pub idle_bytes: usize,
}

/// A region of the server.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) number: u64,
    pub(super) descriptor: OwnedFd,
    pub(super) mapping: Arc<Mapping>,
}

impl Region {
    fn bytes(&self) -> usize {
        self.mapping.length()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Idle regions, in the order in which they became idle.
    idle: Vec<Arc<Region>>,
    idle_bytes: usize,
    /// Regions in use, by their address in this process.
    in_use: HashMap<usize, Weak<RegionUse>>,
    in_use_bytes: usize,
    /// The numbers of the existing regions.
    numbers: HashSet<u64>,
    next_number: u64,
}

#[derive(Debug)]
struct Pool {
    idle_bytes_max: usize,
    state: Mutex<State>,
    /// The number of freed regions. When it changes, clients are told to unmap the freed regions.
    gone: watch::Sender<u64>,
}

/// The regions of one server. Clones refer to the same regions.
#[derive(Debug, Clone)]
pub struct Regions {
    pool: Arc<Pool>,
}

/// A region in use. It becomes idle when the last user drops it.
#[derive(Debug)]
pub(super) struct RegionUse {
    pub(super) region: Arc<Region>,
    pool: Arc<Pool>,
    retired: AtomicBool,
}

/// Rounds a size up to a multiple of a quarter of a power of two. There are few such sizes, so an idle region
/// often fits, and a region is at most a quarter too large.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(REGION_BYTES_MIN);
    bytes.next_multiple_of((1 << bytes.ilog2()) / 4)
}

impl Regions {
    pub(super) fn new(idle_bytes_max: usize) -> Self {
        let pool = Pool { idle_bytes_max, state: Mutex::default(), gone: watch::Sender::new(0) };
        Self { pool: Arc::new(pool) }
    }

    /// Returns the current numbers and sizes of the regions.
    pub fn stats(&self) -> RegionStats {
        let state = self.pool.state.lock();
        RegionStats {
            in_use: state.in_use.len(),
            in_use_bytes: state.in_use_bytes,
            idle: state.idle.len(),
            idle_bytes: state.idle_bytes,
        }
    }

    /// Lends a region of at least `bytes`: an idle region if one fits, or else a new region. Idle regions
    /// that are `known` to the client are preferred.
    pub(super) fn lend(&self, bytes: usize, known: impl Fn(u64) -> bool) -> io::Result<Arc<RegionUse>> {
        let bytes = size_class(bytes);
        let mut state = self.pool.state.lock();
        let fitting = state.idle.iter().enumerate().rev();
        let fitting = fitting.filter(|(_, region)| (bytes..=2 * bytes).contains(&region.bytes()));
        let best = fitting.min_by_key(|(_, region)| (!known(region.number), region.bytes()));
        let region = match best.map(|(place, _)| place) {
            Some(place) => {
                let region = state.idle.remove(place);
                state.idle_bytes -= region.bytes();
                region
            }
            None => {
                let (descriptor, mapping) = mapped::create(bytes)?;
                state.next_number += 1;
                let number = state.next_number;
                state.numbers.insert(number);
                Arc::new(Region { number, descriptor, mapping: Arc::new(mapping) })
            }
        };
        state.in_use_bytes += region.bytes();
        let address = region.mapping.address();
        let pool = Arc::clone(&self.pool);
        let lent = Arc::new(RegionUse { region, pool, retired: AtomicBool::new(false) });
        state.in_use.insert(address, Arc::downgrade(&lent));
        Ok(lent)
    }

    /// Returns the region that contains a buffer, and the buffer's offset in the region.
    pub(super) fn find(&self, buffer: &Buffer) -> Option<(Arc<RegionUse>, usize)> {
        let address = buffer.data_ptr().as_ptr() as usize;
        let lent = self.pool.state.lock().in_use.get(&address).and_then(Weak::upgrade)?;
        Some((lent, buffer.as_ptr() as usize - address))
    }

    /// Returns a receiver that is notified when regions are freed.
    pub(super) fn gone(&self) -> watch::Receiver<u64> {
        self.pool.gone.subscribe()
    }

    /// Returns the regions among `numbers` that were freed.
    pub(super) fn gone_of<'a>(&self, numbers: impl Iterator<Item = &'a u64>) -> Vec<u64> {
        let state = self.pool.state.lock();
        numbers.filter(|number| !state.numbers.contains(number)).copied().collect()
    }
}

impl RegionUse {
    /// Prevents further loans of the region: a client whose connection has ended may still have it mapped.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Returns the first `length` bytes as a buffer that keeps the region in use.
    pub(super) fn buffer(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        mapped::buffer(&self.region.mapping, length, Arc::clone(self))
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let mut gone = Vec::new();
        {
            let mut state = self.pool.state.lock();
            let bytes = self.region.bytes();
            state.in_use.remove(&self.region.mapping.address());
            state.in_use_bytes -= bytes;
            if self.retired.load(Ordering::Relaxed) {
                gone.push(Arc::clone(&self.region));
            } else {
                state.idle.push(Arc::clone(&self.region));
                state.idle_bytes += bytes;
            }
            // A region that is in use now may soon be idle and then needed again, so the bound grows with
            // use.
            let idle_bytes_max = self.pool.idle_bytes_max.max(state.in_use_bytes / 4);
            while state.idle_bytes > idle_bytes_max {
                let oldest = state.idle.remove(0);
                state.idle_bytes -= oldest.bytes();
                gone.push(oldest);
            }
            for region in &gone {
                state.numbers.remove(&region.number);
            }
        }
        if !gone.is_empty() {
            self.pool.gone.send_modify(|count| *count += gone.len() as u64);
        }
        // Freed regions are unmapped here, outside the lock.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_at_most_a_quarter_too_large() {
        assert_eq!(size_class(1), 1 << 20);
        for bytes in (1 << 20..100 << 20).step_by(77_777) {
            let class = size_class(bytes);
            assert!(class >= bytes && class <= bytes + bytes / 4, "{bytes}: {class}");
        }
    }

    #[test]
    fn regions_are_used_again_unless_they_are_retired() {
        let regions = Regions::new(8 << 20);
        let first = regions.lend(10, |_| false).unwrap();
        let number = first.region.number;
        let buffer = first.buffer(100).unwrap();
        drop(first);
        assert_eq!(regions.stats().in_use, 1, "a buffer keeps its region");
        let (found, at) = regions.find(&buffer.slice(64)).unwrap();
        assert_eq!((found.region.number, at), (number, 64));
        drop((buffer, found));
        let again = regions.lend(500, |_| false).unwrap();
        assert_eq!(again.region.number, number);
        again.retire();
        drop(again);
        assert_eq!(regions.stats(), RegionStats::default());
        assert_eq!(regions.gone_of([number].iter()), [number]);
    }

    #[test]
    fn idle_bytes_are_bounded_and_the_known_go_first() {
        let regions = Regions::new(3 << 20);
        let lent: Vec<_> = (0..5).map(|_| regions.lend(1, |_| false).unwrap()).collect();
        drop(lent);
        assert_eq!((regions.stats().idle, regions.stats().in_use_bytes), (3, 0));
        let known = regions.lend(1, |number| number == 4).unwrap();
        assert_eq!(known.region.number, 4);
    }
}
