//! A compact format of handles. Most of a record consists of handles, and the rows of a put mostly have
//! consecutive slots.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::RowHandle;

/// Handles as runs of `[first slot, generation, count]` with consecutive slots. With a negative count, the
/// slots are in descending order, as reused slots often are.
///
/// A single run is stored inline.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Run>")]
pub(crate) struct Runs(SmallVec<[Run; 1]>);

impl Serialize for Runs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

/// A run of slots, or a single handle in the format of older journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Run {
    Slots(u32, u32, i32),
    One(RowHandle),
}

/// The maximum number of rows in one record. A record that claims more rows is damaged and is not expanded. A
/// change of more rows is split into several records.
pub(crate) const RECORD_ROWS_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 24 };
const COUNT_MAX: u64 = RECORD_ROWS_MAX as u64;

impl Run {
    fn followed_by(self, handle: RowHandle) -> Option<Self> {
        let Self::Slots(first, generation, count) = self else { return None };
        if handle.generation != generation || u64::from(count.unsigned_abs()) >= COUNT_MAX {
            return None;
        }
        let slot = i64::from(handle.slot);
        if count == 1 && slot == i64::from(first) - 1 {
            return Some(Self::Slots(first, generation, -2));
        }
        let next = i64::from(first) + i64::from(count);
        (slot == next).then(|| Self::Slots(first, generation, count + count.signum()))
    }

    fn handles(self) -> impl Iterator<Item = RowHandle> {
        let (first, generation, count) = match self {
            Self::Slots(first, generation, count) => (first, generation, count),
            Self::One(handle) => (handle.slot, handle.generation, 1),
        };
        let step = i64::from(count.signum());
        (0..i64::from(count.unsigned_abs()))
            .filter_map(move |at| u32::try_from(i64::from(first) + step * at).ok())
            .map(move |slot| RowHandle { slot, generation })
    }
}

impl TryFrom<Vec<Run>> for Runs {
    type Error = String;

    fn try_from(runs: Vec<Run>) -> Result<Self, String> {
        let runs = Self(SmallVec::from_slice(&runs));
        let count = runs.count();
        if count > COUNT_MAX { Err(format!("rows={count} in one record")) } else { Ok(runs) }
    }
}

impl Runs {
    pub(crate) fn count(&self) -> u64 {
        let count = |run: &Run| match run {
            Run::Slots(_, _, count) => u64::from(count.unsigned_abs()),
            Run::One(_) => 1,
        };
        self.0.iter().map(count).sum()
    }

    pub(crate) fn of(handles: &[RowHandle]) -> Self {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for handle in handles {
            match runs.last_mut().and_then(|run| run.followed_by(*handle).map(|longer| (run, longer))) {
                Some((run, longer)) => *run = longer,
                None => runs.push(Run::Slots(handle.slot, handle.generation, 1)),
            }
        }
        runs.shrink_to_fit();
        Self(runs)
    }

    /// The number of bytes that the runs need on the heap. It depends only on the runs, and not on the
    /// capacity: a clone may have another capacity than its original, and equal handles must count equally.
    pub(crate) fn heap_bytes(&self) -> usize {
        if self.0.len() > self.0.inline_size() { self.0.len() * size_of::<Run>() } else { 0 }
    }

    pub(crate) fn handles(&self) -> Vec<RowHandle> {
        self.0.iter().flat_map(|run| run.handles()).collect()
    }
}

/// Serializes a field of handles as runs.
pub(crate) fn serialize<S: Serializer>(handles: &[RowHandle], serializer: S) -> Result<S::Ok, S::Error> {
    Runs::of(handles).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RowHandle>, D::Error> {
    Ok(Runs::deserialize(deserializer)?.handles())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn handles_come_back_as_they_were(
            handles in prop::collection::vec((0_u32..9, 0_u32..3), 0..30), far: bool
        ) {
            let far = if far { u32::MAX - 9 } else { 0 };
            let handles: Vec<RowHandle> = handles
                .into_iter()
                .map(|(slot, generation)| RowHandle { slot: slot + far, generation })
                .collect();
            let text = serde_json::to_string(&Runs::of(&handles)).unwrap();
            let again: Runs = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(again.handles(), handles);
        }
    }

    #[test]
    fn rows_of_a_put_are_one_run_up_or_down() {
        let handle = |slot| RowHandle { slot, generation: 3 };
        let up: Vec<RowHandle> = (10..18).map(handle).collect();
        let down: Vec<RowHandle> = (0..8).rev().map(handle).collect();
        assert_eq!(serde_json::to_string(&Runs::of(&up)).unwrap(), "[[10,3,8]]");
        assert_eq!(serde_json::to_string(&Runs::of(&down)).unwrap(), "[[7,3,-8]]");
    }
}
