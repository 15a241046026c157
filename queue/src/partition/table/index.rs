//! Group indexes: the groups that a task can take, in every order that a take has requested.
//!
//! The order by age always exists. The other orders are built at the first request and are updated from then
//! on. Most partitions never need them, and no take has to search.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::take::Sampler;

/// The sort keys of a group, apart from its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) policy_version: u64,
    pub(super) priority: i64,
}

/// A set that returns its n-th member in O(1).
#[derive(Debug, Default)]
struct Draw {
    ids: Vec<u64>,
    places: HashMap<u64, usize>,
}

impl Draw {
    fn insert(&mut self, id: u64) {
        self.places.insert(id, self.ids.len());
        self.ids.push(id);
    }

    fn remove(&mut self, id: u64) {
        let Some(place) = self.places.remove(&id) else { return };
        self.ids.swap_remove(place);
        if let Some(moved) = self.ids.get(place) {
            self.places.insert(*moved, place);
        }
    }
}

/// Groups in the orders that takes have requested.
#[derive(Debug, Default)]
pub(super) struct GroupIndex {
    oldest: BTreeSet<u64>,
    by_version: Option<BTreeMap<u64, BTreeSet<u64>>>,
    by_priority: Option<BTreeSet<(Reverse<i64>, u64)>>,
    draw: Option<Draw>,
}

impl GroupIndex {
    pub(super) fn len(&self) -> usize {
        self.oldest.len()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.oldest.contains(&id)
    }

    pub(super) fn oldest(&self) -> impl Iterator<Item = u64> + '_ {
        self.oldest.iter().copied()
    }

    pub(super) fn insert(&mut self, id: u64, keys: Keys) {
        if !self.oldest.insert(id) {
            return;
        }
        if let Some(by_version) = &mut self.by_version {
            by_version.entry(keys.policy_version).or_default().insert(id);
        }
        if let Some(by_priority) = &mut self.by_priority {
            by_priority.insert((Reverse(keys.priority), id));
        }
        if let Some(draw) = &mut self.draw {
            draw.insert(id);
        }
    }

    /// Removes a group. `keys` must be the keys with which the group was inserted.
    pub(super) fn remove(&mut self, id: u64, keys: Keys) {
        if !self.oldest.remove(&id) {
            return;
        }
        if let Some(by_version) = &mut self.by_version
            && let Some(ids) = by_version.get_mut(&keys.policy_version)
        {
            ids.remove(&id);
            if ids.is_empty() {
                by_version.remove(&keys.policy_version);
            }
        }
        if let Some(by_priority) = &mut self.by_priority {
            by_priority.remove(&(Reverse(keys.priority), id));
        }
        if let Some(draw) = &mut self.draw {
            draw.remove(id);
        }
    }

    /// Builds the index for an order, if it does not exist yet.
    pub(super) fn prepare(&mut self, sampler: Sampler, min_version: u64, keys: impl Fn(u64) -> Option<Keys>) {
        let known = || self.oldest.iter().filter_map(|id| Some((*id, keys(*id)?)));
        if self.by_version.is_none() && (min_version > 0 || sampler == Sampler::Freshest) {
            let mut by_version: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            known().for_each(|(id, keys)| {
                by_version.entry(keys.policy_version).or_default().insert(id);
            });
            self.by_version = Some(by_version);
        }
        if self.by_priority.is_none() && sampler == Sampler::Priority {
            self.by_priority = Some(known().map(|(id, keys)| (Reverse(keys.priority), id)).collect());
        }
        if self.draw.is_none() && matches!(sampler, Sampler::Random { .. }) {
            let mut draw = Draw::default();
            self.oldest.iter().for_each(|id| draw.insert(*id));
            self.draw = Some(draw);
        }
    }

    /// The groups whose version is below `min_version`, oldest version first. The index must be prepared.
    pub(super) fn below(&self, min_version: u64) -> impl Iterator<Item = u64> + '_ {
        let below = self.by_version.iter().flat_map(move |by_version| by_version.range(..min_version));
        below.flat_map(|(_, ids)| ids.iter().copied())
    }

    /// The groups whose version is at least `min_version`, in the sampler's order. The index must be
    /// prepared.
    pub(super) fn order<'a>(
        &'a self,
        sampler: Sampler,
        min_version: u64,
        draw_number: u64,
        keys: impl Fn(u64) -> Option<Keys> + 'a,
    ) -> Box<dyn Iterator<Item = u64> + 'a> {
        let fresh = move |id: &u64| {
            min_version == 0 || keys(*id).is_some_and(|keys| keys.policy_version >= min_version)
        };
        match (sampler, &self.by_version, &self.by_priority, &self.draw) {
            (Sampler::Freshest, Some(by_version), ..) => {
                Box::new(by_version.range(min_version..).rev().flat_map(|(_, ids)| ids.iter().rev().copied()))
            }
            (Sampler::Priority, _, Some(by_priority), _) => {
                Box::new(by_priority.iter().map(|(_, id)| *id).filter(fresh))
            }
            (Sampler::Random { seed }, _, _, Some(draw)) => {
                Box::new(shuffled(&draw.ids, seed, draw_number).filter(fresh))
            }
            (_, Some(by_version), ..) if min_version > 0 => {
                Box::new(merged(by_version.range(min_version..).map(|(_, ids)| ids)))
            }
            _ => Box::new(self.oldest.iter().copied().filter(fresh)),
        }
    }
}

/// Merges several sets into one sorted sequence.
fn merged<'a>(sets: impl Iterator<Item = &'a BTreeSet<u64>>) -> impl Iterator<Item = u64> {
    let mut rests: Vec<_> = sets.map(|set| set.iter()).collect();
    let mut heads: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for (place, rest) in rests.iter_mut().enumerate() {
        heads.extend(rest.next().map(|id| Reverse((*id, place))));
    }
    std::iter::from_fn(move || {
        let Reverse((id, place)) = heads.pop()?;
        heads.extend(rests[place].next().map(|next| Reverse((*next, place))));
        Some(id)
    })
}

/// A random order. Only the part that is read is computed.
fn shuffled(ids: &[u64], seed: u64, number: u64) -> impl Iterator<Item = u64> + '_ {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    // The ids that are not at their own index: Fisher-Yates without a copy of the whole list.
    let mut moved: HashMap<usize, usize> = HashMap::new();
    (0..ids.len()).map(move |at| {
        let drawn = rng.random_range(at..ids.len());
        let chosen = moved.get(&drawn).copied().unwrap_or(drawn);
        let displaced = moved.get(&at).copied().unwrap_or(at);
        moved.insert(drawn, displaced);
        ids[chosen]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(id: u64) -> Option<Keys> {
        Some(Keys { policy_version: id % 3, priority: -((id % 4) as i64) })
    }

    fn index() -> GroupIndex {
        let mut index = GroupIndex::default();
        (0..12).for_each(|id| index.insert(id, keys(id).unwrap()));
        index
    }

    fn order(index: &mut GroupIndex, sampler: Sampler, min_version: u64) -> Vec<u64> {
        index.prepare(sampler, min_version, keys);
        index.order(sampler, min_version, 0, keys).collect()
    }

    #[test]
    fn every_order_is_what_a_sort_gives_also_after_changes() {
        let mut index = index();
        for changed in [false, true] {
            if changed {
                [3, 4, 11].iter().for_each(|id| index.remove(*id, keys(*id).unwrap()));
                (12..15).for_each(|id| index.insert(id, keys(id).unwrap()));
            }
            let all: Vec<u64> = index.oldest().collect();
            for min_version in [0, 1, 2, 3] {
                let fresh: Vec<u64> = all
                    .iter()
                    .copied()
                    .filter(|id| keys(*id).unwrap().policy_version >= min_version)
                    .collect();
                assert_eq!(order(&mut index, Sampler::Fifo, min_version), fresh);
                let mut freshest = fresh.clone();
                freshest.sort_by_key(|id| Reverse((keys(*id).unwrap().policy_version, *id)));
                assert_eq!(order(&mut index, Sampler::Freshest, min_version), freshest);
                let mut urgent = fresh.clone();
                urgent.sort_by_key(|id| (Reverse(keys(*id).unwrap().priority), *id));
                assert_eq!(order(&mut index, Sampler::Priority, min_version), urgent);
                let mut random = order(&mut index, Sampler::Random { seed: 7 }, min_version);
                assert!(fresh.len() < 4 || random != fresh, "it is shuffled");
                random.sort_unstable();
                assert_eq!(random, fresh);
                let below: usize = index.below(min_version).count();
                assert_eq!(below + fresh.len(), all.len());
            }
        }
    }

    #[test]
    fn draws_differ_by_number_and_not_by_repetition() {
        let mut index = index();
        let sampler = Sampler::Random { seed: 1 };
        index.prepare(sampler, 0, keys);
        let draw = |number| index.order(sampler, 0, number, keys).collect::<Vec<u64>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
