//! The ratio of two means over steps, with its standard error.
//!
//! Step by step, a run accepts groups, and the reference has the groups that an unbiased run would accept.
//! Both means come from sums over all steps. The standard error is that of the delete-one jackknife over
//! steps, because samples of a group are alike and groups of a step are stopped together.

use serde::Serialize;

use crate::bounds::Lengths;

/// A ratio of two means.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio; 1 is unbiased.
    pub value: f64,
    /// Its standard error; `None` with fewer than two steps.
    pub standard_error: Option<f64>,
}

impl Ratio {
    /// The mean of the first parts of all pairs, divided by the mean of the second parts. `mean` computes the
    /// mean of joined lengths. `None` without samples.
    pub fn new(pairs: &[(Lengths, Lengths)], mean: impl Fn(&Lengths) -> f64) -> Option<Self> {
        let without = |left_out: Option<usize>| {
            let (mut first, mut second) = (Lengths::default(), Lengths::default());
            for (place, (one, other)) in pairs.iter().enumerate() {
                if Some(place) != left_out {
                    first.join(one);
                    second.join(other);
                }
            }
            mean(&first) / mean(&second)
        };
        let value = without(None);
        if !value.is_finite() {
            return None;
        }
        let steps = pairs.len() as f64;
        let parts: Vec<f64> = (0..pairs.len()).map(|place| without(Some(place))).collect();
        let middle = parts.iter().sum::<f64>() / steps;
        let squares: f64 = parts.iter().map(|part| (part - middle).powi(2)).sum();
        let error = ((steps - 1.0) / steps * squares).sqrt();
        Some(Self { value, standard_error: (pairs.len() > 1 && error.is_finite()).then_some(error) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(tokens: &[u32]) -> Lengths {
        let mut lengths = Lengths::default();
        tokens.iter().for_each(|tokens| lengths.add(*tokens, *tokens > 100));
        lengths
    }

    #[test]
    fn the_error_of_a_mean_is_that_of_its_steps() {
        // Against a constant reference, the jackknife of a mean of equal steps is the textbook's error of the
        // mean: sqrt(sum of squares / (n (n - 1))).
        let pairs: Vec<_> =
            [90, 110, 100, 120].map(|tokens| (lengths(&[tokens; 3]), lengths(&[100; 3]))).into();
        let ratio = Ratio::new(&pairs, Lengths::mean_length).unwrap();
        assert!((ratio.value - 1.05).abs() < 1e-12, "{ratio:?}");
        let squares: f64 = [0.9, 1.1, 1.0, 1.2].iter().map(|part: &f64| (part - 1.05).powi(2)).sum();
        assert!((ratio.standard_error.unwrap() - (squares / 12.0).sqrt()).abs() < 1e-12, "{ratio:?}");
    }

    #[test]
    fn equal_groups_are_unbiased_without_error() {
        let pairs: Vec<_> = [90, 110].map(|tokens| (lengths(&[tokens]), lengths(&[tokens]))).into();
        let ratio = Ratio::new(&pairs, Lengths::mean_length).unwrap();
        assert_eq!((ratio.value, ratio.standard_error), (1.0, Some(0.0)));
        assert_eq!(Ratio::new(&pairs[..1], Lengths::mean_length).unwrap().standard_error, None);
        assert_eq!(Ratio::new(&[], Lengths::mean_acc), None);
    }

    #[test]
    fn a_group_with_a_weight_counts_as_often_as_its_weight_says() {
        let mut accepted = lengths(&[100]);
        accepted.add_weighted(200, true, 3.0);
        let ratio = Ratio::new(&[(accepted, lengths(&[100, 200, 200, 200]))], Lengths::mean_length).unwrap();
        assert_eq!(ratio.value, 1.0);
        let ratio = Ratio::new(&[(accepted, lengths(&[100, 200]))], Lengths::mean_acc).unwrap();
        assert_eq!(ratio.value, 1.5);
    }
}
