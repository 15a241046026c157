//! Decides whether two parsed answers are equal.
//!
//! # Invariants
//! - Each pair of parts of the answers is compared at most once, so the cost of nested sets is the product of
//!   their sizes, not a power of this product. All comparisons together have a budget, [`MEETINGS_MAX`].

use std::cell::Cell;

use super::exact::{self, Exact};
use super::numeric::{self, Approx, POINTS};
use super::shape::Reading;
use super::tree::{NodeId, Rational, Scalar, Shape};
use super::units;
use super::{Reason, Verdict};

/// Two values that are not both exact are equal when they differ by no more than this share of the larger.
pub const RELATIVE_TOLERANCE: f64 = 1e-10;

/// Answers with variables are equal only if both have a value at this many sample points or more.
pub const POINTS_MIN: usize = 5;

/// The largest difference that rounding may explain, as a multiple of the noise of both values.
const NOISES: f64 = 4.0;

/// A value with more noise than this is ignored. The bound is relative to the value, or to 1 if the value is
/// smaller.
const NOISE_MAX: f64 = 1e-7;

/// Maximum number of comparisons of parts of two answers; a comparison at sample points counts once per
/// point. This is enough for sets of 360 numbers in any order.
const MEETINGS_MAX: usize = 1 << 17;

/// An answer with its values.
struct Side {
    exact: Vec<Exact>,
    approx: Vec<Approx>,
}

struct Comparison {
    left: Side,
    right: Side,
    points: usize,
    points_min: usize,
    meetings_left: Cell<usize>,
}

/// Compares two answers by value.
pub(super) fn compare(left: &Reading, right: &Reading) -> Verdict {
    let has_variables = left.tree.has_variable_from(0) || right.tree.has_variable_from(0);
    let points = if has_variables { POINTS } else { 1 };
    let side = |reading: &Reading| {
        let values = exact::evaluate(&reading.tree);
        let approx = numeric::evaluate(&reading.tree, &values, points);
        Side { exact: values, approx }
    };
    let comparison = Comparison {
        left: side(left),
        right: side(right),
        points,
        points_min: if has_variables { POINTS_MIN } else { 1 },
        meetings_left: Cell::new(MEETINGS_MAX),
    };
    let verdict = comparison.shapes(&left.shape, &right.shape);
    if comparison.meetings_left.get() == 0 && !verdict.is_equal {
        return Verdict::different(Reason::UndecidedComparedAsText);
    }
    verdict
}

/// Whether a tuple may be an interval, which is the case if it has two elements.
fn may_be_interval(items: &[Shape]) -> bool {
    items.len() == 2
}

impl Comparison {
    /// Takes this many comparisons from the budget. Returns false if none is left afterwards.
    fn pay(&self, meetings: usize) -> bool {
        let left = self.meetings_left.get();
        self.meetings_left.set(left.saturating_sub(meetings));
        left > meetings
    }

    fn shapes(&self, left: &Shape, right: &Shape) -> Verdict {
        if !self.pay(1) {
            return Verdict::different(Reason::UndecidedComparedAsText);
        }
        match (left, right) {
            (Shape::Named { .. }, Shape::Named { .. } | Shape::Equation { .. })
            | (Shape::Equation { .. }, Shape::Named { .. } | Shape::Equation { .. }) => {
                self.equations(left, right)
            }
            (Shape::Named { value, .. }, other) => self.shapes(value, other),
            (other, Shape::Named { value, .. }) => self.shapes(other, value),
            (Shape::Scalar(a), Shape::Scalar(b)) => self.scalars(a, b),
            (Shape::Text(a), Shape::Text(b)) if a == b => Verdict::equal(Reason::SameText),
            (Shape::Text(_), Shape::Text(_)) => Verdict::different(Reason::DifferentText),
            (Shape::Based { .. }, Shape::Based { .. }) if left == right => {
                Verdict::equal(Reason::SameExactValue)
            }
            (Shape::Based { .. }, Shape::Based { .. }) => Verdict::different(Reason::DifferentValue),
            (
                Shape::Bracketed { open, close, items },
                Shape::Bracketed { open: other_open, close: other_close, items: others },
            ) => {
                let is_same_pair = (open, close) == (other_open, other_close);
                if !is_same_pair && (may_be_interval(items) || may_be_interval(others)) {
                    return Verdict::different(Reason::DifferentBrackets);
                }
                self.in_order(items, others, Reason::SameTuple)
            }
            (Shape::Matrix { columns: a, cells }, Shape::Matrix { columns: b, cells: others }) => {
                if a != b {
                    return Verdict::different(Reason::DifferentSize);
                }
                self.in_order(cells, others, Reason::SameMatrix)
            }
            (Shape::Matrix { columns: 1, cells }, Shape::Bracketed { open: '(', close: ')', items }) => {
                self.in_order(cells, items, Reason::SameTuple)
            }
            (Shape::Bracketed { open: '(', close: ')', items }, Shape::Matrix { columns: 1, cells }) => {
                self.in_order(items, cells, Reason::SameTuple)
            }
            (Shape::List(a), Shape::List(b)) if a.len() != b.len() => {
                Verdict::different(Reason::DifferentSize)
            }
            (Shape::List(a), Shape::List(b)) | (Shape::Union(a), Shape::Union(b)) => self.matched(a, b),
            (Shape::Set(a) | Shape::List(a), Shape::Set(b) | Shape::List(b)) => self.contained(a, b),
            (
                Shape::Inequality { difference: a, is_strict },
                Shape::Inequality { difference: b, is_strict: is_other_strict },
            ) => {
                let is_same = is_strict == is_other_strict && self.is_multiple(*a, *b, true);
                Verdict::of(is_same, Reason::SameRelation, Reason::DifferentValue)
            }
            _ => Verdict::different(Reason::DifferentKind),
        }
    }

    /// Equations are equal if they give the same name the same value, or if the differences of their sides
    /// are multiples of each other.
    fn equations(&self, left: &Shape, right: &Shape) -> Verdict {
        if let (Shape::Named { name: a, value: one, .. }, Shape::Named { name: b, value: other, .. }) =
            (left, right)
        {
            let values = self.shapes(one, other);
            let are_scalars = matches!((&**one, &**other), (Shape::Scalar(_), Shape::Scalar(_)));
            if a == b || !values.is_equal && !are_scalars {
                return values;
            }
        }
        let difference = |shape: &Shape| match shape {
            Shape::Named { difference, .. } => *difference,
            Shape::Equation { difference } => Some(*difference),
            _ => None,
        };
        match (difference(left), difference(right)) {
            (Some(a), Some(b)) => {
                let is_same = self.is_multiple(a, b, false);
                Verdict::of(is_same, Reason::SameRelation, Reason::DifferentValue)
            }
            _ => Verdict::different(Reason::DifferentName),
        }
    }

    fn in_order(&self, left: &[Shape], right: &[Shape], same: Reason) -> Verdict {
        if left.len() != right.len() {
            return Verdict::different(Reason::DifferentSize);
        }
        let mut pairs = left.iter().zip(right).map(|(a, b)| self.shapes(a, b));
        pairs.find(|verdict| !verdict.is_equal).unwrap_or(Verdict::equal(same))
    }

    /// Whether each element of one list has a partner of its own in the other list, in any order.
    fn matched(&self, left: &[Shape], right: &[Shape]) -> Verdict {
        if left.len() != right.len() {
            return Verdict::different(Reason::DifferentSize);
        }
        let mut free: Vec<&Shape> = right.iter().collect();
        for item in left {
            match free.iter().position(|other| self.shapes(item, other).is_equal) {
                // Equal elements are interchangeable, so any partner will do.
                Some(partner) => {
                    free.swap_remove(partner);
                }
                None => return Verdict::different(Reason::DifferentValue),
            }
        }
        Verdict::equal(Reason::SameSet)
    }

    /// Whether each list contains all elements of the other list. No pair is compared twice.
    fn contained(&self, left: &[Shape], right: &[Shape]) -> Verdict {
        let pairs = left.len() * right.len();
        if pairs > self.meetings_left.get() {
            self.meetings_left.set(0);
            return Verdict::different(Reason::UndecidedComparedAsText);
        }
        let mut known = vec![None; pairs];
        let mut is_met = |at: usize, other: usize| {
            *known[at * right.len() + other]
                .get_or_insert_with(|| self.shapes(&left[at], &right[other]).is_equal)
        };
        let is_within = (0..left.len()).all(|at| (0..right.len()).any(|other| is_met(at, other)));
        let is_same = is_within && (0..right.len()).all(|other| (0..left.len()).any(|at| is_met(at, other)));
        Verdict::of(is_same, Reason::SameSet, Reason::DifferentValue)
    }

    fn scalars(&self, left: &Scalar, right: &Scalar) -> Verdict {
        if !left.units.is_empty() && !right.units.is_empty() && left.units != right.units {
            let is_same = units::ratio(&left.units, &right.units).and_then(|ratio| {
                let verdict = self.scaled(left.value, &ratio, right.value);
                verdict.is_equal.then_some(verdict)
            });
            return is_same.unwrap_or(Verdict::different(Reason::DifferentUnit));
        }
        let verdict = self.values(left.value, right.value);
        // A percentage also equals the number before its sign, but only if the other value is not a
        // percentage.
        let unsigned = match (left.percent, right.percent) {
            (Some(number), None) => self.values(number, right.value),
            (None, Some(number)) => self.values(left.value, number),
            _ => return verdict,
        };
        if verdict.is_equal || !unsigned.is_equal { verdict } else { unsigned }
    }

    /// Whether the left value times `ratio` equals the right value.
    fn scaled(&self, left: NodeId, ratio: &Rational, right: NodeId) -> Verdict {
        if let (Some(Exact::Finite(a)), Some(Exact::Finite(b))) =
            (self.left.exact.get(left), self.right.exact.get(right))
        {
            return Verdict::of(a * ratio == *b, Reason::SameExactValue, Reason::DifferentValue);
        }
        self.approximately(left, right, numeric::float(ratio))
    }

    fn values(&self, left: NodeId, right: NodeId) -> Verdict {
        match (self.left.exact.get(left), self.right.exact.get(right)) {
            (Some(Exact::Finite(a)), Some(Exact::Finite(b))) => {
                let is_same = a.numer() == b.numer() && a.denom() == b.denom();
                Verdict::of(is_same, Reason::SameExactValue, Reason::DifferentValue)
            }
            (Some(a), Some(b)) if is_infinite(a) || is_infinite(b) => {
                Verdict::of(a == b, Reason::SameExactValue, Reason::DifferentValue)
            }
            _ => self.approximately(left, right, 1.0),
        }
    }

    /// The values of both nodes at the points where both have a value. If enough of the pairs are real, only
    /// the real pairs are returned.
    fn valid_points(&self, left: NodeId, right: NodeId) -> Vec<(Approx, Approx)> {
        let at = |side: &Side, node: NodeId| {
            let start = node * self.points;
            side.approx.get(start..start + self.points).map(<[Approx]>::to_vec).unwrap_or_default()
        };
        let is_sound = |x: &Approx| x.is_valid() && x.noise <= NOISE_MAX * x.value.norm().max(1.0);
        let pairs = at(&self.left, left).into_iter().zip(at(&self.right, right));
        let valid: Vec<_> = pairs.filter(|(a, b)| is_sound(a) && is_sound(b)).collect();
        let real: Vec<_> = valid.iter().copied().filter(|(a, b)| a.is_real() && b.is_real()).collect();
        if real.len() >= self.points_min { real } else { valid }
    }

    /// Compares `left` times `ratio` with `right` at the sample points.
    fn approximately(&self, left: NodeId, right: NodeId, ratio: f64) -> Verdict {
        if !self.pay(self.points) {
            return Verdict::different(Reason::UndecidedComparedAsText);
        }
        let points = self.valid_points(left, right);
        let scaled = |a: &Approx| Approx { value: a.value * ratio, noise: a.noise * ratio };
        if points.iter().any(|(a, b)| !is_near(scaled(a), *b)) {
            return Verdict::different(Reason::DifferentValue);
        }
        if points.len() < self.points_min {
            return Verdict::different(Reason::UndecidedComparedAsText);
        }
        Verdict::equal(Reason::SameNumericValue)
    }

    /// Whether one value is a constant times the other. With `is_positive`, the constant must be positive.
    fn is_multiple(&self, left: NodeId, right: NodeId, is_positive: bool) -> bool {
        if !self.pay(self.points) {
            return false;
        }
        let points = self.valid_points(left, right);
        let sizes = |(a, b): &(Approx, Approx)| a.value.norm().min(b.value.norm());
        let Some(largest) = points.iter().copied().max_by(|p, q| sizes(p).total_cmp(&sizes(q))) else {
            return false;
        };
        let (a, b) = largest;
        let ratio = a.value / b.value;
        if points.len() < self.points_min || !ratio.is_finite() || ratio.norm() == 0.0 {
            return false;
        }
        if is_positive && (ratio.im.abs() > RELATIVE_TOLERANCE || ratio.re <= 0.0) {
            return false;
        }
        points.iter().all(|(one, other)| {
            let scaled = Approx { value: other.value * ratio, noise: other.noise * ratio.norm() + one.noise };
            is_near(*one, scaled)
        })
    }
}

fn is_infinite(value: &Exact) -> bool {
    matches!(value, Exact::PlusInfinity | Exact::MinusInfinity)
}

fn is_near(a: Approx, b: Approx) -> bool {
    let gap = (a.value - b.value).norm();
    gap <= RELATIVE_TOLERANCE * a.value.norm().max(b.value.norm()) || gap <= NOISES * (a.noise + b.noise)
}
