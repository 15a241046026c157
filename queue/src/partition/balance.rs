//! Divides groups among data-parallel ranks so that all ranks have about equally many tokens.
//!
//! This is the largest differencing method of Karmarkar and Karp (1982) for k parts. It repeatedly joins the
//! two partial splits with the widest spread, until one split is left. A join combines the heaviest part of
//! one split with the lightest part of the other. For equal counts, the method starts with splits of k groups
//! each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A split of some groups: the parts with their weights, heaviest first.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    parts: Vec<(u64, Vec<usize>)>,
    /// The first group of the split. It breaks ties, so that the result is deterministic.
    first: usize,
}

impl Split {
    fn new(mut parts: Vec<(u64, Vec<usize>)>, first: usize) -> Self {
        parts.sort_by_key(|(weight, _)| Reverse(*weight));
        Self { parts, first }
    }

    fn spread(&self) -> u64 {
        let weight = |part: Option<&(u64, Vec<usize>)>| part.map_or(0, |(weight, _)| *weight);
        weight(self.parts.first()) - weight(self.parts.last())
    }

    fn join(self, other: Self) -> Self {
        let first = self.first.min(other.first);
        let joined = self.parts.into_iter().zip(other.parts.into_iter().rev());
        let parts = joined.map(|((left, mut places), (right, more))| {
            places.extend(more);
            (left + right, places)
        });
        Self::new(parts.collect(), first)
    }
}

impl Ord for Split {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.spread(), Reverse(self.first)).cmp(&(other.spread(), Reverse(other.first)))
    }
}

impl PartialOrd for Split {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The maximum product of the number of weights and the number of parts. Above this product, the differencing
/// method costs too much, because it visits all parts for every weight.
const DIFFERENCES_MAX: usize = 1 << 18;

/// Assigns the heaviest weights first, each to the part that is lightest at that moment.
fn greedy(weights: &[u64], order: &[usize], parts: usize) -> Vec<Vec<usize>> {
    let mut split = vec![Vec::new(); parts];
    let mut lightest: BinaryHeap<Reverse<(u64, usize)>> = (0..parts).map(|part| Reverse((0, part))).collect();
    for place in order {
        let Some(Reverse((weight, part))) = lightest.pop() else { break };
        split[part].push(*place);
        lightest.push(Reverse((weight.saturating_add(weights[*place]), part)));
    }
    split.iter_mut().for_each(|places| places.sort_unstable());
    split
}

/// Divides `weights` into `parts` parts, and returns the indices in each part. With `equal_counts`, all parts
/// get equally many weights, if the number of parts divides the number of weights.
pub(super) fn balance(weights: &[u64], parts: usize, equal_counts: bool) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|place| Reverse(weights[*place]));
    if !equal_counts && weights.len().saturating_mul(parts) > DIFFERENCES_MAX {
        return greedy(weights, &order, parts);
    }
    let chunk = if equal_counts { parts } else { 1 };
    let mut splits: BinaryHeap<Split> = order
        .chunks(chunk.max(1))
        .map(|places| {
            let mut split: Vec<(u64, Vec<usize>)> =
                places.iter().map(|place| (weights[*place], vec![*place])).collect();
            split.resize(parts, (0, Vec::new()));
            Split::new(split, places[0])
        })
        .collect();
    while let Some(widest) = splits.pop() {
        let Some(next) = splits.pop() else {
            let mut parts: Vec<Vec<usize>> = widest.parts.into_iter().map(|(_, places)| places).collect();
            parts.iter_mut().for_each(|places| places.sort_unstable());
            return parts;
        };
        splits.push(widest.join(next));
    }
    vec![Vec::new(); parts]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::balance;

    fn sums(weights: &[u64], parts: &[Vec<usize>]) -> Vec<u64> {
        parts.iter().map(|places| places.iter().map(|place| weights[*place]).sum()).collect()
    }

    #[test]
    fn the_textbook_case() {
        let weights = [8, 7, 6, 5, 4];
        let mut halves = sums(&weights, &balance(&weights, 2, false));
        halves.sort_unstable();
        assert_eq!(halves, [14, 16], "the method's own answer; the best is 15 and 15");
        assert_eq!(balance(&[], 3, true), vec![Vec::<usize>::new(); 3]);
    }

    #[test]
    fn many_groups_over_many_parts_are_split_without_a_look_at_every_part_for_each() {
        let weights: Vec<u64> = (0..20_000).map(|at| at % 97).collect();
        let split = balance(&weights, 20_000, false);
        let sums = sums(&weights, &split);
        assert!(sums.iter().max().unwrap() - sums.iter().min().unwrap() <= 96);
        assert_eq!(split.iter().map(Vec::len).sum::<usize>(), weights.len());
    }

    proptest! {
        #[test]
        fn every_group_is_in_one_part_and_no_part_is_far_off(
            weights in prop::collection::vec(0_u64..10_000, 1..200), parts in 1_usize..9, equal: bool
        ) {
            let split = balance(&weights, parts, equal);
            let mut places: Vec<usize> = split.iter().flatten().copied().collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..weights.len()).collect::<Vec<_>>());
            let counts: Vec<usize> = split.iter().map(Vec::len).collect();
            if equal {
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
            let sums = sums(&weights, &split);
            let widest = weights.iter().max().unwrap();
            prop_assert!(sums.iter().max().unwrap() - sums.iter().min().unwrap() <= *widest);
        }
    }
}
