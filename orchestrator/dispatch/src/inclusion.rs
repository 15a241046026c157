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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_the_inverse_of_all_probabilities() {
        let chance = Some(Chance { keep: 0.5, valid: 0.1 });
        assert_eq!(Inclusion::default().weight(), 1.0);
        assert_eq!(Inclusion::chosen(chance).weight(), 2.0);
        assert_eq!(Inclusion { chance, run_on: 0.25 }.weight(), 8.0);
    }
}
