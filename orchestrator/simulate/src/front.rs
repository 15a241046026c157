//! The Pareto front: the points that no other point beats. A point beats another if none of its costs is
//! higher and at least one is lower.

/// Whether each point is on the Pareto front. A point with a cost that is not a number is not on the front,
/// and beats no point.
pub fn front<const COSTS: usize>(points: &[[f64; COSTS]]) -> Vec<bool> {
    let is_known = |point: &[f64; COSTS]| point.iter().all(|cost| !cost.is_nan());
    let beats = |one: &[f64; COSTS], other: &[f64; COSTS]| {
        let pairs = || one.iter().zip(other);
        is_known(one) && pairs().all(|(one, other)| one <= other) && pairs().any(|(one, other)| one < other)
    };
    points.iter().map(|point| is_known(point) && !points.iter().any(|other| beats(other, point))).collect()
}

#[cfg(test)]
mod tests {
    use super::front;

    #[test]
    fn a_point_that_another_beats_is_not_on_the_front() {
        let points = [[1.0, 5.0], [2.0, 4.0], [2.0, 5.0], [3.0, 3.0], [1.0, 5.0], [0.5, f64::NAN]];
        assert_eq!(front(&points), [true, true, false, true, true, false]);
    }
}
