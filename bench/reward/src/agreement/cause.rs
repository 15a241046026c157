//! The causes of disagreements between `math_equiv` and `math-verify`.
//!
//! Each rule checks how the answer was derived from the truth, and how `math-verify` read both. A rule
//! therefore explains only the cases for which it was written.

use rolldock_reward::scorer::math_equiv::{Reason, Verdict};

use super::pairs::{Kind, Pair};
use crate::peer::Said;

/// A cause of disagreements. In each disagreement one side is wrong by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Rounding,
    SpacedThousands,
    SpacedUnit,
    InfiniteEnd,
    OtherUnit,
    RelationForSet,
}

impl Cause {
    /// The cause as a sentence of the report.
    pub(super) fn explanation(self) -> &'static str {
        match self {
            Self::Rounding => {
                "math-verify compares decimals to six places; math_equiv does not round, so a decimal equals a fraction \
                 only if their values are equal"
            }
            Self::SpacedThousands => {
                "after a thin space, math-verify reads the commas between thousands as commas between elements of a set"
            }
            Self::SpacedUnit => "after a thin space, math-verify reads the unit as a product of variables",
            Self::OtherUnit => "math-verify drops units, so it calls 5 cm and 5 m equal",
            Self::RelationForSet => {
                "math-verify compares an inequality with an interval only if `allow_set_relation_comp` is set"
            }
            Self::InfiniteEnd => {
                "a closed bracket at an infinite end: SymPy reads it as an open bracket, so math-verify calls the intervals \
                 equal; math_equiv compares the brackets. As sets of real numbers the \
                 intervals are equal, so the verdict of math-verify is defensible"
            }
        }
    }
}

/// The cause of a disagreement; `None` if no rule explains it.
pub(super) fn of(pair: &Pair, ours: Verdict, theirs: &Said) -> Option<Cause> {
    let both = [&theirs.answer, &theirs.truth];
    let is_float = both.iter().any(|read| read.starts_with("Float "));
    match pair.kind {
        Kind::Rounded | Kind::OffByOne if is_float && theirs.equal => Some(Cause::Rounding),
        Kind::Spaced if theirs.answer.starts_with("FiniteSet ") && pair.truth.contains(',') => {
            Some(Cause::SpacedThousands)
        }
        Kind::Spaced if theirs.answer.starts_with("Mul ") && is_with_unit(&pair.truth) => {
            Some(Cause::SpacedUnit)
        }
        Kind::OtherUnit if ours.reason == Reason::DifferentUnit && theirs.equal => Some(Cause::OtherUnit),
        Kind::Inequality if ours.is_equal && theirs.truth.starts_with("Interval ") => {
            Some(Cause::RelationForSet)
        }
        Kind::OtherBracket
            if ours.reason == Reason::DifferentBrackets
                && pair.truth.contains("\\infty")
                && both.iter().all(|read| read.starts_with("Interval ")) =>
        {
            Some(Cause::InfiniteEnd)
        }
        _ => None,
    }
}

fn is_with_unit(truth: &str) -> bool {
    truth.contains("\\text{ ") || truth.contains("\\mbox{ ")
}

#[cfg(test)]
mod tests {
    use rolldock_reward::scorer::math_equiv::equivalent;

    use super::{Cause, of};
    use crate::agreement::pairs::{Kind, Pair};
    use crate::peer::Said;

    #[test]
    fn a_rule_explains_only_its_own_cases() {
        let cause = |kind, answer: &str, truth: &str, read: &str| {
            let pair = Pair { kind, answer: answer.to_owned(), truth: truth.to_owned() };
            let said = Said { equal: !kind.keeps(), answer: read.to_owned(), truth: String::new() };
            of(&pair, equivalent(answer, truth), &said)
        };
        let rounded = cause(Kind::Rounded, "0.333333", "\\frac13", "Float 0.333333");
        assert_eq!(rounded, Some(Cause::Rounding));
        assert_eq!(cause(Kind::Decimal, "0.5", "\\frac12", "Float 0.5"), None);
        let spaced = cause(Kind::Spaced, "\\, 1,000 \\;", "1,000", "FiniteSet {0, 1}");
        assert_eq!(spaced, Some(Cause::SpacedThousands));
        assert_eq!(cause(Kind::Spaced, "\\, 1000 \\;", "1000", "FiniteSet {0, 1}"), None);
    }
}
