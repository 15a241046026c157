//! With which probability a group became part of the data, and the weight that undoes the choice.
//!
//! A run may leave groups out by chance: it [sends a prompt out](crate::history) with some probability, and it lets only
//! a share of the [unlikely groups](crate::modes::StopUnlikely) run on. In a weighted mean over accepted groups, the
//! weight of a group is the inverse of the product of these probabilities, so the mean estimates that of all valid groups
//! of the data (Horvitz and Thompson, 1952).

use crate::history::Chance;

/// The probabilities with which a group was sent out and ran on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inclusion {
    /// The probabilities by which its prompt was chosen; `None` if it had no history.
    pub chance: Option<Chance>,
    /// The share of the groups like this one that run on, above 0. It is 1 for a group that was never unlikely to
    /// become valid.
    pub run_on: f32,
}

impl Default for Inclusion {
    fn default() -> Self {
        Self::chosen(None)
    }
}

impl Inclusion {
    /// A group that was sent out with these probabilities.
    pub fn chosen(chance: Option<Chance>) -> Self {
        Self { chance, run_on: 1.0 }
    }

    /// The importance weight of the group: at least 1.
    pub fn weight(&self) -> f32 {
        Chance::weight_of(self.chance) / self.run_on
    }
}

/// The importance weights of accepted groups, and what they cost in precision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupWeights {
    groups: u64,
    sum: f64,
    squares: f64,
}

impl GroupWeights {
    /// Adds the weight of a group.
    pub fn add(&mut self, weight: f32) {
        let weight = f64::from(weight);
        self.groups += 1;
        self.sum += weight;
        self.squares += weight * weight;
    }

    /// The number of groups.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// The number of groups with equal weights whose mean would be as precise (Kish, 1965); 0 without groups.
    pub fn effective_groups(&self) -> f64 {
        if self.groups == 0 { 0.0 } else { self.sum * self.sum / self.squares }
    }

    /// The effective groups of an accepted group, at most 1; not a number without groups.
    pub fn effective_share(&self) -> f64 {
        self.effective_groups() / self.groups as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unequal_weights_cost_precision() {
        let of = |weights: &[f32]| {
            let mut added = GroupWeights::default();
            weights.iter().for_each(|weight| added.add(*weight));
            added
        };
        assert_eq!(of(&[2.0, 2.0, 2.0]).effective_groups(), 3.0);
        assert_eq!(of(&[1.0, 1.0, 4.0]).effective_groups(), 2.0);
        assert_eq!(of(&[1.0, 1.0, 4.0]).effective_share(), 2.0 / 3.0);
        assert_eq!((of(&[]).groups(), of(&[]).effective_groups()), (0, 0.0));
    }

    #[test]
    fn a_weight_is_the_inverse_of_all_probabilities() {
        let chance = Some(Chance { keep: 0.5, valid: 0.1 });
        assert_eq!(Inclusion::default().weight(), 1.0);
        assert_eq!(Inclusion::chosen(chance).weight(), 2.0);
        assert_eq!(Inclusion { chance, run_on: 0.25 }.weight(), 8.0);
    }
}
