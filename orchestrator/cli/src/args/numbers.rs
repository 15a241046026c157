//! Options whose value is a number in a range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a whole number in `range`.
pub(super) fn whole<N>(range: RangeInclusive<N>) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + PartialOrd + Display + Clone + Send + Sync,
{
    move |text| in_range("a whole number", &range, text)
}

/// Reads a number in `range`. NaN is in no range.
pub(super) fn real<N>(range: RangeInclusive<N>) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + PartialOrd + Display + Clone + Send + Sync,
{
    move |text| in_range("a number", &range, text)
}

fn in_range<N: FromStr + PartialOrd + Display>(
    kind: &str,
    range: &RangeInclusive<N>,
    text: &str,
) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected {kind} from {} to {}", range.start(), range.end()))
}

/// Reads a nucleus mass.
pub(super) fn top_p(text: &str) -> Result<f32, String> {
    let mass = text.parse().ok().filter(|mass| *mass > 0.0 && *mass <= 1.0);
    mass.ok_or_else(|| "expected a number above 0 and at most 1".to_owned())
}
