//! Converts units exactly.
//!
//! Every unit has a dimension, which is a product of powers of bases, and an exact size in these bases. A
//! unit without an exact size is a base of its own and equals only itself: for example, tons differ between
//! countries, and temperature scales have different zeros.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_traits::One;

use super::tree::{Rational, Units};

/// Maximum power of a unit in a conversion.
const POWER_MAX: u32 = 12;

/// A base of dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    Meter,
    Gram,
    Second,
    /// A month. A year is twelve months. Neither has a fixed number of days.
    Month,
    Dollar,
    Sterling,
    /// A unit that cannot be converted.
    Own(&'static str),
}

/// The bases of a unit with their powers, and the size of the unit in these bases as a numerator and a
/// denominator.
type Worth = (&'static [(Base, i32)], i64, i64);

const LENGTH: &[(Base, i32)] = &[(Base::Meter, 1)];
const VOLUME: &[(Base, i32)] = &[(Base::Meter, 3)];
const SPEED: &[(Base, i32)] = &[(Base::Meter, 1), (Base::Second, -1)];
const MASS: &[(Base, i32)] = &[(Base::Gram, 1)];
const TIME: &[(Base, i32)] = &[(Base::Second, 1)];
const FREQUENCY: &[(Base, i32)] = &[(Base::Second, -1)];
const CALENDAR: &[(Base, i32)] = &[(Base::Month, 1)];
const DOLLARS: &[(Base, i32)] = &[(Base::Dollar, 1)];
const STERLING: &[(Base, i32)] = &[(Base::Sterling, 1)];

/// The dimension and the size of a unit. Yards, pounds and gallons are units of the United States. These
/// units have had metric definitions since 1959.
fn worth(unit: &str) -> Option<Worth> {
    Some(match unit {
        "millimeter" => (LENGTH, 1, 1_000),
        "centimeter" => (LENGTH, 1, 100),
        "meter" => (LENGTH, 1, 1),
        "kilometer" => (LENGTH, 1_000, 1),
        "inch" => (LENGTH, 254, 10_000),
        "foot" => (LENGTH, 3_048, 10_000),
        "yard" => (LENGTH, 9_144, 10_000),
        "mile" => (LENGTH, 1_609_344, 1_000),
        "milliliter" => (VOLUME, 1, 1_000_000),
        "liter" => (VOLUME, 1, 1_000),
        "gallon" => (VOLUME, 3_785_411_784, 1_000_000_000_000),
        "quart" => (VOLUME, 3_785_411_784, 4_000_000_000_000),
        "pint" => (VOLUME, 3_785_411_784, 8_000_000_000_000),
        "cup" => (VOLUME, 3_785_411_784, 16_000_000_000_000),
        "kilometer per hour" => (SPEED, 1_000, 3_600),
        "mile per hour" => (SPEED, 1_609_344, 3_600_000),
        "milligram" => (MASS, 1, 1_000),
        "gram" => (MASS, 1, 1),
        "kilogram" => (MASS, 1_000, 1),
        "pound" => (MASS, 45_359_237, 100_000),
        "ounce" => (MASS, 45_359_237, 1_600_000),
        "millisecond" => (TIME, 1, 1_000),
        "second" => (TIME, 1, 1),
        "minute" => (TIME, 60, 1),
        "hour" => (TIME, 3_600, 1),
        "day" => (TIME, 86_400, 1),
        "week" => (TIME, 604_800, 1),
        "hertz" => (FREQUENCY, 1, 1),
        "month" => (CALENDAR, 1, 1),
        "year" => (CALENDAR, 12, 1),
        "dollar" => (DOLLARS, 1, 1),
        "cent" => (DOLLARS, 1, 100),
        "sterling" => (STERLING, 1, 1),
        "pence" => (STERLING, 1, 100),
        _ => return None,
    })
}

/// The number of `right` units in one `left` unit; `None` if their dimensions differ.
pub(super) fn ratio(left: &Units, right: &Units) -> Option<Rational> {
    let ((left_bases, left_worth), (right_bases, right_worth)) = (in_bases(left)?, in_bases(right)?);
    (left_bases == right_bases).then(|| left_worth / right_worth)
}

fn in_bases(units: &Units) -> Option<(BTreeMap<Base, i32>, Rational)> {
    let mut bases: BTreeMap<Base, i32> = BTreeMap::new();
    let mut total = Rational::one();
    for (unit, power) in units {
        if power.unsigned_abs() > POWER_MAX {
            return None;
        }
        let own = [(Base::Own(unit), 1)];
        let (parts, top, bottom) = worth(unit).unwrap_or((&[], 1, 1));
        let parts = if parts.is_empty() { own.as_slice() } else { parts };
        for (base, count) in parts {
            *bases.entry(*base).or_default() += count * power;
        }
        total *= Rational::new(BigInt::from(top), BigInt::from(bottom)).pow(*power);
    }
    bases.retain(|_, count| *count != 0);
    Some((bases, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(pairs: &[(&'static str, i32)]) -> Units {
        pairs.iter().copied().collect()
    }

    #[test]
    fn units_of_one_dimension_convert_and_others_do_not() {
        let fraction = |top: i64, bottom: i64| Rational::new(top.into(), bottom.into());
        for (left, right, expected) in [
            (&[("meter", 1)][..], &[("centimeter", 1)][..], Some(fraction(100, 1))),
            (&[("meter", 2)], &[("centimeter", 2)], Some(fraction(10_000, 1))),
            (&[("mile", 1), ("hour", -1)], &[("mile per hour", 1)], Some(fraction(1, 1))),
            (&[("gallon", 1)], &[("inch", 3)], Some(fraction(231, 1))),
            (&[("hertz", 1)], &[("minute", -1)], Some(fraction(60, 1))),
            (&[("ton", 1)], &[("ton", 1)], Some(fraction(1, 1))),
            (&[("volt", 1), ("meter", -1)], &[("volt", 1), ("centimeter", -1)], Some(fraction(1, 100))),
            (&[("ton", 1)], &[("kilogram", 1)], None),
            (&[("celsius", 1)], &[("kelvin", 1)], None),
            (&[("meter", 1)], &[("meter", 2)], None),
            (&[("year", 1)], &[("day", 1)], None),
            (&[("meter", i32::MIN)], &[("meter", i32::MIN)], None),
        ] {
            assert_eq!(ratio(&units(left), &units(right)), expected, "{left:?} {right:?}");
        }
    }
}
